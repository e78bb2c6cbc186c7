"""One process under audit: when it records, what it writes, and that nothing of it reaches the program.

``signals`` sees the training protocol, ``recording`` the operators, and here their reports become steps of a trace. A
part of a step lasts from one beginning of an iteration (the first forward, region or backward after an optimizer
stepped) to the next, so that what follows the optimizer (``scaler.update``, ``zero_grad``) is counted with it. It is
written when the optimizer has stepped, and what follows when it is over: the reader puts the two together.
"""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import platform
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from amp_audit import __version__
from amp_audit.chips import parse
from amp_audit.events import Kind
from amp_audit.runtime import lines
from amp_audit.runtime.attach import Config
from amp_audit.runtime.clock import Clock, Plan, parse_deep, parse_sample
from amp_audit.runtime.doctor import switch
from amp_audit.runtime.frames import is_thrown_in
from amp_audit.runtime.interrupts import Handlers
from amp_audit.runtime.place import Places
from amp_audit.runtime.queue import capturing
from amp_audit.runtime.recording import Recording, unseen
from amp_audit.runtime.rest import await_rest
from amp_audit.runtime.tracebacks import Hooks
from amp_audit.runtime.tracer import LONG_ERROR
from amp_audit.trace.schema import VERSION, End, EventRow, Header, Number, StepRecord
from amp_audit.trace.writer import Writer

_STARTS = frozenset({Kind.FORWARD.value, Kind.REGION_ENTER.value, Kind.SCALE.value, Kind.BACKWARD.value})
"""Events that begin an iteration, when an optimizer stepped before."""

_TRAINS = frozenset(
    kind.value
    for kind in (Kind.SCALE, Kind.BACKWARD, Kind.AUTOGRAD_GRAD, Kind.UNSCALE, Kind.CLIP, Kind.GRAD_WRITE, Kind.STEP)
)
"""Events that tell a step in flight from an evaluation that follows the latest one."""

_REGIONS = frozenset({Kind.REGION_ENTER.value, Kind.REGION_EXIT.value})

_MANY_EVENTS = 2000
"""So many events are not kept until the part of a step is over: a program may never step."""

current: Session | None = None
"""The session of this process."""


class Session:
    """The audit of one process, from ``begin`` to ``close``; the ``Host`` of its parts.

    ``attached``: the process was started under audit, rather than having asked for it itself.
    """

    def __init__(self, config: Config, *, attached: bool = False) -> None:
        self.config = config
        self.attached = attached
        self.places = Places()
        self.recording = Recording(self, self.places)
        self.recording.compiled.mode = config.compile
        self.recording.times = config.emulate is None  # how long it takes to emulate an operator says nothing
        self.signals: Any = None
        self._hooks = Hooks()
        self._handlers = Handlers()
        self._over = False
        self._said: set[str] = set()
        self._is_fork = False
        self._fresh()

    def _fresh(self) -> None:
        """Nothing was seen yet in this process."""
        self.clock = Clock(self.config.steps, parse_sample(self.config.sample), parse_deep(self.config.deep))
        self.plan = self._next_plan()
        self.writer = Writer(Path(self.config.trace_dir), self._complain)
        self.record = StepRecord(0, recorded=self.plan.recorded, deep=self.plan.deep)
        self._header: Header | None = None
        self._unobserved: Counter[str] = Counter()
        self._pending: int | None = None  # the step of the latest optimizer call, until its part is over
        self._enough = False
        self._stops = 0
        self._busy = False
        self._thread = threading.get_ident()
        self._since: float | None = None  # when the step in progress began
        self._lock = threading.RLock()  # several threads may train; new in a fork, where nobody would ever release it
        self._process = os.getpid()

    # Life

    def begin(self) -> None:
        """Listen from now on. Raises what went wrong, having left nothing behind."""
        global current
        from amp_audit.runtime.signals import Signals

        self.signals = Signals(self)
        self.places.modules.trained = self.signals.parameters
        try:
            self.signals.install()
            self._hooks.install()
            self._add_parts()
            self._handlers.start()
        except Exception:
            self._detach()
            self._handlers.stop()
            raise
        current = self
        if self.config.main:
            atexit.register(await_rest)
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)
        multiprocessing.util.register_after_fork(self, Session._in_worker)

    def _add_parts(self) -> None:
        from amp_audit.runtime.health import Health
        from amp_audit.runtime.live import Live
        from amp_audit.runtime.numerics import Numerics
        from amp_audit.runtime.saved import Saved
        from amp_audit.runtime.spreads import Spreads
        from amp_audit.runtime.weights import Weights

        self.signals.probes.clear()
        self.signals.before_backward.clear()
        if self.config.dry:
            return  # there are no values to measure
        tables = self.places.modules.tables
        self.recording.observe(Numerics(self, self.signals, lambda: self.recording.compiled.hidden, tables))
        self.recording.add(Weights(self, self.signals))
        self.recording.add(Health(self, self.signals))
        spreads = Spreads(self, self.signals)
        self.recording.add(spreads)
        self.places.modules.left = spreads.left
        owned, real = self.places.modules.owned, self.config.emulate is None
        self.recording.add(Saved(self, self.signals, self.recording.maker, owned, real))
        live = Live(self, self.signals, owned)
        self.recording.add(live)
        self.recording.book.made = live.made

    def died(self, error: BaseException) -> None:
        """An error that the program did not catch ends what is recorded."""
        with self._guard("the end"):
            self._note_error(error)

    def _note_error(self, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            text = f"{type(error).__name__}: {error}".partition("\n")[0][:LONG_ERROR]
            self.number(Number("raised", place=self.places.of_error(error), subject=text))

    def close(self, reason: str | None = None) -> None:
        """Write what is left and end the trace."""
        global current
        if self._process != os.getpid():
            return
        if current is self:
            current = None
            atexit.unregister(self.close)
        self._handlers.start()
        with _uninterrupted(), self._lock:
            with self._guard("the end"):
                self.signals.finish()
                self._note_error(getattr(sys, "last_exc", None) or getattr(sys, "last_value", None))
                self._finish_part()
            self._detach()
            if self._header is not None or self.config.main:
                with self._guard("the end"):
                    self._write_end(reason)
        self._handlers.stop()

    def _detach(self) -> None:
        """The program runs as if we had never been there."""
        self._over = True
        self.places.modules.outermost = None
        for leave in (self.recording.stop, self._hooks.uninstall, *([self.signals.uninstall] if self.signals else [])):
            with self._guard("detaching"):
                leave()

    def _forked(self) -> None:
        """A forked child begins with nothing; it records once it trains itself."""
        if current is not self:
            return
        with self._guard("forking"):
            self.recording.abandon()
            self.signals.forked()
            self.places.modules.outermost = None
            if not self._over:
                self.config = replace(self.config, main=False)
                self._is_fork = True
                self.writer.close()
                self._fresh()
                self._add_parts()

    def _in_worker(self) -> None:
        """multiprocessing's children end without ``atexit``."""
        multiprocessing.util.Finalize(None, self.close, exitpriority=-100)

    # What the parts report

    def event(self, row: EventRow) -> None:
        """Add a protocol event to the step in progress. Its ``skipped`` may still be filled in until ``settle``."""
        with self._lock:
            if not self._over:
                self._event(row)

    def _event(self, row: EventRow) -> None:
        if row.kind in _STARTS:
            self._since = self._since or time.perf_counter()
            self._iteration_begins()
        if row.kind in _REGIONS:
            self.recording.region(row)
        elif row.kind == Kind.OPTIMIZER_NEW.value:
            self.clock.optimizer_built()
        self.record.events.append(row)
        starts = row.kind == Kind.OPTIMIZER_NEW.value or (self.config.main and row.kind == Kind.REGION_ENTER.value)
        if starts and self.plan.recorded and not self.recording.active:
            self._start_recording()
        if len(self.record.events) >= _MANY_EVENTS and self._pending is None:
            with self._guard("writing"):
                self._write_down()  # in a process that does not train this drops it

    def number(self, number: Number) -> None:
        """Add a measured number to the step in progress."""
        if number.name == "nonfinite":
            self.look_closely()
        self.record.numbers.append(number)

    def look_closely(self) -> None:
        """The next step is deep, if the user left it to us which are."""
        self.clock.anomaly()

    def note(self, text: str) -> None:
        """Say once what could not be seen."""
        if text not in self._said:
            self._said.add(text)
            self.record.notes.append(text)

    def unobserved(self, what: str, count: int = 1) -> None:
        """Count what was not measured."""
        self._unobserved[what] += count

    def optimizer_step(self, optimizer: Any) -> None:
        """An optimizer is about to step or to skip."""
        with self._lock:
            if self._over:
                return
            self._thread = threading.get_ident()
            if self._pending is not None and self.clock.repeats(self.signals.number(optimizer)):
                self._iteration_begins()

    def optimizer_stepped(self, optimizer: Any, *, skipped: bool) -> None:
        """It stepped or skipped."""
        with self._lock:
            if not self._over:
                self._stepped(optimizer)

    def _stepped(self, optimizer: Any) -> None:
        self._thread = threading.get_ident()
        self._pending = self.clock.optimizer_stepped(self.signals.number(optimizer))
        if self.clock.complete():
            with self._guard("writing"):
                self._write_down()
        self.places.modules.outermost = self._iteration_begins
        if not self.recording.active and self.clock.begin().recorded:
            self._start_recording()

    # Steps

    def _iteration_begins(self, module: Any = None) -> None:
        """The next forward begins: what came before is over."""
        if threading.get_ident() == self._thread:
            with self._lock:
                if not (self._busy or self._over):
                    self._next_iteration(module)

    def _next_iteration(self, module: Any) -> None:
        if capturing():
            return
        if self._pending is not None:
            self.clock.iteration_begins()
            with self._guard("writing"):
                self._finish_part()
                self._begin_part()
            self._enough = self.clock.enough()
        if self._enough and (self._world() == 1 or _trains(module)):
            self._end_recording()

    def _write_down(self) -> None:
        """Write what there is of a part of a step that goes on: a process may end without warning."""
        if capturing():  # nothing may be read now: it goes with what follows
            return
        deep, recorded, stepped = self.record.deep, self.record.recorded, self._pending is not None
        self._write_part(stepped)
        self.record = StepRecord(0, recorded=recorded, deep=deep, notes=self.record.notes)
        if self.recording.active:
            self.recording.step_begin(deep=deep, follow=self.plan.follow)

    def _finish_part(self) -> None:
        """Write the part of a step that is over."""
        self._write_part(self._pending is not None)
        self._pending = None
        self.places.modules.outermost = None

    def _write_part(self, stepped: bool) -> None:
        record, self.record = self.record, StepRecord(0, recorded=False)
        record.step, record.open = self._pending or self._in_flight(record), self._pending is None
        self._busy = True
        try:
            with unseen():
                self._measure(record, stepped)
        finally:
            self._busy = False

    def _in_flight(self, record: StepRecord) -> int:
        """The step that a part belongs to in which no optimizer stepped: the next one, if it was to lead to one."""
        trains = any(event.kind in _TRAINS for event in record.events)
        trains |= any(number.name == "raised" and number.op is None for number in record.numbers)
        return self.clock.upcoming() if trains else max(1, self.clock.step)

    def _measure(self, record: StepRecord, stepped: bool) -> None:
        late, self.record = self.record, record  # numbers and notes of the parts belong to the step that ended
        try:
            self.signals.settle()
            if any(event.skipped for event in record.events):
                self.clock.anomaly()
            ops, casts = self.recording.step_end(self.writer) if record.recorded else ((), ())
        finally:
            self.record = late
        if stepped and self._since is not None:
            record.seconds = round(time.perf_counter() - self._since, 6)
        record.lines = lines.current.news() if lines.current else {}
        self._since = time.perf_counter() if stepped else self._since
        trained = self.clock.step > 0 or self.config.main
        if trained and (stepped or ops or casts or record.events or record.notes or record.numbers):
            self._open()
            self.writer.step(record, ops, casts)

    def _next_plan(self) -> Plan:
        plan = self.clock.begin()
        return replace(plan, deep=False, follow=False) if self.config.dry else plan  # nothing to run again

    def _begin_part(self) -> None:
        self._handlers.attend()  # those that were set before another thread began the session
        self.plan = self._next_plan()
        self.record = StepRecord(0, recorded=self.plan.recorded, deep=self.plan.deep, notes=self.record.notes)
        if not self.plan.recorded:
            self.recording.stop()
        elif self.recording.active:
            self.recording.step_begin(deep=self.plan.deep, follow=self.plan.follow)
        else:
            self._start_recording()

    def _start_recording(self) -> None:
        with self._guard("recording"):
            self.recording.start()
            self.recording.step_begin(deep=self.plan.deep, follow=self.plan.follow)

    # The end

    def _end_recording(self) -> None:
        if self.config.go_on:
            self._detach()
            self._handlers.stop()
        else:
            self._stop()

    def _stop(self) -> NoReturn:
        """End the program. When it swallows that and trains on: once more, then without asking."""
        self._stops += 1
        if self._stops == 1:
            self.close("stopped")
            register_optimizer_step_pre_hook(lambda *_: self._stop())
            atexit.register(_leave_process_group)
        if self._stops > 2:
            for stream in (sys.stdout, sys.stderr):
                with self._guard("flushing"):
                    stream.flush()
            os._exit(0)
        raise SystemExit(0)

    def _write_end(self, reason: str | None) -> None:
        self._open()
        why, code = (reason, 0 if reason == "stopped" else None) if reason else _how_it_ended()
        watch = lines.current
        notes = [f"not observed: {watch.why_not}"] if watch and watch.why_not else []
        if self.config.emulate is not None:
            notes.extend(_beyond_emulation())
        self.writer.end(
            End(
                why,
                code,
                self.clock.step if self.config.steps is None else min(self.clock.step, self.config.steps),
                notes,
                watch.all() if watch else {},
                dict(self._unobserved + self.recording.unobserved),
            )
        )

    # The file

    def _open(self) -> None:
        if self._header is None:
            self._header = self._make_header()
            self.writer.open(self._header)

    def _make_header(self) -> Header:
        rank, world = _rank()
        device, name = _device(self.config.emulate)
        return Header(
            schema=VERSION,
            amp_audit=__version__,
            torch=torch.__version__,
            python=platform.python_version(),
            device=name,
            policy=device,
            rank=rank,
            world_size=world,
            argv=tuple(sys.argv),
            cwd=os.getcwd(),
            sample=self.config.sample,
            steps=self.config.steps,
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            flags={
                "float32_matmul_precision": switch(torch, "get_float32_matmul_precision"),
                "cuda_matmul_allow_tf32": switch(torch.backends.cuda.matmul, "allow_tf32"),
                "cudnn_allow_tf32": switch(torch.backends.cudnn, "allow_tf32"),
                "threads": torch.get_num_threads(),
                "watch": lines.current is not None and lines.current.why_not is None,
            },
            emulated=self.config.emulate,
            dry=self.config.dry,
            forked=self._is_fork,
        )

    def _world(self) -> int:
        return self._header.world_size if self._header else _rank()[1]

    def _complain(self, text: str) -> None:
        print(f"amp-audit: {text}", file=sys.stderr)

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """An error of ours is a note; the program never sees it."""
        try:
            yield
        except Exception as error:
            if is_thrown_in(error):
                raise
            self.note(f"{what} failed: {type(error).__name__}: {error}")


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until this is over: the second of two would cut off the end of what the first one ended."""
    here = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if here else None
    if before is None:  # handlers belong to the main thread, and one that Python did not set cannot be put back
        yield
        return
    pressed: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed and callable(before) and _how_it_ended()[0] != "interrupted":
            before(*pressed[0])


def _trains(module: Any) -> bool:
    """Whether all ranks do what begins now: an evaluation may be the affair of one, which others wait for."""
    return torch.is_grad_enabled() and (module is None or bool(module.training))


def _rank() -> tuple[int, int]:
    """Rank and world size, from the process group or from the launcher's environment."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (int(rank), int(world)) if rank.isdigit() and world.isdigit() else (0, 1)


def _leave_process_group() -> None:
    """What a program that is stopped does not come to do: its communication threads would abort the process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _device(emulated: str | None) -> tuple[str, str]:
    """The type of the device that the program computes on, and what it is called."""
    if emulated is not None:
        what = parse(emulated)
        return what.device, what.chip.name
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "cuda", torch.cuda.get_device_name()
    return "cpu", "cpu"


def _beyond_emulation() -> Iterator[str]:
    from amp_audit.runtime.emulation.limits import explain

    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    reason = explain(error) if error is not None else None
    if reason is not None:
        yield reason


def _how_it_ended() -> tuple[str, int | None]:
    """Reason and exit code. Python keeps an exception that ended the program in ``sys.last_value``."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    return ("finished", None) if error is None else ("failed", 1)
