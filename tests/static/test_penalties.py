"""Penalties made of gradients that ``autograd.grad`` takes of a scaled loss: whether the scale is taken off."""

from __future__ import annotations

import textwrap

import pytest

from tests.static.walked import ids

PROGRAM = """
import torch
from torch import nn

critic = nn.Linear(8, 1)
opt = torch.optim.Adam(critic.parameters(), 1e-4)
scaler = torch.amp.GradScaler("cpu")

def undo(t):
    return t * factor

def invert(s):
    return 1.0 / s.get_scale()

for x in loader():
    with torch.autocast("cpu", torch.float16):
        out = critic(x)
        loss = nn.functional.softplus(-out.float()).mean()
    g = torch.autograd.grad(scaler.scale(out.float().sum()), x, create_graph=True)[0]
{body}
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    print(loss.item())
"""
PENALTY = "loss = loss + weight * (g.norm(2, dim=1) - 1).pow(2).mean()"


def broken(body: str) -> set[str]:
    return ids(PROGRAM.format(body=textwrap.indent(body, "    "))) & {"AMP216", "AMP218"}


@pytest.mark.parametrize(
    "body",
    [
        PENALTY,
        "gp = ((torch.linalg.vector_norm(g, dim=1) - 1) ** 2).mean()\nloss = loss + gp * weight",
        "loss += 10 * (g * g).sum(1).mean()",
    ],
)
def test_a_penalty_that_is_scaled_twice(body: str) -> None:
    assert broken(body) == {"AMP216"}


@pytest.mark.parametrize(
    "body",
    [
        f"g = g / scaler.get_scale()\n{PENALTY}",
        f"g = g.float().div(scaler._scale)\n{PENALTY}",
        f"g.div_(scaler.get_scale())\n{PENALTY}",
        f"g *= invert(scaler)\n{PENALTY}",
        f"inv = invert(scaler)\ng = g * inv\n{PENALTY}",
        f"g = undo(g)\n{PENALTY}",
        f"gs = [g]\nfor each in gs:\n    each /= scaler.get_scale()\n{PENALTY}",
        f"gs = (g,)\ntorch._foreach_mul_(gs, inv)\n{PENALTY}",
        "loss = loss + weight * g.square().mean() / scaler.get_scale() ** 2",
        "loss = loss + (critic(x + g / g.norm(dim=1, keepdim=True)) - out).square().mean()",  # its direction alone
    ],
)
def test_a_penalty_that_may_be_unscaled(body: str) -> None:
    assert broken(body) == set()


@pytest.mark.parametrize(
    ("gradient", "expected"),
    [
        ("torch.ones_like(out)", {"AMP204"}),
        ("gradient=torch.tensor(1.0)", {"AMP204"}),
        ("weights", set()),
        ("torch.exp(weights)", set()),
        ("scaler.scale(weights)", set()),
    ],
)
def test_a_backward_that_is_given_its_first_gradient_may_be_given_the_scale(gradient: str, expected: set[str]) -> None:
    source = f"""
import torch

def train(model, loader, weights):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            out = model(x)
            loss = out.square().mean()
        scaler.scale(loss).backward(retain_graph=True)
        out.backward({gradient})
        scaler.step(optimizer)
        scaler.update()
"""
    assert ids(source) == expected
