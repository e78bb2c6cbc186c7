"""A program that a signal handler's exception cuts off at any point trains on as without us, and is seen as before."""

from __future__ import annotations

import copy
import dataclasses
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from amp_audit.runtime.attach import Config
from amp_audit.runtime.session import Session
from amp_audit.trace import reader
from amp_audit.trace.schema import StepRecord
from tests.runtime.interrupting import Interrupter

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="timers and signals of POSIX")
torch.set_num_threads(1)


class Late(Exception):
    pass


def late(number: int, frame: FrameType | None) -> None:
    raise Late


class Program:
    """Training on one batch, again and again from the same beginning."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.x, self.y = torch.randn(16, 8), torch.randint(0, 2, (16,))
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        self.step()
        self._kept = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def restore(self) -> None:
        """As it was, whatever an exception left, within torch as well."""
        torch.set_autocast_enabled("cpu", False)
        torch.set_grad_enabled(True)
        torch.autocast_increment_nesting()
        while torch.autocast_decrement_nesting() > 0:
            pass
        torch.clear_autocast_cache()
        model, optimizer = copy.deepcopy(self._kept)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.optimizer.zero_grad()
        self.scaler._per_optimizer_states.clear()

    def again(self) -> list[float]:
        """A step that nothing interrupts, and what it gives."""
        self.restore()
        loss = self.step()
        return [loss, *(float(parameter.detach().double().sum()) for parameter in self.model.parameters())]

    def loss(self, rows: slice = slice(None), dtype: torch.dtype = torch.float16) -> torch.Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return nn.functional.cross_entropy(self.model(self.x[rows]), self.y[rows])

    def step(self) -> float:
        loss = self.loss()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.item()


class Plain(Program):
    def step(self) -> float:
        loss = self.loss(dtype=torch.bfloat16)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


class Accumulated(Program):
    def step(self) -> float:
        for rows in (slice(0, 8), slice(8, 16)):
            loss = self.loss(rows) / 2
            self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()


class Checkpointed(Program):
    def step(self) -> float:
        with torch.autocast("cpu", dtype=torch.float16):
            hidden = checkpoint(self.model[:2], self.x, use_reentrant=False)
            loss = nn.functional.cross_entropy(self.model[2](hidden), self.y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()


class Alternating(Program):
    def __init__(self) -> None:
        self.other = nn.Linear(2, 1)
        self.others = torch.optim.SGD(self.other.parameters(), lr=0.0)
        super().__init__()

    def step(self) -> float:
        found = 0.0
        for optimizer in (self.others, self.optimizer):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = self.other(self.model(self.x)).float().mean()
            self.others.zero_grad()
            loss.backward()
            optimizer.step()
            found += loss.item()
        return found


class WithClosure(Program):
    def step(self) -> float:
        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.loss(dtype=torch.bfloat16)
            loss.backward()
            return loss

        return self.optimizer.step(closure).item()  # type: ignore[arg-type, union-attr]


class WithThreads(Plain):
    """As in nn.DataParallel, a thread runs a model of the step."""

    def step(self) -> float:
        thread = threading.Thread(target=lambda: self.model(self.x))
        thread.start()
        thread.join()
        return super().step()


@pytest.fixture
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("handler")
@pytest.mark.parametrize(
    ("make", "deep", "sample", "everywhere", "count"),
    [
        (Program, "none", "all", False, 30),
        (Program, "all", "all", False, 20),
        (Program, "default", "2", False, 20),
        (Program, "none", "all", True, 30),
        (Plain, "none", "1000", False, 25),
        (Accumulated, "all", "all", False, 8),
        (Checkpointed, "none", "all", False, 12),
        (Alternating, "none", "all", True, 15),
        (WithClosure, "none", "all", True, 15),
        (WithThreads, "none", "all", False, 12),
    ],
)
def test_a_step_is_cut_off_anywhere(
    make: Callable[[], Program], deep: str, sample: str, everywhere: bool, count: int, tmp_path: Path
) -> None:
    program = make()
    expected = program.again()
    session = Session(Config(trace_dir=str(tmp_path), sample=sample, deep=deep, go_on=True, main=True))
    session.begin()
    try:
        steps = _interrupted(program, expected, session, Interrupter(everywhere=everywhere), count)
    finally:
        session.close("finished")
    assert torch._C._len_torch_dispatch_stack() == 0 and signal.getsignal(signal.SIGALRM) is late
    (trace,) = reader.read(tmp_path)
    assert [note for record in trace.steps for note in record.notes] == []
    assert trace.end is not None and trace.end.notes == []
    records = {record.step: record for record in trace.steps}
    known: dict[tuple[bool, bool], Any] = {}
    for step in steps:
        record = records[step]
        assert known.setdefault((record.recorded, record.deep), _told(record)) == _told(record)


def _interrupted(
    program: Program, expected: Sequence[float], session: Session, interrupter: Interrupter, count: int
) -> list[int]:
    """Numbers of whole steps: some before the first one was cut off, then one after each."""
    chance = random.Random(count)
    whole: list[int] = []
    points = {}
    for _ in range(24):  # among them one of each kind
        assert program.again() == expected
        whole.append(session.clock.step)
    for _ in range(2):
        program.restore()
        points.update(interrupter.points(program.step))
    for point in chance.sample(list(points), count):
        program.restore()
        before = session.clock.step
        try:
            interrupter.strike(program.step, point, chance.randint(1, points[point]))
        except Late:
            assert interrupter.sent
        else:
            assert not interrupter.sent
        assert signal.getsignal(signal.SIGALRM) is late and torch._C._len_torch_dispatch_stack() <= 1
        for _ in range(3):  # the first is also about what was cut off, the last about what follows the second
            assert program.again() == expected
            whole.append(session.clock.step)
        assert whole[-3:] == [*range(whole[-1] - 2, whole[-1] + 1)] and before < whole[-3] <= before + 2
        del whole[-1], whole[-2]
    return whole[3:]


def _told(record: StepRecord) -> Any:
    """What a record says but for times and numbers that count on."""
    rows = [*record.ops, *record.casts, *record.numbers]
    counted = sorted(repr({**dataclasses.asdict(row), "nanoseconds": 0}) for row in rows)
    return counted, [dataclasses.replace(event, region=None) for event in record.events]
