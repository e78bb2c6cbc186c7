"""Bytes saved for backward, against what autograd hands to hooks on saved tensors in another run of the program."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from amp_audit.report.summary import summarize
from amp_audit.runtime.saved import _TELLS
from tests.runtime import programs
from tests.runtime.recording import every_step_deep, notes, numbers, recorded

torch.set_num_threads(1)
pytestmark = pytest.mark.skipif(not _TELLS, reason="this torch does not tell what is saved")

Loss = Callable[[], torch.Tensor]
Model = tuple[nn.Module, Loss]


def gpt(dtype: torch.dtype | None = torch.bfloat16) -> Model:
    torch.manual_seed(0)
    model = programs.GPT()
    tokens, targets = torch.randint(0, 16, (2, 3, 4))

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            return F.cross_entropy(model(tokens).view(-1, 16), targets.reshape(-1))

    return model, loss


def cnn() -> Model:
    torch.manual_seed(0)
    model = programs.CNN()
    images, targets = torch.randn(2, 1, 10, 10), torch.tensor([1, 2])
    return model, lambda: F.cross_entropy(model(images), targets)


def own_function() -> Model:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    x = torch.randn(4, 8)
    return model, lambda: programs.Double.apply(model(x).split(4, 1)[0]).sum()


MODELS: dict[str, Callable[[], Model]] = {
    "gpt": gpt,
    "gpt float32": lambda: gpt(None),
    "cnn": cnn,
    "own function, part of a tensor": own_function,
}


def packed(make: Callable[[], Model]) -> Counter[str]:
    """Bytes by dtype: the storages that hooks were shown, without those of parameters and buffers."""
    model, loss = make()
    standing = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
    shown: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        shown.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        graph = loss()
    found: Counter[str] = Counter()
    for tensor in shown:
        storage = tensor.untyped_storage()
        if storage._cdata not in standing:
            standing.add(storage._cdata)
            found[str(tensor.dtype).removeprefix("torch.")] += storage.nbytes()
    del graph
    return found


def told(run: Callable[[], None], folder: Path) -> list[Any]:
    with every_step_deep():
        trace = recorded(run, folder)
    assert notes(trace) == []
    return numbers(trace, "saved")


def train(make: Callable[[], Model], steps: int = 1) -> Callable[[], None]:
    def run() -> None:
        model, loss = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

    return run


def by_dtype(found: list[Any]) -> Counter[str]:
    total: Counter[str] = Counter()
    for number in found:
        total[number.dtype] += number.values["bytes"]
    return total


@pytest.mark.parametrize("name", MODELS)
def test_bytes_are_those_that_hooks_are_shown(name: str, tmp_path: Path) -> None:
    expected = packed(MODELS[name])
    assert by_dtype(told(train(MODELS[name]), tmp_path)) == expected
    assert sum(expected.values()) > 0


def test_modules_keep_what_their_operators_saved(tmp_path: Path) -> None:
    def run() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(16, 8)).float().square().sum()
        loss.backward()
        optimizer.step()

    kept = {(n.subject, n.dtype): (n.values["bytes"], n.values["tensors"]) for n in told(run, tmp_path)}
    assert kept == {
        ("0", "bfloat16"): (2 * 16 * 8, 1),  # its input; the input needs no gradient, so the weight is not kept
        ("1", "bfloat16"): (2 * 16 * 32, 1),
        ("2", "bfloat16"): (2 * (16 * 32 + 32 * 4), 2),  # its input and the weight in bfloat16
        ("", "float32"): (4 * 16 * 4, 1),  # the square
    }


def test_of_several_backwards_the_one_with_most_is_told(tmp_path: Path) -> None:
    def run(sizes: tuple[int, ...] = (4, 64, 8)) -> None:
        weight = nn.Parameter(torch.ones(()))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for size in sizes:
            (torch.ones(size) * weight).exp().sum().backward()
        optimizer.step()

    (found,) = told(run, tmp_path)
    assert found.values == {"bytes": 4 * (64 + 64), "tensors": 2}  # the factor and the result of exp


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_keep_their_inputs_and_run_no_sooner(reentrant: bool, tmp_path: Path) -> None:
    runs: list[str] = []

    def run() -> None:
        torch.manual_seed(0)
        first, second = nn.Linear(8, 8), nn.Linear(8, 8)
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)

        def block(x: torch.Tensor) -> torch.Tensor:
            runs.append("block")
            return second(first(x).exp()).exp()

        x = torch.ones(16, 8, requires_grad=True)
        checkpoint(block, x, use_reentrant=reentrant).sum().backward()
        optimizer.step()

    with every_step_deep():
        trace = recorded(run, tmp_path)
    assert notes(trace) == [] and runs == ["block", "block"]
    found, most = numbers(trace, "saved"), 4 * 16 * 8
    assert trace.end is not None
    elsewhere = [count for what, count in trace.end.unobserved.items() if "a hook keeps elsewhere" in what]
    if reentrant:  # inside its backward: the input, both results of exp; and the state of the random generator
        assert by_dtype(found) == {"float32": 3 * most, "uint8": torch.get_rng_state().numel()}
        assert elsewhere == []
    else:
        assert found == [] and elsewhere[0] > 0


def test_tensors_offloaded_by_a_hook_are_still_counted(tmp_path: Path) -> None:
    def run() -> None:
        weight = nn.Parameter(torch.ones(32))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        with torch.autograd.graph.save_on_cpu():
            loss = weight.exp().sum()
        loss.backward()
        optimizer.step()

    (found,) = told(run, tmp_path)
    assert found.values == {"bytes": 128, "tensors": 1}


def test_of_tensors_inside_a_transform_the_memory_is_counted(tmp_path: Path) -> None:
    def run() -> None:
        weight = nn.Parameter(torch.ones(8))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        batch = torch.ones(4, 8)
        value = weight.detach()
        weight.grad = torch.func.vmap(torch.func.grad(lambda w, x: (w * x).exp().sum()), (None, 0))(value, batch).sum(0)
        optimizer.step()

    kept = by_dtype(told(run, tmp_path))
    assert kept == {"float32": 4 * (32 + 32)}  # the batch and the results of exp; the value lies in the weight


def test_a_tensor_written_to_after_it_was_saved_is_still_an_error(tmp_path: Path) -> None:
    def run() -> None:
        weight = nn.Parameter(torch.ones(32))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(2):
            y = weight.exp()
            loss = y.sum()
            y.add_(1.0)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
            optimizer.step()

    assert len(told(run, tmp_path)) == 2


def test_nothing_is_kept_alive(tmp_path: Path) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def run() -> None:
        model, loss = gpt()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.blocks[0].widen.register_forward_hook(lambda _, __, out: alive.append(weakref.ref(out)))
        for _ in range(2):
            loss().backward()
            gc.collect()
            assert alive[-1]() is None
            optimizer.step()

    assert told(run, tmp_path)
    assert len(alive) == 2


def test_the_allocator_of_a_gpu_is_asked_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GPU")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda index: 3 * 2**20 * (index == 0))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda index: 2**20)
    with every_step_deep():
        trace = recorded(train(gpt, steps=2), tmp_path)
    told_ = numbers(trace, "allocated")
    assert {(n.subject, n.values["peak"], n.values["now"]) for n in told_} == {("cuda:0", 3 * 2**20, 2**20)}
    assert summarize([trace]).allocated == (("cuda:0", 3 * 2**20),)
