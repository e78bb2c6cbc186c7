"""Models that are built for inference alone are not taken to run in the project's training region."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.check import check

TRAIN = """
import torch
from torch import nn
from pitch import Predictor

net = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in []:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
PITCH = """
import torch
from torch import nn

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 4)

    def forward(self, x, y):
        return nn.functional.binary_cross_entropy(torch.sigmoid(self.out(x)), y)

class Pitch(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = Head()

    def forward(self, x, y):
        return self.head(x, y)

class Predictor:
    def __init__(self, path):
        model = Pitch()
        model.load_state_dict(torch.load(path))
        {use}
        self.model = model
"""


@pytest.mark.parametrize(
    ("use", "more", "expected"),
    [
        ("model.to('cuda').eval()", "", []),
        ("pass", "", ["AMP315"]),
        ("self.optimizer = torch.optim.Adam(model.parameters()); model.eval()", "", ["AMP315"]),
        ("model.eval()", "def build(name):\n    return Pitch()\n", ["AMP315"]),
        ("model.eval()", "HEADS = {'bce': Head()}\n", ["AMP315"]),
    ],
)
def test_what_only_an_evaluated_model_builds_runs_outside_the_region(
    use: str, more: str, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "pitch.py").write_text(PITCH.format(use=use) + more)
    found = [one.rule for one in check([tmp_path], rulebook.load()).findings]
    assert [rule for rule in found if rule == "AMP315"] == expected
