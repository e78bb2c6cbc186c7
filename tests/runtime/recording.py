"""Run a piece of code in this process under the audit, and read back what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from torch import nn

from amp_audit.runtime import clock
from amp_audit.runtime.attach import Config
from amp_audit.runtime.session import Session
from amp_audit.trace import reader
from amp_audit.trace.schema import EventRow, Number, Trace


@contextmanager
def every_step_deep() -> Iterator[None]:
    """A short run has few deep steps; here each one is."""
    begin = clock.Clock.begin
    with mock.patch.object(clock.Clock, "begin", lambda self: clock.Plan(begin(self).recorded, deep=True)):
        yield


def recorded(run: Callable[[], object], folder: Path, *, sample: str = "all", deep: str = "default") -> Trace:
    """The trace of what ``run`` does; an exception of its own ends it and is no failure."""
    session = Session(Config(trace_dir=str(folder / "trace"), sample=sample, deep=deep, go_on=True, main=True))
    session.begin()
    reason = "failed"
    try:
        run()
        reason = "finished"
    except Exception as error:
        session.died(error)
    finally:
        session.close(reason)
    (trace,) = reader.read(folder / "trace")
    return trace


def events(trace: Trace) -> list[EventRow]:
    return [row for step in trace.steps for row in step.events]


def kinds(trace: Trace) -> list[str]:
    return [row.kind for row in events(trace)]


def numbers(trace: Trace, name: str) -> list[Number]:
    return [number for step in trace.steps for number in step.numbers if number.name == name]


def notes(trace: Trace) -> list[str]:
    """What went wrong."""
    return [note for step in trace.steps for note in step.notes]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def loss_of(model: nn.Module, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    with torch.autocast("cpu", dtype=dtype):
        return model(torch.randn(4, 8)).float().square().mean()


def named(rows: list[EventRow], kind: str) -> list[EventRow]:
    return [row for row in rows if row.kind == kind]
