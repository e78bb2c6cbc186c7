"""What ``__init__`` leaves None and a method uses: something that is set out of sight, and whose absence is no path."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit.static.source import ir
from amp_audit.static.source.lowering import lower
from amp_audit.static.walking.granted import Granted
from tests.static.found import lines

TRAINER = """
import torch


class Trainer:
    def __init__(self):
        self.model = self.optimizer = None
        self.scaler = torch.amp.GradScaler("cuda")

    def epoch(self, loader):
        for batch in loader:
            {clear}
            with torch.autocast("cuda"):
                loss = self.loss_of(batch)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_({parameters}, 12)
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""
CLEARS = "if {test}:\n                for p in self.model.parameters():\n                    p.grad = None"
WORKER = """
from torch import nn
from train import Trainer


class Worker(Trainer):
    def __init__(self):
        super().__init__()
        self.model = nn.Linear(4, 4)

    def loss_of(self, batch):
        return self.model(batch).mean()
"""


@pytest.mark.parametrize(
    ("test", "marked"), [("self.model is not None", []), ("self.model", []), ("batch.first", [22])]
)
def test_what_is_cleared_where_there_is_a_model_is_cleared(tmp_path: Path, test: str, marked: list[int]) -> None:
    source = TRAINER.format(clear=CLEARS.format(test=test), parameters="self.model.parameters()")
    marked = marked and [source[: source.index("scaler.step(")].count("\n") + 1]
    assert lines(tmp_path, "AMP223", source, worker=WORKER) == marked


def test_gradients_that_nobody_clears_are_told(tmp_path: Path) -> None:
    source = TRAINER.format(clear="pass", parameters="self.model.parameters()")
    assert lines(tmp_path, "AMP223", source) == [18]


@pytest.mark.parametrize(
    ("body", "granted"),
    [
        ("self.a.go()", {"self.a"}),
        ("x = self.a.b.c", {"self.a", "self.a.b"}),
        ("if self.a is not None:\n        self.a.go()", set()),
        ("if on:\n        self.a.go()", {"self.a"}),
        ("if on:\n        self.set.go()", set()),
        ("self.set.go()", {"self.set"}),
        ("x = self.a.b if self.a else 1", set()),
        ("x = self.a and self.a.b", set()),
        ("if self.a is None:\n        return\n    self.a.go()", set()),
        ("self.a = on\n    self.a.go()", set()),
        ("try:\n        self.a.go()\n    except AttributeError:\n        pass", set()),
        ("while self.a:\n        self.a.go()", set()),
    ],
)
def test_what_a_function_takes_to_be_there(body: str, granted: set[str]) -> None:
    source = f"def f(self, on):\n    {body}\ndef other(self):\n    self.set = 1\n    self.a = None\n"
    module = lower("/project/f.py", source)
    function = module.body[0]
    assert isinstance(function, ir.Function)
    assert Granted().of(function, module) == granted
