"""Exact counts of what rounding lost, and where inf and NaN began, on plants whose truth is known otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from amp_audit.runtime.shadow import in_float32, part, repeatable
from amp_audit.trace.schema import CastRow, Trace
from tests.runtime.recording import every_step_deep, notes, numbers, recorded

torch.set_num_threads(1)


# What is run again


def test_what_must_not_run_twice() -> None:
    aten = torch.ops.aten
    assert repeatable(aten.mm.default) is True
    assert repeatable(aten.native_layer_norm_backward.default) is True
    assert repeatable(aten.native_batch_norm_backward.default) is True
    for func in (
        aten.native_batch_norm.default,
        aten.native_dropout.default,
        aten.bernoulli_.float,
        aten.add_.Tensor,
        aten.randn_like.default,
        aten.empty_like.default,
        torch.ops._c10d_functional.all_reduce.default,
    ):
        assert repeatable(func) is False, func
    for func in (aten.t.default, aten.view.default, aten.cat.default):
        assert repeatable(func) is None, func


aten = torch.ops.aten
PARTS = {
    "mm": (aten.mm.default, [(300, 70), (70, 50)], {}),
    "few rows": (aten.mm.default, [(3, 70), (70, 5000)], {}),
    "addmm": (aten.addmm.default, [(50,), (300, 70), (70, 50)], {"beta": 0.5, "alpha": 2.0}),
    "addmm by rows": (aten.addmm.default, [(300, 50), (300, 70), (70, 50)], {}),
    "bmm": (aten.bmm.default, [(4, 300, 70), (4, 70, 50)], {}),
    "baddbmm": (aten.baddbmm.default, [(1, 300, 50), (4, 300, 70), (4, 70, 50)], {}),
    "convolution": (aten.convolution.default, [(16, 3, 20, 20), (4, 3, 3, 3), (4,)], {}),
    "elementwise": (aten.gelu_backward.default, [(300, 70), (300, 70)], {"approximate": "tanh"}),
    "a scalar": (aten.mul.Tensor, [(300, 70), ()], {}),
    "broadcast": (aten.mul.Tensor, [(300, 70), (70,)], {}),
    "transposed": (aten.mul.Tensor, [(300, 70), (300, 70)], {}),
    "a sum": (aten.sum.dim_IntList, [(300, 7000)], {"dim": [0]}),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_an_operator_gives_what_the_whole_one_gives(name: str) -> None:
    func, shapes, kwargs = PARTS[name]
    torch.manual_seed(0)
    args = [torch.randn(shape).bfloat16() for shape in shapes]
    if name == "transposed":
        args = [arg.t().contiguous().t() for arg in args]
    if "dim" in kwargs:
        args.append(kwargs.pop("dim"))
    if name == "convolution":
        args += [[1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    out = func(*args, **kwargs)
    some_args, some_kwargs, (some,) = part(func, tuple(args), kwargs, [out])
    (reference,) = in_float32(func, some_args, some_kwargs)
    assert reference is not None and reference.shape == some.shape and reference.dtype is torch.float32
    assert some.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
    torch.testing.assert_close(reference, some.float(), rtol=2**-7, atol=0.02)
    whole = name in ("broadcast", "transposed", "a sum")
    assert (some.numel() == out.numel()) is whole
    assert 1000 <= some.numel() <= 8200 or whole
    if not whole and some.dim() > 1:
        assert some.shape[-1] == out.shape[-1]  # all columns


@pytest.mark.parametrize("masked", [False, True])
def test_some_of_the_batch_of_an_attention_give_what_they_give_in_the_whole_batch(masked: bool) -> None:
    torch.manual_seed(0)
    q, k, v, grad = (torch.randn(8, 2, 40, 16).bfloat16() for _ in range(4))
    kwargs = {"attn_mask": torch.randn(8, 1, 40, 40).bfloat16()} if masked else {}
    forward, backward = (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    )
    out = forward(q, k, v, 0.0, not masked, **kwargs)
    for func, args, results in (
        (forward, (q, k, v, 0.0, not masked), out),
        (backward, (grad, q, k, v, *out, 0.0, not masked), backward(grad, q, k, v, *out, 0.0, not masked, **kwargs)),
    ):
        some_args, some_kwargs, some = part(func, args, kwargs, list(results))
        references = in_float32(func, some_args, some_kwargs)
        assert len(references) == len(some) == len(results)
        for reference, result in zip(references, some, strict=True):
            assert reference is not None and reference.shape == result.shape and result.shape[0] == 2
            torch.testing.assert_close(reference, result.float(), rtol=0.02, atol=0.02)


# The plants


class Plant(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 64), nn.Linear(64, 64)
        self.norm, self.out, self.gain = nn.LayerNorm(64), nn.Linear(64, 8), gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.fc2(self.fc1(x).relu())
        h = h * self.gain
        return self.out(self.norm(h))


def plant(gain: float = 1.0, factor: float = 1.0, scale: float | None = None) -> Callable[[], None]:
    def run() -> None:
        torch.manual_seed(0)
        model = Plant(gain)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        x, y = torch.randn(32, 64), torch.randn(32, 8)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x).float(), y) * factor
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return run


def record(run: Callable[[], None], folder: Path) -> Trace:
    with every_step_deep():
        trace = recorded(run, folder)
    assert notes(trace) == []
    return trace


def lost(trace: Trace) -> dict[str, float]:
    """Shares of flushed elements in the first step's backward, by operator."""
    first = trace.steps[0]
    found: dict[str, list[int]] = {}
    for name, nonzero, flushed in [
        *((row.target, row.nonzero or 0, row.flushed or 0) for row in first.casts if _down(row)),
        *(
            (str(n.op), n.values["nonzero"], n.values["flushed"])
            for n in first.numbers
            if n.name == "underflow" and n.phase == "backward"
        ),
    ]:
        total = found.setdefault(name, [0, 0])
        total[0] += int(nonzero or 0)
        total[1] += int(flushed or 0)
    return {name: flushed / nonzero if nonzero else 0.0 for name, (nonzero, flushed) in found.items()}


def _down(row: CastRow) -> bool:
    return row.phase == "backward" and row.target == "float16"


def test_a_clean_run_loses_nothing(tmp_path: Path) -> None:
    trace = record(plant(scale=1024.0), tmp_path)
    assert max(lost(trace).values()) < 0.001
    assert numbers(trace, "nonfinite") == []
    assert all(number.values["scale"] == 1024.0 for number in numbers(trace, "gradient"))


def test_full_underflow_is_the_one_cast_at_the_loss(tmp_path: Path) -> None:
    shares = lost(record(plant(factor=1e-7), tmp_path))
    assert shares.pop("float16") == 1.0
    assert set(shares.values()) == {0.0}


def test_partial_underflow_is_counted_where_it_happens(tmp_path: Path) -> None:
    shares = lost(record(plant(factor=2e-5), tmp_path))
    flushing = {name for name, share in shares.items() if share > 0.02}
    assert "aten.mm.default" in flushing
    assert "aten.threshold_backward.default" not in shares
    assert all(0.0 <= share < 0.6 for share in shares.values())


def test_an_embedding_of_which_few_rows_are_used_loses_nothing(tmp_path: Path) -> None:
    def run() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5000, 32), nn.Linear(32, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.arange(32)).float().square().mean()
        (loss * 1024).backward()
        optimizer.step()

    assert max(lost(record(run, tmp_path)).values()) < 0.001


def test_gradients_are_counted_by_parameter(tmp_path: Path) -> None:
    trace = record(plant(factor=2e-5), tmp_path)
    weights = {n.subject: n.values for n in trace.steps[0].numbers if n.name == "gradient"}
    assert weights["fc1.weight"]["elements"] == 64 * 64
    assert {"fc1.weight", "fc2.weight", "out.weight"} <= set(weights)
    assert 0.0 < weights["fc1.weight"]["flushed"] / weights["fc1.weight"]["nonzero"] < 0.3


def test_overflow_is_traced_to_the_product_that_made_it(tmp_path: Path) -> None:
    trace = record(plant(gain=3e5, scale=1.0), tmp_path)
    first = numbers(trace, "nonfinite")[0]
    assert first.op == "aten.mul.Tensor"
    assert first.phase == "forward"
    assert first.place is not None and first.place.line is not None
    assert "self.gain" in Path(__file__).read_text().splitlines()[first.place.line - 1]
    torch.manual_seed(0)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        model = Plant(3e5)
        h = model.fc2(model.fc1(torch.randn(32, 64)).relu()) * 3e5
    assert first.values["inf"] == h.isinf().sum().item()
    assert first.values["nan"] == 0


def test_an_overflow_of_the_scaled_gradient_is_in_the_backward_pass(tmp_path: Path) -> None:
    first = numbers(record(plant(scale=2.0**30), tmp_path), "nonfinite")[0]
    assert (first.op, first.phase) == ("aten._to_copy.default", "backward")


def masked(full_row: bool) -> Callable[[], None]:
    def run() -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        mask = torch.ones(8, 8, dtype=torch.bool).triu(1)
        mask[3] |= full_row
        with torch.autocast("cpu", dtype=torch.float16):
            h = model(torch.randn(8, 8))
            scores = (h @ h.T).masked_fill(mask, float("-inf"))
            loss = (scores.softmax(-1) @ h).float().square().mean()
        loss.backward()
        optimizer.step()

    return run


def test_a_mask_of_minus_infinity_is_never_blamed(tmp_path: Path) -> None:
    assert numbers(record(masked(False), tmp_path), "nonfinite") == []
    (found,) = numbers(record(masked(True), tmp_path / "full"), "nonfinite")
    assert found.op == "aten._softmax.default"


def test_what_came_in_bad_has_no_operator(tmp_path: Path) -> None:
    def run() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        table = torch.frombuffer(bytearray(torch.full((2, 4), torch.nan).numpy().tobytes()), dtype=torch.float32)
        model(table.reshape(2, 4)).sum().backward()
        optimizer.step()

    (found,) = numbers(record(run, tmp_path), "nonfinite")
    assert found.op is None


def test_the_first_step_is_followed_though_it_is_not_deep(tmp_path: Path) -> None:
    """Without a scaler all is NaN after it, and no later step could tell where that began."""

    def run() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = model[0](torch.randn(4, 8))
                loss = model[1]((h - h).sqrt()).float().square().mean()  # its backward divides by zero
            loss.backward()
            optimizer.step()

    trace = recorded(run, tmp_path)
    assert [step.deep for step in trace.steps if not step.open] == [False, True, True]
    first, *later = numbers(trace, "nonfinite")
    assert (first.op, first.phase) == ("aten.div.Tensor", "backward")
    assert all(one.op is None for one in later)
    assert not [number for number in trace.steps[0].numbers if number.name in ("underflow", "rounding", "gradient")]
    none = recorded(run, tmp_path / "none", deep="none")
    assert numbers(none, "nonfinite") == []


@pytest.mark.parametrize("autocast", [False, True])
def test_a_weight_that_holds_inf_is_told_and_no_operator_is_blamed(autocast: bool, tmp_path: Path) -> None:
    """inf times weights of both signs makes NaN, out of what the latest step of the optimizer has left."""

    def run() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
        with torch.no_grad():
            model[1].weight[:, :2] = torch.inf
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(torch.randn(8, 8)).float().square().mean()
        loss.backward()
        optimizer.step()

    (found,) = numbers(record(run, tmp_path), "nonfinite")
    assert (found.op, found.place, found.subject) == (None, None, "1.weight")
    assert (found.values["inf"], found.values["elements"]) == (8, 32)


# Nothing changes


def train(seen: list[torch.Tensor]) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.3), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(8, 16)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        seen += [loss.detach().clone(), *(value.clone() for value in model.state_dict().values())]
    seen.append(torch.rand(3))


def test_deep_steps_leave_every_number_bit_for_bit(tmp_path: Path) -> None:
    plain: list[torch.Tensor] = []
    watched: list[torch.Tensor] = []
    train(plain)
    record(lambda: train(watched), tmp_path)
    assert len(plain) == len(watched)
    assert all(torch.equal(one, two) for one, two in zip(plain, watched, strict=True))


def test_no_tensor_outlives_its_step(tmp_path: Path) -> None:
    import gc
    import weakref

    alive: list[weakref.ref[torch.Tensor]] = []

    def run() -> None:
        model = nn.Linear(16, 16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(8, 16)
            with torch.autocast("cpu", dtype=torch.float16):
                h = model(x)
                loss = h.float().square().mean()
            loss.backward()
            optimizer.step()
            alive[:] = [reference for reference in alive if reference() is not None]
            alive.extend([weakref.ref(x), weakref.ref(h), weakref.ref(loss)])
        model(torch.randn(8, 16))
        del x, h, loss
        gc.collect()
        alive[:] = [reference for reference in alive if reference() is not None]

    record(run, tmp_path)
    assert alive == []
