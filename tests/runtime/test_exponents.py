"""Counts by exponent, and what they say of other loss scales, against numbers got another way."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from amp_audit.runtime import exponents
from amp_audit.runtime.exponents import Exponents, Histogram, flushed_shares, histogram, named
from amp_audit.runtime.rescale import choose
from amp_audit.trace import ranges
from amp_audit.trace.schema import Trace
from tests.runtime.recording import every_step_deep, notes, numbers, recorded

torch.set_num_threads(1)


def counted(*tensors: torch.Tensor) -> Histogram:
    counts: Exponents[int] = Exponents()
    for tensor in tensors:
        counts.add(0, tensor)
    return counts.read()[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_histogram_counts_what_frexp_says(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values = (torch.randn(40, 7) * 2.0 ** torch.randint(-14, 14, (40, 7))).to(dtype).t()
    values[0, 0], values[1, 1], values[2, 2] = 0.0, torch.inf, torch.nan
    finite = [x for x in values.flatten().tolist() if math.isfinite(x)]
    expected = Counter(str(math.frexp(x)[1] - 1) if x else "zero" for x in finite)
    assert named(counted(values)) == {**expected, "nonfinite": 2}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_large_tensor_is_counted_in_pieces(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    values = torch.randn(103, 7).to(dtype)
    whole = histogram(values)
    monkeypatch.setattr(exponents, "CHUNK", 50)
    assert histogram(values).tolist() == histogram(values.t()).tolist() == whole.tolist()
    assert int(whole.sum()) == 721


def test_histograms_of_tensors_add_up() -> None:
    counts: Exponents[str] = Exponents()
    one, two = torch.rand(50), torch.rand(3, 4).half()
    for tensor in (one, two):
        counts.add("both", tensor)
    counts.add("one", one)
    read = counts.read()
    assert read["both"] == counted(torch.cat([one, two.flatten().float()]))
    assert read["one"] == {exponent: int(count) for exponent, count in enumerate(histogram(one)) if count}


def test_what_another_scale_loses_is_what_rounding_at_that_scale_loses() -> None:
    torch.manual_seed(0)
    values = torch.randn(5000) * 2.0 ** torch.randint(-26, 4, (5000,))
    shares = flushed_shares(counted(values * 1024, torch.zeros(7)), 1024.0)
    assert set(shares) == set(range(11))
    for power, share in shares.items():
        assert share == torch.count_nonzero((values * 2.0**power).half() == 0).item() / 5000
    assert shares[0] > 0.01 and flushed_shares(counted(torch.zeros(3)), 1024.0) == {}


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "deep":
        layers = [layer for _ in range(5) for layer in (nn.Linear(32, 32), nn.GELU())]
        return nn.Sequential(*layers, nn.Linear(32, 16))
    if kind == "mlp":
        return nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, 16))
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.Flatten(), nn.Linear(6 * 16, 16))


def program(kind: str, scale: float) -> None:
    model = network(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    conv = kind == "conv"
    x, y = torch.randn((16, 2, 8, 8) if conv else (64, 32)), torch.randn(16 if conv else 64, 16)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x).float(), y) * 1e-3
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def run(kind: str, scale: float, folder: Path) -> Trace:
    with every_step_deep():
        trace = recorded(lambda: program(kind, scale), folder)
    assert notes(trace) == []
    return trace


ROUNDS = frozenset({"mm", "addmm", "sum", "gelu_backward", "convolution_backward", "div", "mul", "_to_copy"})
"""Operators of these networks' backward passes that round; the others move values."""


class Zeros(TorchDispatchMode):
    """Counts the elements of the backward pass in float16 that are not zero. Knows nothing of amp-audit."""

    def __init__(self, names: frozenset[str] = ROUNDS) -> None:
        super().__init__()
        self.names = names
        self.left = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if torch._C._current_graph_task_id() != -1 and func._schema.name.partition("::")[2] in self.names:
            halves = [t for t in (out if isinstance(out, tuple) else (out,)) if t is not None and t.dtype is torch.half]
            self.left += sum(int(torch.count_nonzero(half)) for half in halves)
        return out


def left(kind: str, scale: float) -> int:
    """What is not zero after both backward passes of the program, run by itself."""
    with Zeros() as counter:
        program(kind, scale)
    return counter.left


@pytest.mark.parametrize("kind", ["mlp", "conv", "deep"])
def test_one_run_tells_what_every_other_loss_scale_loses(kind: str, tmp_path: Path) -> None:
    """Predicted from one run with a safe scale; counted, element by element, in a run of each other scale.

    What was lost in all: an element that is zero because those it was made of had become zero counts, too.
    """
    trace = run(kind, 2.0**16, tmp_path)
    predicted = ranges.magnitudes(trace)
    by_exponent = ranges.Magnitudes(predicted.counts)
    shares = {power: 1 - left(kind, 2.0**power) / predicted.nonzero for power in range(13)}
    for power, lost in shares.items():
        assert predicted.flushed(power) / predicted.nonzero == pytest.approx(lost, abs=1e-3), power
    assert shares[0] > 0.02 and shares[12] < 0.002
    if kind == "deep":
        assert by_exponent.flushed(0) / predicted.nonzero - shares[0] > 0.01  # what the repeated backwards are for
    (told, *_) = numbers(trace, "rescaled")
    assert len({step.step for step in trace.steps for n in step.numbers if n.name == "rescaled"}) == 1
    assert told.values["0"]


def test_between_repeated_scales_the_correction_is_in_proportion() -> None:
    told = ranges.Magnitudes({-40: 500, 0: 500}, corrections={0: 0.04, 4: 0.02})
    assert [told.flushed(power) for power in (-3, 0, 1, 2, 4, 5, 9)] == [460, 460, 465, 470, 480, 500, 500]
    assert told.flushed(15) == 0 == ranges.Magnitudes({-26: 1}, corrections={0: 0.5}).flushed(1)


def test_only_a_lossy_range_of_scales_is_worth_a_backward_pass() -> None:
    shares = {power: 0.5 / 2**power for power in range(17)}
    assert choose(shares, below=16) == tuple(range(8))
    assert choose(shares, below=3) == (0, 1, 2)
    assert choose(dict.fromkeys(range(17), 0.001), below=16) == ()
    many = choose(dict.fromkeys(range(17), 0.4), below=16)
    assert len(many) == 12 and many[0] == 0 and many[-1] == 15


@pytest.mark.parametrize("kind", ["in place", "random"])
def test_a_backward_that_writes_in_place_is_repeated_and_a_random_one_is_not(kind: str, tmp_path: Path) -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            if kind == "random":
                return grad * torch.bernoulli(torch.full_like(grad, 0.9)) + torch.randn_like(grad).mul_(grad)
            buffer = torch.zeros(2, *grad.shape, dtype=grad.dtype)
            buffer[1].copy_(grad)
            buffer[1].mul_(0.7)
            torch.add(buffer[1], buffer[0], out=buffer[0])
            return buffer[0]

    def train(scale: float) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        x, y = torch.randn(64, 32), torch.randn(64, 16)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.mse_loss(Own.apply(model(x)).float(), y) * 1e-3
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    seen: list[torch.Tensor] = []
    with every_step_deep():
        trace = recorded(lambda: seen.extend(train(2.0**16)), tmp_path)
    assert notes(trace) == []
    assert all(torch.equal(one, two) for one, two in zip(seen, train(2.0**16), strict=True))
    assert trace.end is not None
    if kind == "random":
        assert numbers(trace, "rescaled") == []
        assert any(what.startswith("the backward pass at other loss scales") for what in trace.end.unobserved)
        return
    predicted = ranges.magnitudes(trace)
    with Zeros(ROUNDS | {"mul_", "add"}) as counter:
        train(1.0)
    assert predicted.flushed(0) / predicted.nonzero == pytest.approx(1 - counter.left / predicted.nonzero, abs=1e-3)


def test_overflow_at_another_scale_is_predicted(tmp_path: Path) -> None:
    predicted = ranges.magnitudes(run("mlp", 2.0**10, tmp_path / "low"))
    skipped = {
        power: any(n.values["skipped"] for n in numbers(run("mlp", 2.0**power, tmp_path / str(power)), "scale"))
        for power in (20, 24, 28, 30, 32)
    }
    assert {power: predicted.overflowed(power) > 0 for power in skipped} == skipped
    assert set(skipped.values()) == {True, False}


def test_the_exponents_of_a_gradient_are_those_of_the_gradient(tmp_path: Path) -> None:
    trace = run("mlp", 2.0**10, tmp_path)
    model = network("mlp")
    x, y = torch.randn(64, 32), torch.randn(64, 16)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x).float(), y) * 1e-3
    (loss * 1024).backward()
    told = {
        n.subject: dict(n.values) for n in trace.steps[0].numbers if n.name == "exponents" and n.phase == "gradient"
    }
    assert set(told) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        values = told[name]
        assert values.pop("scale") == 1024.0
        assert parameter.grad is not None
        assert values == named(counted(parameter.grad))


def test_what_is_measured_is_not_itself_recorded(tmp_path: Path) -> None:
    """A deep step has the operators of any other, in the places and phases of any other."""

    def train() -> None:
        model = network("mlp").half()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 32).half()).float().square().mean().backward()
            optimizer.step()

    def ops(trace: Trace) -> list[Counter[tuple[str, str]]]:
        return [Counter({(row.op, row.phase): row.calls for row in step.ops}) for step in trace.steps]

    plain = recorded(train, tmp_path / "plain", deep="none")
    deep = recorded(train, tmp_path / "deep", deep="all")
    assert [step.deep for step in deep.steps] == [True] * 3 and not any(step.deep for step in plain.steps)
    assert numbers(deep, "exponents") and numbers(deep, "lost_updates") and numbers(deep, "grad_norm")
    assert ops(deep) == ops(plain)
    assert not [row for step in deep.steps for row in step.ops if "scatter" in row.op or "shift" in row.op]


@pytest.mark.parametrize("unscale", [False, True])
def test_loss_and_gradient_norm_are_the_true_ones(unscale: bool, tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []

    def train() -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
        for _ in range(3):
            x, y = torch.randn(6, 8), torch.randn(6, 4)
            loss = nn.functional.mse_loss(model(x), y)
            grads = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            seen.append((loss.item(), torch.cat([grad.double().flatten() for grad in grads]).norm().item()))
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()

    trace = recorded(train, tmp_path)
    assert notes(trace) == []
    losses, norms = numbers(trace, "loss"), numbers(trace, "grad_norm")
    assert [n.values["value"] for n in losses] == pytest.approx([loss for loss, _ in seen], rel=1e-6)
    assert [n.values["norm"] for n in norms] == pytest.approx([norm for _, norm in seen], rel=1e-5)
    assert {n.values["scale"] for n in norms} == {1.0 if unscale else 4096.0}


@pytest.mark.parametrize("unscale", [True, False, None])
def test_the_norm_before_clipping_is_the_true_one(unscale: bool | None, tmp_path: Path) -> None:
    """None: without a scaler. Without ``unscale_`` what is clipped carries the scale, and what is told does not."""
    seen: list[float] = []

    def train() -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=unscale is not None)
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(2):
                scaler.scale(model(torch.randn(4, 8)).square().mean() / 2).backward()
            factor = 1.0 if unscale is None else 256.0
            seen.append(float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm()) / factor)  # type: ignore[union-attr]
            if unscale:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01, norm_type=1.0)
            scaler.step(optimizer)
            scaler.update()

    trace = recorded(train, tmp_path)
    assert notes(trace) == []
    found = [number.values.get("unscaled") for number in numbers(trace, "clip")]
    assert found[::2] == pytest.approx(seen, rel=1e-5)
    assert found[1::2] == [None] * 3


def test_headroom_is_that_of_the_largest_activation(tmp_path: Path) -> None:
    def train() -> None:
        torch.manual_seed(0)
        model = nn.Linear(16, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (model(torch.randn(16, 16)) * 9000).float().square().mean() * 1e-9
        loss.backward()
        optimizer.step()

    with every_step_deep():
        found = numbers(recorded(train, tmp_path), "range")
    torch.manual_seed(0)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        largest = (nn.Linear(16, 16)(torch.randn(16, 16)) * 9000).abs().max().item()
    assert (found[0].op, found[0].values["max"]) == ("aten.mul.Tensor", largest)
    assert ranges.headroom(largest) == pytest.approx(math.log2(65504) - math.log2(largest))


def test_the_constants_of_a_mask_are_no_magnitude_of_the_model(tmp_path: Path) -> None:
    def train() -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        hidden = torch.ones(8, 8, dtype=torch.bool).triu(1)
        added = torch.zeros(8, 8, dtype=torch.float16).masked_fill(hidden, -60000.0)
        with torch.autocast("cpu", dtype=torch.float16):
            h = model(torch.randn(8, 8))
            scores = h @ h.T
            one = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
            two = (scores + added).softmax(-1)
            loss = ((one + two) @ h).float().square().mean()
        (loss * 1024).backward()
        optimizer.step()

    with every_step_deep():
        assert numbers(recorded(train, tmp_path), "range") == []


def test_rounding_errors_are_those_against_float64(tmp_path: Path) -> None:
    def values() -> torch.Tensor:
        torch.manual_seed(0)
        return (torch.rand(64, 200) * 0.02 + 0.99).bfloat16()

    def train() -> None:
        w = nn.Parameter(torch.ones(()))
        optimizer = torch.optim.SGD([w], lr=0.0)
        (values().prod(1).float().mean() * w + (values() * 1.5).sum(1).float().mean()).backward()
        optimizer.step()

    with every_step_deep():
        (found,) = numbers(recorded(train, tmp_path), "rounding")  # the sum and the product by 1.5 round once
    exact, out = values().double().prod(1), values().prod(1).double()
    assert found.op == "aten.prod.dim_int"
    assert found.values["elements"] == 64
    assert found.values["errors"] == pytest.approx((out - exact).square().sum().item(), rel=1e-3)
    assert found.values["squares"] == pytest.approx(exact.square().sum().item(), rel=1e-5)
