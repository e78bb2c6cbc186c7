"""Code that does a whole step and that nobody is seen to call: it is called again and again all the same."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.static.found import lines
from tests.static.pathing import found, line

STEP = """
import torch
import torch.nn.functional as F


class Worker:
    def __init__(self, model, every):
        self.model, self.every, self.count = model, every, 0
        self.optimizer = torch.optim.Adam(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def one(self, x, y):
        self.count += 1
        with torch.autocast("cuda"):
            loss = F.mse_loss(self.model(x), y) / self.every
        self.scaler.scale(loss).backward()
        {first}
        {second}
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
"""
UNSCALE = "self.scaler.unscale_(self.optimizer)"


def program(source: str, **parts: str) -> str:
    indented = {name: part.replace("\n", "\n        ") for name, part in parts.items()}
    return textwrap.dedent(source).format(**indented)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (UNSCALE, "if self.is_bad():\n    return None", {("AMP208", "return None")}),
        (UNSCALE, "if self.is_bad():\n    self.scaler.update()\n    return None", set()),
        ("if self.is_bad():\n    return None", UNSCALE, set()),
        (
            "if self.count % self.every:\n    return self.scaler.update()",
            "",
            {("AMP206", "return self.scaler.update()")},
        ),
        ("if self.count % self.every:\n    return None", "", set()),
    ],
)
def test_the_next_call_meets_what_one_call_has_left(first: str, second: str, expected: set[tuple[str, str]]) -> None:
    source = program(STEP, first=first, second=second)
    assert {(rule, place) for rule, _, place in found(source)} == {
        (rule, line(source, text)) for rule, text in expected
    }


HANDED = """
import torch


def train_step(loss, model, optimizer, scaler, last):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    {skip}
    scaler.step(optimizer)
    {end}
    scaler.update()
"""


@pytest.mark.parametrize(
    ("skip", "end", "expected"),
    [
        ("if not torch.isfinite(norm):\n        return", "", {"AMP208"}),
        ("", "", set()),
        ("", "if not last:\n        return", set()),
    ],
)
def test_what_is_handed_over_may_be_another_one_each_time(skip: str, end: str, expected: set[str]) -> None:
    """A call for each of several optimizers, the last of which updates, is right; one that unscales and goes is not."""
    source = textwrap.dedent(HANDED).format(skip=skip, end=end)
    assert {rule for rule, _, _ in found(source)} == expected


BASE = """
import torch


class BaseTrainer:
    def __init__(self, model, amp=False):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda") if amp else None

    def _backward(self, {parameter}):
        self.optimizer.zero_grad()
        {loss}.backward()
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""
WORKER = """
from train import BaseTrainer


class Worker(BaseTrainer):
    def one(self, x):
        loss = self.model(x).mean()
        self._backward(self.scaler.scale(loss) if self.scaler else loss)
"""


def test_a_loss_that_is_handed_over_may_carry_the_scale(tmp_path: Path) -> None:
    handed = BASE.format(parameter="loss", loss="loss")
    assert lines(tmp_path, "AMP209", handed, workers=WORKER) == []
    own = BASE.format(parameter="x", loss="self.model(x).mean()")
    assert lines(tmp_path, "AMP209", own) == [line(own, "self.scaler.step")]
