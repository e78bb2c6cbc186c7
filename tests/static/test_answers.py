"""Losses that a function computes from what a framework has prepared, and returns to the loop that goes backward."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.static.found import lines

ACCELERATED = """
import torch
from accelerate import Accelerator
from torch.nn.functional import mse_loss

COMPUTE

def main(model, other, loader):
    accelerator = Accelerator(mixed_precision="fp16")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        loss = LOSS
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("compute", "loss", "told"),
    [
        ("def compute(net, x, y):\n    return mse_loss(net(x), y)", "compute(model, x, y)", True),
        (
            "def compute(net, x, y):\n    out = net(x)\n    return out, mse_loss(out, y)",
            "compute(model, x, y)[1]",
            True,
        ),
        (
            "def run(net, x):\n    return net(x)\n\ndef compute(net, x, y):\n    return mse_loss(run(net, x), y)",
            "compute(net=model, x=x, y=y)",
            True,
        ),
        ("def look(net, x):\n    return net(x).detach()", "mse_loss(other(look(model, x)), y)", False),
        ("@torch.no_grad()\ndef look(net, x):\n    return net(x)", "mse_loss(other(look(model, x)), y)", False),
        (
            "def look(net, x):\n    with torch.inference_mode():\n        return net(x)",
            "other(look(model, x)).sum()",
            False,
        ),
        ("def width(net):\n    return net.width", "mse_loss(other(x), y) / width(model)", False),
        ("def compute(net, x, y):\n    return mse_loss(net(x), y)", "compute(other, x, y)", False),
    ],
)
def test_a_function_that_is_given_the_model(compute: str, loss: str, told: bool, tmp_path: Path) -> None:
    program = ACCELERATED.replace("COMPUTE", compute).replace("LOSS", loss)
    wanted = [program.split("\n").index("        loss.backward()") + 1] if told else []
    assert lines(tmp_path, "AMP803", program) == wanted


CLASS = """
import torch
from accelerate import Accelerator
from torch.nn.functional import mse_loss


class Training:
    def __init__(self, model, teacher, loader):
        self.accelerator = Accelerator(mixed_precision="fp16")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.teacher = teacher
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)

    def loss_of(self, x, y):
        return mse_loss(self.RUN(x), y)

    def fit(self):
        for x, y in self.loader:
            loss = self.loss_of(x, y)
            BACKWARD
            self.optimizer.step()
            self.optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("run", "backward", "told"),
    [
        ("model", "loss.backward()", [20]),
        ("model", "self.accelerator.backward(loss)", []),
        ("teacher", "loss.backward()", []),
    ],
)
def test_a_method_that_runs_the_model(run: str, backward: str, told: list[int], tmp_path: Path) -> None:
    program = CLASS.replace("RUN", run).replace("BACKWARD", backward)
    assert lines(tmp_path, "AMP803", program) == told


ENGINE = """
import deepspeed


def loss_of(engine, batch):
    return engine(**batch).loss


def main(model, loader):
    engine, _, _, _ = deepspeed.initialize(model=model, config="ds.json")
    for batch in loader:
        loss = loss_of(engine, batch)
        BACKWARD
        engine.step()
"""


@pytest.mark.parametrize(("backward", "told"), [("loss.backward()", [13]), ("engine.backward(loss)", [])])
def test_an_engine(backward: str, told: list[int], tmp_path: Path) -> None:
    assert lines(tmp_path, "AMP805", ENGINE.replace("BACKWARD", backward)) == told


BESIDE = """
import torch
from accelerate import Accelerator
from torch.nn.functional import mse_loss


def main(model, probe, loader):
    accelerator = Accelerator(mixed_precision="fp16")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        accelerator.backward(mse_loss(model(x), y))
        optimizer.step()
        CONTEXT
            found = model(x)
        loss = mse_loss(probe(found), y)
        loss.backward()
"""


@pytest.mark.parametrize(
    ("context", "told"), [("with torch.no_grad():", []), ("with torch.inference_mode():", []), ("if True:", [17])]
)
def test_what_runs_without_gradients_carries_no_graph(context: str, told: list[int], tmp_path: Path) -> None:
    assert lines(tmp_path, "AMP803", BESIDE.replace("CONTEXT", context)) == told
