"""Exponents of gradients and of module outputs on steps that are recorded and not deep, against tensors kept."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from amp_audit.runtime.clock import Clock, Plan
from amp_audit.runtime.spreads import Spreads
from amp_audit.trace.schema import Trace
from tests.runtime.recording import notes, numbers, recorded

torch.set_num_threads(1)


def by_exponent(tensor: torch.Tensor) -> dict[str, int]:
    numbers_ = tensor.double().flatten().tolist()
    finite = Counter(str(math.frexp(x)[1] - 1) if x else "zero" for x in numbers_ if math.isfinite(x))
    bad = len(numbers_) - sum(finite.values())
    return {**finite, **({"nonfinite": bad} if bad else {})}


def spreads(trace: Trace, phase: str) -> list[tuple[str | None, str | None, dict[str, Any]]]:
    found = [number for number in numbers(trace, "exponents") if number.phase == phase]
    return [(number.subject, number.dtype, dict(number.values)) for number in found]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.split = nn.Linear(16, 32), nn.Linear(32, 8), Split()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.split(self.second(self.first(x).relu()))
        return one + two


class Split(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x[:, :4], x[:, 4:]


def train(kept: list[dict[str, torch.Tensor]] | None = None, steps: int = 2, largest: float = 1.0) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x = torch.randn(6, 16)
    gain = largest / nn.functional.linear(x, model.first.weight).abs().max().item()
    x *= gain
    for _ in range(steps):
        with torch.autocast("cpu", torch.float16):
            loss = (model(x).float() / gain).square().mean() / gain
        scaler.scale(loss).backward()
        if kept is not None:
            with torch.autocast("cpu", torch.float16):
                hidden = nn.functional.linear(x, model.first.weight, model.first.bias)
                out = nn.functional.linear(hidden.relu(), model.second.weight, model.second.bias)
            outputs = {"first": hidden, "second": out, "split": out, "": out[:, :4] + out[:, 4:]}
            kept.append({**outputs, **{n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}})
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def test_gradients_and_outputs_are_counted_on_recorded_steps(tmp_path: Path) -> None:
    kept: list[dict[str, torch.Tensor]] = []
    trace = recorded(lambda: train(kept), tmp_path, deep="none")
    assert notes(trace) == [] and not any(step.deep for step in trace.steps)
    gradients, outputs = spreads(trace, "gradient"), spreads(trace, "output")
    names = [name for name, _ in Net().named_parameters()]
    assert len(kept) == 2
    assert gradients == [
        (name, "float32", {**by_exponent(step[name]), "scale": 1024.0}) for step in kept for name in names
    ]
    assert outputs == [
        (name, "float16", by_exponent(step[name])) for step in kept for name in ("first", "second", "split", "")
    ]


def test_what_a_checkpoint_computes_again_is_counted_once(tmp_path: Path) -> None:
    def run() -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cpu", torch.bfloat16):
            checkpoint(model, torch.ones(4, 8), use_reentrant=False).float().sum().backward()
        optimizer.step()

    ((_, dtype, values),) = spreads(recorded(run, tmp_path, deep="none"), "output")
    assert (dtype, sum(values.values())) == ("bfloat16", 32)


def test_outputs_in_and_outside_of_inference_mode_add_up(tmp_path: Path) -> None:
    def run() -> None:
        model = nn.Linear(8, 8).bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(4, 8).bfloat16()
        with torch.inference_mode():
            model(x)
        model(x).float().sum().backward()
        with torch.inference_mode():
            model(x)
        optimizer.step()

    trace = recorded(run, tmp_path, deep="none")
    ((_, _, values),) = spreads(trace, "output")
    assert notes(trace) == [] and sum(values.values()) == 3 * 32


def test_inside_a_transform_or_a_trace_nothing_is_counted(tmp_path: Path) -> None:
    traced: list[Any] = []

    def run() -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 8).bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = torch.ones(3, 4, 8).bfloat16()
        torch.func.vmap(model)(batch).float().sum().backward()
        traced.append(torch.jit.trace(model, batch[0], check_trace=False))
        optimizer.step()

    trace = recorded(run, tmp_path, deep="none")
    assert notes(trace) == [] and spreads(trace, "output") == []
    assert "bincount" not in str(traced[0].graph) and "linear" in str(traced[0].graph)


@pytest.mark.parametrize("largest", [1.0, 40000.0])
def test_the_step_after_an_output_near_overflow_is_looked_at_closely(largest: float, tmp_path: Path) -> None:
    begin = Clock.begin
    asked: list[int] = []

    def quiet(clock: Clock) -> Plan:  # but for what is asked for, no step is deep
        plan = begin(clock)
        odd = clock._odd + 1 > 0 and clock.step == clock._odd
        asked.extend([clock.step] if odd else [])
        return Plan(plan.recorded, deep=odd)

    with mock.patch.object(Clock, "begin", quiet):
        trace = recorded(lambda: train(steps=4, largest=largest), tmp_path)
    assert notes(trace) == [] and not any(number.values["skipped"] for number in numbers(trace, "scale"))
    deep = [step.step for step in trace.steps if step.deep]
    assert deep == ([2] if largest > 1 else []) and bool(asked) is (largest > 1)


def test_a_failure_is_told_and_stays_ours(tmp_path: Path) -> None:
    with mock.patch.object(Spreads, "left", side_effect=RuntimeError("planted")):
        trace = recorded(train, tmp_path, deep="none")
    assert len(trace.steps) == 2
    assert notes(trace) == ["module names failed and was turned off: RuntimeError: planted"]
