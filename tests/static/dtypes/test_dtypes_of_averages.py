"""Moving averages of weights: those in low precision are told, and torch loses what moves them, by whatever op."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.static.found import lines

PROGRAM = """
import copy
from collections import OrderedDict

import torch
from torch import nn


def update(ema, model, decay):
DEFINE


def train(loader, decay=0.999):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ema = copy.deepcopy(model)CAST
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            update(ema, model, decay)
    return ema
"""
PAIRS = "    for e, p in zip(ema.parameters(), model.parameters()):\n        "
ITEMS = "    own = model.state_dict()\n    for name, e in ema.state_dict().items():\n        "
UPDATES = {
    "chained": PAIRS + "e.mul_(decay).add_(p, alpha=1 - decay)",
    "in two statements": PAIRS + "e.mul_(decay)\n        e.add_((1 - decay) * p)",
    "by operators": PAIRS + "e *= decay\n        e += (1 - decay) * p",
    "copied": PAIRS + "e.copy_(decay * e + (1 - decay) * p)",
    "copied into data": PAIRS + "e.data.copy_(e.data * decay + p.data * (1 - decay))",
    "through a name": PAIRS + "new = e * decay + p * (1 - decay)\n        e.copy_(new)",
    "assigned": PAIRS + "e.data = (e.data * decay + p.data * (1 - decay)).to(e.dtype)",
    "by the difference": PAIRS + "e.sub_((1 - decay) * (e - p))",
    "lerp": PAIRS + "e.lerp_(p.to(e.dtype), 1 - decay)",
    "lerp, copied": PAIRS + "e.copy_(torch.lerp(e, p.to(e.dtype), 1 - decay))",
    "states": ITEMS + "e.copy_(e * decay + own[name] * (1 - decay))",
    "names": "    own = dict(model.named_parameters())\n    for name, e in ema.named_parameters():\n"
    "        e.mul_(decay).add_(own[name], alpha=1 - decay)",
    "ordered names": "    held = OrderedDict(ema.named_parameters())\n    for name, p in model.named_parameters():\n"
    "        held[name].mul_(decay).add_(p, alpha=1 - decay)",
    "all at once": "    mine, theirs = list(ema.parameters()), list(model.parameters())\n"
    "    torch._foreach_mul_(mine, decay)\n    torch._foreach_add_(mine, theirs, alpha=1 - decay)",
}
CASTS = (".bfloat16()", ".half()", '.to(device="cuda", dtype=torch.bfloat16)')


def program(update: str, cast: str) -> str:
    return PROGRAM.replace("DEFINE", update).replace("CAST", cast)


def line_of(source: str, text: str) -> int:
    return next(number for number, line in enumerate(source.split("\n"), 1) if text in line)


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_an_average_in_low_precision_is_told_where_it_is_moved(update: str, cast: str, tmp_path: Path) -> None:
    source = program(update, cast)
    assert lines(tmp_path, "AMP412", source) == [line_of(source, update.split("\n")[-1])]


@pytest.mark.parametrize("cast", ["", ".bfloat16().float()", "\n    torch.save(copy.deepcopy(ema).half(), 'x')"])
@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_an_average_in_float32_is_not(update: str, cast: str, tmp_path: Path) -> None:
    assert lines(tmp_path, "AMP412", program(update, cast)) == []


@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_torch_loses_what_moves_it(update: str) -> None:
    torch = pytest.importorskip("torch")
    space: dict[str, object] = {}
    exec(compile(program(update, ""), "program", "exec"), space)
    moved = {}
    for dtype in (torch.float32, torch.bfloat16):
        model, ema = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        for parameters, value in ((model.parameters(), 1.25), (ema.parameters(), 1.0)):
            for parameter in parameters:
                torch.nn.init.constant_(parameter, value)
        ema.to(dtype)
        with torch.no_grad():
            for _ in range(1000):
                space["update"](ema, model, 0.999)  # type: ignore[operator]
        moved[dtype] = float(ema.weight.detach().float().mean()) - 1.0
    assert moved[torch.float32] == pytest.approx(0.25 * (1 - 0.999**1000), rel=1e-3)  # 0.158
    assert abs(moved[torch.bfloat16]) < 0.01


SHADOWS = """
import torch
from torch import nn


class Average:
    def __init__(self, model, decay=0.999):
        self.decay, self.model, self.shadow = decay, model, {}
        for name, param in model.named_parameters():
            self.shadow[name] = param.data.clone()CAST

    @torch.no_grad()
    def update(self):
        for name, param in self.model.named_parameters():
            STATEMENT


def train(loader):
    model = nn.Linear(8, 2).cuda()
    average = Average(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        average.update()
"""


@pytest.mark.parametrize(
    "statement",
    [
        "self.shadow[name].mul_(self.decay).add_(param.data, alpha=1 - self.decay)",
        "self.shadow[name] = (self.decay * self.shadow[name] + (1 - self.decay) * param.data)CAST",
        "new = (1 - self.decay) * param.data + self.decay * self.shadow[name]; self.shadow[name] = new.clone()CAST",
    ],
)
def test_averages_that_a_dict_keeps(statement: str, tmp_path: Path) -> None:
    source = SHADOWS.replace("STATEMENT", statement)
    low = source.replace("CAST", ".half()")
    assert lines(tmp_path, "AMP412", low) == [line_of(low, statement.replace("CAST", ".half()"))]
    assert lines(tmp_path, "AMP412", source.replace("CAST", "")) == []
    float_again = source.replace(".clone()CAST\n\n", ".clone().half()\n\n", 1).replace("CAST", ".float()")
    if "CAST" in statement:
        assert lines(tmp_path, "AMP412", float_again) == []


@pytest.mark.parametrize(
    "statement",
    [
        "p.data.copy_(0.5 * p.data + 0.5 * q.data)",
        "p.data.mul_(0.5).add_(q.data, alpha=0.5)",
        "p.data.lerp_(q.data, 0.5)",
        "p.data.copy_(q.data)",
        "p.data.mul_(1 - rate * 0.01); p.data.add_(p.grad, alpha=-rate)",
    ],
)
def test_models_that_are_merged_or_stepped_by_hand_are_no_averages(statement: str, tmp_path: Path) -> None:
    source = f"""
import copy
import torch
from torch import nn


def merge(one, two, rate=0.1):
    for p, q in zip(one.parameters(), two.parameters()):
        {statement}


def main(loader):
    model = nn.Linear(8, 2).cuda().half()
    other = copy.deepcopy(model)
    merge(model, other)
    with torch.no_grad(), torch.autocast("cuda"):
        return [model(x) for x in loader]
"""
    assert lines(tmp_path, "AMP412", source) == []
