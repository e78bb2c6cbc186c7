"""Models that enter a region for a part of themselves, called outside of one."""

from __future__ import annotations

import pytest

from tests.static.walked import ids

PROGRAM = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(8, 8), nn.Linear(8, 8)

    def first(self, x):
        FIRST

    def second(self, h):
        SECOND

    def forward(self, x):
        return self.second(self.first(x))


def train(loader):
    net = Net().cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        out = net(x)
        LOSS
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
IN_REGION = 'with torch.autocast("cuda"):\n            return self.{}({})'
OUTSIDE = "loss = nn.functional.mse_loss(out.float(), y)"


@pytest.mark.parametrize(
    ("first", "second", "loss", "found"),
    [
        ("return self.stem(x)", IN_REGION.format("head", "h"), OUTSIDE, set()),
        (IN_REGION.format("stem", "x"), IN_REGION.format("head", "h"), OUTSIDE, set()),
        (IN_REGION.format("stem", "x"), "return self.head(h.float())", OUTSIDE, set()),
        (
            "return self.stem(x)",
            "return self.head(h)",
            'with torch.autocast("cuda"):\n            loss = nn.functional.mse_loss(out, y)',
            {"AMP316"},
        ),
    ],
)
def test_a_part_in_a_region_of_its_own(first: str, second: str, loss: str, found: set[str]) -> None:
    assert ids(PROGRAM.replace("FIRST", first).replace("SECOND", second).replace("LOSS", loss)) == found
