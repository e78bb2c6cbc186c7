"""Recording on and off: the dispatch modes, the hooks and the settings that a recorded step needs, and nothing else.

Between recorded steps none of it is there, so the program runs at its own speed.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from amp_audit.runtime import profilers
from amp_audit.runtime.compiled import Compiled
from amp_audit.runtime.frames import is_thrown_in
from amp_audit.runtime.parts import CastCounts, CastKey, Host, Observer, Part
from amp_audit.runtime.patches import Patches
from amp_audit.runtime.place import Places
from amp_audit.runtime.profilers import Unprofiled
from amp_audit.runtime.stopwatch import Stopwatch
from amp_audit.runtime.tracer import OFF, Book, Tracer, admit_higher_order_operators
from amp_audit.trace.schema import Counts, EventRow
from amp_audit.trace.writer import Writer

_LOW = ("float16", "bfloat16")


class Recording:
    """The recording of one process.

    ``active``: whether operators are seen now; ``times``: whether those of deep steps are timed.
    """

    def __init__(self, host: Host, places: Places) -> None:
        self.active = False
        self.times = True
        self.book = Book(places, self._broken)
        self._host = host
        self._modules = places.modules
        self._modules.guest_enters, self._modules.guest_leaves = self._guest_enters, self._guest_leaves
        self._modules.broken = lambda error: self._broken("module names", error)
        self._parts: list[Part] = []
        self._tracer: Tracer | None = None
        self._entered = False
        self._guests: dict[int, Tracer] = {}
        self._regions: list[tuple[int | None, str, str | None]] = []
        self.compiled = Compiled(host, lambda: self.book.unobserved)
        self._patches = Patches()

    @property
    def unobserved(self) -> Counter[str]:
        return self.book.unobserved

    def maker(self, node: Any) -> str | None:
        """The module in which the operator of an autograd node ran; None when it was not seen."""
        tracer = self._tracer
        site = tracer.site_of(node) if tracer is not None else None
        return None if site is None else self.book.places.module(site)

    def add(self, part: Part) -> None:
        """Something that measures on recorded steps."""
        self._parts.append(part)

    def observe(self, observer: Observer) -> None:
        """The part that is shown operators."""
        self.add(observer)
        self.book.observer = observer

    def start(self) -> None:
        """See the operators of this thread from now on; it is the one that trains.

        Nothing is done while a mode of the program's own is in force: what it pops must be what it pushed.
        """
        if self.active:
            return
        if self._tracer is None or self._tracer.thread != threading.get_ident():
            self._exit()
            self._tracer = self._new_tracer()
        tracer = self._tracer
        admit_higher_order_operators()
        self._drop_idle()
        if _depth():
            if _top() is not tracer:
                self._host.note("operators were not recorded while a dispatch mode of the program was in force")
                return
        else:
            tracer.__enter__()  # type: ignore[no-untyped-call]
            self._entered = True
        self.active = True
        tracer.begin()
        self._modules.home = threading.get_ident()
        self._modules.install()
        self._patches.wrap(torch.cuda.graphs.CUDAGraph, "replay", self._replay)
        self._patches.wrap(torch, "ctc_loss", _with_lengths)
        for place, name in _TRACING:
            self._patches.wrap(place, name, self._trace)
        self.compiled.start()

    def stop(self) -> None:
        """See nothing any more, and leave nothing behind."""
        if self.active:
            self.active = False
            self._modules.uninstall()
            self._patches.undo()
            self.compiled.stop()
            for one in self.book.tracers:
                one.off = True
        self._exit()
        self._drop_idle()

    def _exit(self) -> None:
        """Take the mode off again. One of the program's own that lies above keeps it there, idle.

        The thread that entered it may be gone; one that is not keeps it, idle, until a recording stops on that thread.
        But that there is a mode torch notes by process, and then compiles nothing.
        """
        tracer = self._tracer
        if tracer is None or not self._entered:
            return
        if not _in_force(tracer):
            torch._C._push_on_torch_dispatch_stack(tracer)
        if _top() is tracer:
            self._entered = False
            tracer.__exit__(None, None, None)

    def _drop_idle(self) -> None:
        """Take off what recordings that ended on another thread left on this one."""
        while _depth() and isinstance(_top(), Tracer) and not (_top() is self._tracer and self._entered):
            torch._C._pop_torch_dispatch_stack(None)

    def step_begin(self, *, deep: bool, follow: bool = False) -> None:
        """A part of a recorded step begins."""
        self.book.deep = deep or follow
        if self.book.observer is not None:
            self.book.observer.follows = follow
        self.compiled.hidden = False
        self.book.stopwatch = Stopwatch() if deep and self.times else None
        for part in self._parts:
            try:
                part.step_begin(deep=deep)
            except Exception as error:
                if is_thrown_in(error):
                    raise
                self._drop(part, error)

    def step_end(self, writer: Writer) -> tuple[Counts, Counts]:
        """It ended: the counts of its operators and casts."""
        if profilers.profiled():
            self._host.note(
                "a profiler of the program ran: it counts operators of recorded steps twice, as they pass us"
            )
        counts: dict[CastKey, CastCounts] = {}
        for part in list(self._parts):
            try:
                with self.book.showing:
                    part.step_end()
                if part is self.book.observer:
                    counts.update(self.book.observer.cast_counts())
            except Exception as error:
                if is_thrown_in(error):
                    raise
                self._drop(part, error)
        for number in self.book.errors():
            self._host.number(number)
        ops, casts = self.book.collect(writer, counts)
        for tracer in self.book.tracers:
            tracer.turn()
        return ops, casts

    def region(self, row: EventRow) -> None:
        """Follow the autocast regions that the program enters and leaves."""
        if not self._regions:
            self.book.cast.clear()
        if row.kind == "region_enter":
            self._regions.append((row.region, row.device or "", row.dtype if row.enabled else None))
        else:
            numbers = [number for number, _, _ in self._regions]
            if row.region in numbers:
                del self._regions[numbers.index(row.region) :]
        # The innermost region of a device decides; float32 is what a region has that autocast turned off.
        dtypes = {device: dtype for _, device, dtype in self._regions}
        live = {device for _, device, dtype in self._regions if dtype in _LOW}
        self.book.region = self.book.region_number(
            {device: dtype if dtype in _LOW else OFF for device, dtype in dtypes.items() if device in live}
        )

    def abandon(self) -> None:
        """In a forked child: what it inherited of a recording goes."""
        self.active = False
        self._modules.uninstall()
        self._patches.undo()
        while _depth() and isinstance(_top(), Tracer):
            torch._C._pop_torch_dispatch_stack(None)
        self._exit()
        self.compiled.stop()
        self._tracer, self._entered = None, False
        self._guests = {}
        self.book = Book(self.book.places, self._broken)
        self._parts = []

    def _new_tracer(self) -> Tracer:
        tracer = Tracer(self.book)
        self.book.tracers.append(tracer)
        return tracer

    def _broken(self, what: str, error: Exception) -> None:
        self._host.note(f"{what} failed and was turned off: {type(error).__name__}: {error}")

    def _drop(self, part: Part, error: Exception) -> None:
        self._parts.remove(part)
        if part is self.book.observer:
            self.book.observer = None
        self._broken(type(part).__name__.lower(), error)

    # Threads of the program that run modules, as nn.DataParallel's do

    def _guest_enters(self, thread: int) -> None:
        if not self.active or _depth():
            return
        tracer = self._guests.get(thread)
        if tracer is None:
            tracer = self._guests[thread] = self._new_tracer()
        tracer.begin()
        torch._C._push_on_torch_dispatch_stack(tracer)

    def _guest_leaves(self, thread: int) -> None:
        tracer = self._guests.get(thread)
        if tracer is not None and _depth() and _top() is tracer:
            torch._C._pop_torch_dispatch_stack(None)

    def _replay(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def replay(graph: Any) -> Any:
            self.unobserved["replays of a CUDA graph"] += 1  # its operators do not come by
            return original(graph)

        return replay

    def _trace(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """torch.jit.trace sees a convolution's parts only where no mode has seen it whole."""

        @functools.wraps(original)
        def trace(*args: Any, **kwargs: Any) -> Any:
            self.unobserved["operators under torch.jit.trace"] += 1
            with _disable_current_modes():
                return original(*args, **kwargs)

        return trace


def _with_lengths(original: Callable[..., Any]) -> Callable[..., Any]:
    """Under a mode torch leaves the lengths of a CTC loss where they are, and divides the loss by those on the CPU.

    Without one it makes them lists of numbers, as is done here (``ctc_loss`` in aten/src/ATen/native/LossCTC.cpp).
    """

    @functools.wraps(original)
    def ctc_loss(
        log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *args: Any, **given: Any
    ) -> Any:
        lengths = [
            one.tolist() if type(one) is torch.Tensor and not one.is_floating_point() else one
            for one in (input_lengths, target_lengths)
        ]
        return original(log_probs, targets, *lengths, *args, **given)

    torch.jit._builtins._register_builtin(ctc_loss, "aten::ctc_loss")  # TorchScript knows operators by identity
    return ctc_loss


_TRACING: tuple[tuple[Any, str], ...] = (
    (torch.jit._trace, "_trace_impl"),
    (torch.jit, "trace_module"),
    (torch.jit, "_get_trace_graph"),
)


@contextmanager
def unseen() -> Iterator[None]:
    """Work of our own: not recorded, not differentiated, not even seen by modes and profilers of the program."""
    modes = _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()
    with modes, torch.no_grad(), Unprofiled():
        yield


def _depth() -> int:
    """How many dispatch modes are in force, without the one that a dry run begins with."""
    modes = int(torch._C._len_torch_dispatch_stack())
    return modes - (modes > 0 and hasattr(torch._C._get_dispatch_stack_at(0), "emulates"))


def _top() -> Any:
    return torch._C._get_dispatch_stack_at(torch._C._len_torch_dispatch_stack() - 1)


def _in_force(mode: Tracer) -> bool:
    """Whether a mode is on the calling thread's stack."""
    return any(torch._C._get_dispatch_stack_at(at) is mode for at in range(torch._C._len_torch_dispatch_stack()))
