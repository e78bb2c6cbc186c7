"""How long operators take, against operators whose time is known because they sleep."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from amp_audit.report.summary import summarize
from amp_audit.runtime import numerics
from amp_audit.runtime.stopwatch import Stopwatch
from amp_audit.trace.schema import Trace
from tests.runtime.recording import every_step_deep, notes, recorded

torch.set_num_threads(1)

NAP = 0.03


@torch.library.custom_op("amp_audit_test::nap", mutates_args=())
def nap(x: torch.Tensor) -> torch.Tensor:
    time.sleep(NAP if x.dtype is torch.float16 else 2 * NAP)
    return x.clone()


def sleep() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.0)
    for _ in range(2):
        nap(nn.Identity()(torch.ones(2, dtype=torch.float16)))
        nap(torch.ones(2))
        optimizer.step()


def run(folder: Path, *, deep: bool = True) -> Trace:
    if deep:
        with every_step_deep():
            trace = recorded(sleep, folder)
    else:
        trace = recorded(sleep, folder, deep="none")
    assert notes(trace) == []
    return trace


def test_the_time_of_an_operator_is_told_by_dtype(tmp_path: Path) -> None:
    trace = run(tmp_path)
    naps = {row.inputs: row.nanoseconds for row in trace.steps[0].ops if "nap" in row.op}
    assert 1e9 * NAP <= naps["float16",] < 2e9 * NAP <= naps["float32",] < 4e9 * NAP  # type: ignore[operator]
    times = summarize([trace]).times
    assert times is not None and times.steps == 2
    assert [name for name, _ in times.nanoseconds] == ["float16", "float32"]
    half, full = (spent for _, spent in times.nanoseconds)
    assert full / half == pytest.approx(2.0, rel=0.3)


def test_only_deep_steps_are_timed(tmp_path: Path) -> None:
    trace = run(tmp_path, deep=False)
    assert not any(row.nanoseconds for step in trace.steps for row in step.ops)
    assert summarize([trace]).times is None


def test_what_runs_again_is_not_in_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = numerics.in_float32

    def slowly(*args: Any) -> Any:
        time.sleep(NAP)
        return original(*args)

    monkeypatch.setattr(numerics, "in_float32", slowly)
    half = torch.ones(4, 4, dtype=torch.float16)

    def multiply() -> None:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.0)
        for _ in range(2):
            half @ half
            half.float()
            optimizer.step()

    with every_step_deep():
        trace = recorded(multiply, tmp_path)
    products = [row.nanoseconds for step in trace.steps for row in step.ops if row.op == "aten.mm"]
    assert len(products) == 2 and all(0 < spent < 1e9 * NAP for spent in products if spent is not None)
    casts = [cast.nanoseconds for step in trace.steps for cast in step.casts]
    assert len(casts) == 2 and all(casts)
    assert summarize([trace]).casts[0].nanoseconds == sum(casts)  # type: ignore[arg-type]


class Event:
    """An event in a stream that takes 2 ms from each event to the next."""

    made: ClassVar[list[Event]] = []

    def __init__(self) -> None:
        self.at: int | None = None
        self.waited = False

    def record(self) -> None:
        self.made.append(self)
        self.at = len(self.made)

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, other: Event) -> float:
        assert other.waited and self.at is not None and other.at is not None
        return 2.0 * (other.at - self.at)


class Row:
    nanoseconds = 0


def test_on_a_gpu_nothing_is_waited_for_until_the_step_is_over() -> None:
    stopwatch = Stopwatch(Event)
    row = Row()
    for _ in range(3):
        out, spent = stopwatch.run(lambda x: x, ("result",), {}, True)
        assert out == "result"
        stopwatch.book(row, spent)
    assert row.nanoseconds == 0 and not any(event.waited for event in Event.made)
    stopwatch.read()
    stopwatch.read()
    assert row.nanoseconds == 3 * 2_000_000
