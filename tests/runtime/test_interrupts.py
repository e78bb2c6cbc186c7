"""Exceptions that a program's own signal handlers raise, wherever in us they come."""

from __future__ import annotations

import _signal
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from amp_audit.runtime import interrupts
from amp_audit.runtime.frames import is_thrown_in
from amp_audit.runtime.interrupts import Handlers
from amp_audit.runtime.patches import UNSEEN
from tests.runtime.drive import audited, plainly

posix = pytest.mark.skipif(sys.platform == "win32", reason="timers and signals of POSIX")

RETRIES = """
import copy, random, signal, sys
import torch
from torch import nn

torch.set_num_threads(1)


class Late(Exception):
    pass


def late(number, frame):
    raise Late("too late")


signal.signal(signal.SIGALRM, late)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
clock = random.Random(1)
caught = 0
waits = [0.0002, 0.001, 0.004, 0.01]


def step(x, y):
    with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


step(torch.randn(16, 8), torch.randint(0, 2, (16,)))  # torch imports some of itself when it is first used
for number in range(60):
    x, y = torch.randn(16, 8), torch.randint(0, 2, (16,))
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict(), scaler.state_dict()))
    for attempt in range(8):
        try:
            try:
                if attempt < 7:
                    signal.setitimer(signal.ITIMER_REAL, clock.uniform(0, waits[attempt % 4]))
                loss = step(x, y)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if attempt < 3:  # done in time: once more, to be interrupted elsewhere
                raise Late("on purpose")
            break
        except Late:
            caught += 1
            torch.set_autocast_enabled("cpu", False)  # contexts of torch may have been cut in two
            torch.set_grad_enabled(True)
            model.load_state_dict(kept[0])
            optimizer.load_state_dict(copy.deepcopy(kept[1]))  # it takes the tensors it is given
            scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
            scaler.load_state_dict(kept[2])
    assert signal.getsignal(signal.SIGALRM) is late
    print(number, repr(loss), float(scaler.get_scale()))
print(sum(float(p.detach().double().sum()) for p in model.parameters()))
assert caught >= 180
sys.exit(7)
"""


@posix
@pytest.mark.parametrize("deep", ["default", "all", "none"])
def test_a_program_that_is_interrupted_hundreds_of_times_ends_the_same(deep: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RETRIES)
    plain = plainly(["train.py"], tmp_path)
    run = audited(["train.py"], tmp_path, steps=None, sample="all", deep=deep)
    assert (plain.code, plain.stderr) == (7, b"")
    assert (run.code, run.stdout, run.stderr) == (plain.code, plain.stdout, b"")
    said = [note for record in run.trace.steps for note in record.notes]
    assert said == []
    assert run.trace.end is not None and run.trace.finished >= 60
    assert sum(len(record.ops) for record in run.trace.steps if record.step > 50) > 100


ENDS = """
import os, signal, sys, threading
import torch
from torch import nn

torch.set_num_threads(1)


def stop(number, frame):
    {raising}


signal.signal(signal.SIGUSR1, stop)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("begins", flush=True)
threading.Timer({after}, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
for _ in range(100000):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 8)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@posix
@pytest.mark.parametrize(
    ("raising", "code", "said"),
    [
        ("sys.exit(85)", 85, b""),
        ("raise RuntimeError('preempted')", 1, b"RuntimeError: preempted\n"),
        ("raise KeyError('preempted')", 1, b"KeyError: 'preempted'\n"),
    ],
)
def test_a_handler_that_ends_the_program_ends_it(raising: str, code: int, said: bytes, tmp_path: Path) -> None:
    for after in (0.3, 0.47, 0.61):
        (tmp_path / "train.py").write_text(ENDS.format(raising=raising, after=after))
        run = audited(["train.py"], tmp_path, steps=None, sample="all", folder=tmp_path / str(after))
        assert run.code == code and run.stdout == b"begins\n"
        assert run.stderr.endswith(said) and b"amp_audit" not in run.stderr
        assert run.trace.end is not None and run.trace.end.notes == []
        assert [note for record in run.trace.steps for note in record.notes] == []


PRESSED = """
import cProfile, os, random, signal, sys, threading, time
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
caught = 0


def press():
    clock = random.Random(1)
    for number in range(1, 101):
        time.sleep(clock.uniform(0, 0.01))
        os.kill(os.getpid(), signal.SIGINT)
        until = time.monotonic() + 60
        while caught < number:
            time.sleep(0.0002)
            if time.monotonic() > until:
                os._exit(9)


def step():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 8)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def count(number, frame):
    global caught
    caught += 1


signal.signal(signal.SIGINT, count)
{begin}
step()
thread = threading.Thread(target=press)
thread.start()
while caught < 100:
    step()
thread.join()
"""


@posix
@pytest.mark.parametrize(
    "begin",
    [
        "pass",
        "sys.settrace(lambda frame, event, argument: None)",
        "cProfile.Profile().enable()",
        "cProfile.Profile().enable()\nsys.settrace(lambda frame, event, argument: None)",
    ],
    ids=["plain", "trace", "profile", "both"],
)
def test_each_ctrl_c_comes_through(begin: str, tmp_path: Path) -> None:
    """Python 3.11 enters no function that is traced while a signal is marked as one that has come."""
    (tmp_path / "train.py").write_text(PRESSED.format(begin=begin))
    run = audited(["train.py"], tmp_path, steps=None, sample="all", deep="all")
    assert (run.code, run.stderr) == (0, b"")


class Told(Exception):
    pass


def plain(number: int, frame: FrameType | None) -> None:
    raise Told


class Holder:
    def handle(self, number: int, frame: FrameType | None) -> None:
        raise Told

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise Told


@pytest.fixture
def handlers() -> Iterator[Handlers]:
    numbers = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in numbers]
    made = Handlers()
    yield made
    made.stop()
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


OURS = """
def work(numbers):
    for number in numbers:
        signal.raise_signal(number)
    total = 0
    for number in range(20):
        total += len(str(number))
    done.append(total)


def passes(original):
    original()
"""


def ours(names: dict[str, Any]) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """A function that is taken for one of ours, and one that stands in the place of another function."""
    exec(compile(OURS, str(Path(interrupts.__file__).with_name("work.py")), "exec"), names)
    names["passes"].__code__ = names["passes"].__code__.replace(
        co_filename=names["passes"].__code__.co_filename + UNSEEN
    )
    return names["work"], names["passes"]


@posix
@pytest.mark.parametrize("handler", [plain, Holder().handle, Holder()])
@pytest.mark.parametrize("early", [False, True])
def test_a_handler_waits_until_our_work_is_done(handler: Any, early: bool, handlers: Handlers) -> None:
    if not early:
        signal.signal(signal.SIGUSR1, handler)
    handlers.start()
    if early:
        signal.signal(signal.SIGUSR1, handler)
    done: list[int] = []
    work, passes = ours({"signal": signal, "done": done})
    with pytest.raises(Told) as caught:
        work([signal.SIGUSR1])
        len("here it runs")
    assert done == [30]
    if sys.version_info >= (3, 11):  # which can be told to raise again without a trace
        assert interrupts.__file__ not in [str(entry.path) for entry in caught.traceback]
    assert signal.getsignal(signal.SIGUSR1) == handler
    with pytest.raises(Told):
        passes(lambda: (signal.raise_signal(signal.SIGUSR1), done.append(1)))
    assert done == [30]  # what the program asked for is not waited for
    assert signal.signal(signal.SIGUSR1, signal.SIG_IGN) == handler
    handlers.stop()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


@posix
def test_all_that_came_run_in_the_end_and_event_loops_hear_of_each_once(handlers: Handlers) -> None:
    came: list[int] = []
    handlers.start()
    numbers = [signal.SIGUSR1, signal.SIGUSR2]
    for number in numbers:
        signal.signal(number, lambda number, frame: came.append(number))
    done: list[int] = []
    work, _ = ours({"signal": signal, "done": done})
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        work(numbers)
        len("here they run")
        assert sorted(came) == sorted(numbers) and done == [30]
        assert signal.set_wakeup_fd(before) == writer
        assert os.read(reader, 100) == bytes(numbers)
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


@posix
def test_handlers_are_what_the_program_set_while_we_listen_and_after(handlers: Handlers) -> None:
    functions = signal.signal, signal.getsignal, _signal.signal, _signal.getsignal
    interrupt, switches = signal.getsignal(signal.SIGINT), signal.signal(signal.SIGUSR1, plain)
    handlers.start()
    handlers.start()
    assert signal.getsignal(signal.SIGINT) is interrupt and signal.getsignal(signal.SIGUSR1) is plain
    assert signal.signal(signal.SIGUSR1, signal.SIG_DFL) is plain
    assert signal.signal(signal.SIGUSR1, plain) is signal.SIG_DFL
    with pytest.raises((TypeError, ValueError)):
        signal.signal(signal.SIGUSR1, "no handler")  # type: ignore[arg-type]
    handlers.stop()
    handlers.stop()
    assert (signal.signal, signal.getsignal, _signal.signal, _signal.getsignal) == functions
    assert signal.getsignal(signal.SIGUSR1) is plain and signal.getsignal(signal.SIGINT) is interrupt
    signal.signal(signal.SIGUSR1, switches)


@posix
def test_handlers_that_raise_where_they_are_put_back_keep_none_from_that(handlers: Handlers) -> None:
    signal.signal(signal.SIGUSR1, plain)
    signal.signal(signal.SIGUSR2, plain)
    handlers.start()
    exec(
        compile("def last():\n    signal.raise_signal(number)\n    stop()", interrupts.__file__, "exec"),
        names := {"signal": signal, "number": signal.SIGUSR1, "stop": handlers.stop},
    )
    with pytest.raises(Told):
        names["last"]()
        len("at the latest here")
    assert _signal.getsignal(signal.SIGUSR1) is plain and _signal.getsignal(signal.SIGUSR2) is plain


def test_what_another_thread_throws_into_our_work_is_told_from_our_own_errors() -> None:
    def thrown(kind: type[Exception]) -> Exception:
        names: dict[str, Any] = {"throw": ctypes.pythonapi.PyThreadState_SetAsyncExc, "kind": ctypes.py_object(kind)}
        text = "def work(here):\n    throw(here, kind)\n    while True:\n        len(str(here))"
        exec(compile(text, interrupts.__file__, "exec"), names)
        try:
            names["work"](ctypes.c_ulong(threading.get_ident()))
        except Exception as error:
            return error
        raise AssertionError("nothing was raised")

    assert is_thrown_in(thrown(Told))
    assert not is_thrown_in(thrown(KeyError))  # may as well be ours
    try:
        int("no number")
    except ValueError as other:
        assert not is_thrown_in(other)
