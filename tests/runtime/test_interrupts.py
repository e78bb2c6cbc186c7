"""Exceptions that a program's own signal handlers raise, wherever in us they come."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from amp_audit.runtime.interrupts import Deferred, from_program
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
        ("raise TimeoutError('preempted')", 1, b"TimeoutError: preempted\n"),
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


class Told(Exception):
    pass


def plain(number: int, frame: FrameType | None) -> None:
    raise Told


def anything(*arguments: Any) -> None:
    raise Told


class Holder:
    def handle(self, number: int, frame: FrameType | None) -> None:
        raise Told

    def __call__(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # then it is none of those in force
        plain(number, frame)


@posix
@pytest.mark.parametrize("handler", [plain, anything, Holder().handle, Holder()])
def test_what_a_handler_raised_is_told_from_other_errors(handler: Any) -> None:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signal.raise_signal(signal.SIGUSR1)
    except Told as error:
        assert from_program(error)
    else:
        raise AssertionError("no signal came")
    finally:
        signal.signal(signal.SIGUSR1, before)
    try:
        int("no number")
    except ValueError as other:
        assert not from_program(other)


@posix
def test_handlers_that_waited_run_all_whatever_they_raise() -> None:
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        raise Told

    numbers = (signal.SIGUSR2, signal.SIGUSR1)
    before = [signal.signal(number, note) for number in numbers]
    try:
        with pytest.raises(Told), Deferred():
            for number in (*numbers, *numbers):
                signal.raise_signal(number)
                with Deferred():  # within another one: it waits for that
                    signal.raise_signal(number)
            assert came == []
        assert came == [*numbers]
        assert all(signal.getsignal(number) is note for number in numbers)
        with Deferred():
            signal.signal(signal.SIGUSR1, anything)
        assert signal.getsignal(signal.SIGUSR1) is anything
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
