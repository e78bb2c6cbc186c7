"""Memory of live tensors, against sizes known by hand and against torch's profiler."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from amp_audit.report.summary import summarize
from amp_audit.runtime.live import Live, _Device, _Memory
from amp_audit.trace.schema import Trace
from tests.runtime import programs
from tests.runtime.recording import every_step_deep, notes, numbers, recorded

torch.set_num_threads(1)
N = 4096


def run(program: Callable[[], object], folder: Path) -> Trace:
    with every_step_deep():
        trace = recorded(program, folder)
    assert notes(trace) == []
    return trace


def test_the_peak_is_that_of_the_tensors_that_are_alive_together(tmp_path: Path) -> None:
    def program() -> None:
        weight = nn.Parameter(torch.ones(N))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        low = weight.bfloat16()  # 2 N; stays for a while
        y = (low * low).float()  # 2 N, which is freed when y is there: it is not kept for backward
        z = y.exp()  # 4 N, y is freed below
        del y
        loss = z.sum()
        del low, z  # autograd keeps both
        loss.backward()
        optimizer.step()

    (live,) = summarize([run(program, tmp_path)]).live
    kept = {"float32": 4 * N, "bfloat16": 2 * N}  # the weight and its copy
    moments = [
        {"float32": kept["float32"] + 4 * N, "bfloat16": kept["bfloat16"] + 2 * N},  # y beside the product
        {"float32": kept["float32"] + 8 * N, "bfloat16": kept["bfloat16"]},  # y and z
        {"float32": kept["float32"] + 8 * N, "bfloat16": kept["bfloat16"]},  # z and its gradient
    ]
    most = max(sum(moment.values()) for moment in moments)
    assert most <= live.bytes <= most + 64  # a few scalars beside
    assert live.device == "cpu" and live.step == 1
    assert {name: amount // N * N for name, amount in live.dtypes} in moments


class Loop:
    """Steps of a small network under bfloat16 autocast."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)
        self.x = torch.randn(128, 128)

    def step(self) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.model(self.x * 1.0).float().square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def standing(self) -> int:
        """Bytes that are there between two steps, without ``x``."""
        states = [item for state in self.optimizer.state.values() for item in state.values()]
        return sum(tensor.nbytes for tensor in (*self.model.parameters(), *states))


def allocated() -> int:
    """What a step takes at most, by what the profiler says was allocated and freed in it."""
    loop = Loop()
    loop.step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        loop.step()
    assert profiled.profiler is not None and profiled.profiler.kineto_results is not None
    now = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return loop.standing() + most


def test_the_peak_is_that_of_the_allocator(tmp_path: Path) -> None:
    def program() -> None:
        loop = Loop()
        for _ in range(3):
            loop.step()

    steps = [step for step in run(program, tmp_path).steps if step.step > 1]  # ``x`` was made in the first
    told = [number.values["together"] for step in steps for number in step.numbers if number.name == "live"]
    assert max(filter(None, told)) == pytest.approx(allocated(), rel=0.05)  # kernels allocate for themselves, too


def test_views_and_writes_into_what_is_there_count_once(tmp_path: Path) -> None:
    def program() -> None:
        weight = nn.Parameter(torch.ones(N))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        x = torch.zeros(N)
        for part in x.view(4, -1):
            part.add_(1.0)
        (x.view(2, -1).t().reshape(-1).mul_(2.0) * 0.5).sum()
        weight.grad = torch.zeros(N)
        optimizer.step()

    (live,) = summarize([run(program, tmp_path)]).live
    assert 4 * 4 * N <= live.bytes <= 4 * 4 * N + 64  # weight, x, the reordered copy, and its half


def test_nothing_is_kept_alive_and_nothing_is_followed_for_ever(tmp_path: Path) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    parts: list[Live] = []

    def program() -> None:
        weight = nn.Parameter(torch.ones(N))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        gc.disable()
        try:
            for _ in range(3):
                y = weight.exp()
                alive.append(weakref.ref(y))
                y.sum().backward()
                del y
                assert alive[-1]() is None
                optimizer.step()
                optimizer.zero_grad()
        finally:
            gc.enable()
        parts.extend(item for item in gc.get_objects() if type(item) is Live)

    assert numbers(run(program, tmp_path), "live")
    assert len(alive) == 3 and parts and all(part._memory is None for part in parts)


def test_steps_that_are_not_deep_tell_nothing(tmp_path: Path) -> None:
    step = programs.gpt()
    trace = recorded(lambda: [step() for _ in range(3)], tmp_path, deep="none")
    assert numbers(trace, "live") == [] and summarize([trace]).live == ()


@pytest.mark.parametrize("at", ["before", "after"])
def test_an_exception_between_two_stores_loses_nothing_and_doubles_nothing(at: str) -> None:
    memory = _Memory()
    first = torch.ones(N)
    memory.add(first)
    count = _Device.add

    def interrupted(held: _Device, dtype: torch.dtype, amount: int) -> None:
        if at == "after":
            count(held, dtype, amount)
        raise KeyboardInterrupt

    second = torch.ones(N, dtype=torch.float16)
    with mock.patch.object(_Device, "add", interrupted), pytest.raises(KeyboardInterrupt):
        memory.add(second)
    with mock.patch.object(_Device, "add", interrupted), pytest.raises(KeyboardInterrupt):
        del first
        memory.add(second)  # which sweeps what is gone
    third = torch.ones(4 * N, dtype=torch.bfloat16)
    memory.add(third)
    memory.add(second)
    (peak,) = memory.close().values()
    assert peak == {torch.float16: 2 * N, torch.bfloat16: 8 * N}
    (held,) = memory._devices.values()
    assert held.total == 10 * N
