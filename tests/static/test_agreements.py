"""Ranks that leave an iteration out together, because a function asked the others, and those that do so alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.static.found import lines

PROGRAM = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def on_all(flag):
    told = torch.tensor(float(flag), device="cuda")
    dist.all_reduce(told, op=dist.ReduceOp.MIN)
    return told.item() > 0


def is_usable(loss):
    return bool(torch.isfinite(loss))


class Training:
    def __init__(self, net, rank):
        self.net = DistributedDataParallel(net.to(rank), device_ids=[rank])
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def _agree(self, flag):
        return on_all(flag)

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(self.net(x), y)
            ASK
                continue  # here
            loss.backward()
            self.optimizer.step()
"""
HERE = 1 + next(number for number, line in enumerate(PROGRAM.split("\n")) if line.endswith("# here"))


@pytest.mark.parametrize(
    "ask",
    [
        "if not torch.isfinite(loss):",
        "if not (torch.isfinite(loss) and is_usable(loss)):",
    ],
)
def test_alone(ask: str, tmp_path: Path) -> None:
    assert lines(tmp_path, "AMP705", PROGRAM.replace("ASK", ask)) == [HERE]


@pytest.mark.parametrize(
    "ask",
    [
        "if not on_all(torch.isfinite(loss).item()):",
        "if not on_all(flag=bool(torch.isfinite(loss))):",
        "isfinite = on_all(torch.isfinite(loss))\n            if not isfinite:",
    ],
)
def test_together(ask: str, tmp_path: Path) -> None:
    assert lines(tmp_path, "AMP705", PROGRAM.replace("ASK", ask)) == []
