"""Gradients that come to their parameters as zeros, since an op on the way back lost all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.runtime.recording import every_step_deep, notes, numbers, recorded

torch.set_num_threads(1)

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def starved(loss: Loss, folder: Path, *, low: bool = True) -> tuple[dict[str, str], set[str], int]:
    """By parameter the op that lost its gradient, and the parameters whose gradient was zero at all."""
    zero: set[str] = set()
    line: list[int] = []

    def run() -> None:
        torch.manual_seed(0)
        main, aux = nn.Linear(8, 4), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        optimizer = torch.optim.SGD([*main.parameters(), *aux.parameters()], lr=0.1)
        x = torch.randn(16, 8)
        with torch.autocast("cpu", dtype=torch.float16, enabled=low):
            value = loss(main(x), aux(x))
        value.backward()
        named = [*((f"main.{n}", p) for n, p in main.named_parameters()),
                 *((f"aux.{n}", p) for n, p in aux.named_parameters())]  # fmt: skip
        zero.update(name for name, p in named if p.grad is not None and not p.grad.any())
        optimizer.step()

    with every_step_deep():
        trace = recorded(run, folder)
    assert notes(trace) == []
    found = numbers(trace, "starved")
    line.extend({number.place.line or 0 for number in found if number.place is not None})
    return {str(n.subject): str(n.op) for n in found}, zero, len(line)


ALL = {"aux.0.weight", "aux.0.bias", "aux.2.weight", "aux.2.bias"}


def faint(main: torch.Tensor, aux: torch.Tensor) -> torch.Tensor:
    return main.float().square().mean() + 1e-8 * aux.float().square().mean()


def fainter_inside(main: torch.Tensor, aux: torch.Tensor) -> torch.Tensor:
    """The float16 product itself rounds to zero: no cast is to blame."""
    return main.float().square().mean() + (aux * 1e-4 * 1e-5).float().mean()


@pytest.mark.parametrize(
    ("loss", "op"), [(faint, "aten._to_copy.default"), (fainter_inside, "aten.mul.Tensor")], ids=["cast", "product"]
)
def test_every_layer_behind_what_was_lost_is_named(loss: Loss, op: str, tmp_path: Path) -> None:
    found, zero, lines = starved(loss, tmp_path / "low")
    assert found == dict.fromkeys(ALL, op)
    assert zero == ALL and lines == 1
    assert starved(loss, tmp_path / "full", low=False)[:2] == ({}, set())


def dropped(main: torch.Tensor, aux: torch.Tensor) -> torch.Tensor:
    return main.float().square().mean() + 0.0 * aux.float().square().mean()


def dead(main: torch.Tensor, aux: torch.Tensor) -> torch.Tensor:
    return main.float().square().mean() + torch.relu(aux - 1000.0).float().square().mean()


def masked(main: torch.Tensor, aux: torch.Tensor) -> torch.Tensor:
    return main.float().square().mean() + torch.where(torch.zeros_like(aux).bool(), aux, 1.0).float().mean()


def multiplied_by_zeros(main: torch.Tensor, aux: torch.Tensor) -> torch.Tensor:
    return main.float().square().mean() + (aux * torch.zeros_like(aux)).float().square().mean()


def both(main: torch.Tensor, aux: torch.Tensor) -> torch.Tensor:
    """What a zero factor takes anyway was lost by no rounding, whatever else did so too."""
    return main.float().square().mean() + 1e-8 * (aux * torch.zeros_like(aux)).float().mean()


@pytest.mark.parametrize("loss", [dropped, dead, masked, multiplied_by_zeros, both], ids=lambda loss: loss.__name__)
def test_gradients_that_are_zero_anyway_were_not_lost(loss: Loss, tmp_path: Path) -> None:
    found, zero, _ = starved(loss, tmp_path)
    assert found == {} and zero >= ALL
