"""What loops with conditions leave of a region, and who is a model in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.static.found import lines

SWAPPED = """
import torch
from torch import nn


class Average:
    def __init__(self, model):
        self.model = model
        self.shadow = {name: p.data.clone() for name, p in model.named_parameters()}

    def apply(self):
        for name, p in self.model.named_parameters():
            if CONDITION:
                WRITE


def compare(loader):
    model = nn.Linear(10, 2).cuda()
    average = Average(model)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        plain = [model(x) for x in loader]
        average.apply()
        averaged = [model(x) for x in loader]
    return plain, averaged
"""


@pytest.mark.parametrize(
    ("condition", "write", "found"),
    [
        ("p.requires_grad", "p.data = self.shadow[name]", [20]),
        ("name in self.shadow", "p.data.copy_(self.shadow[name])", [20]),
        ("p.requires_grad", "self.shadow[name] = p.data.clone()", []),
    ],
)
def test_weights_that_a_condition_picks(tmp_path: Path, condition: str, write: str, found: list[int]) -> None:
    program = SWAPPED.replace("CONDITION", condition).replace("WRITE", write)
    assert lines(tmp_path, "AMP304", program) == found


DECLARED = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    pass


class Table:
    pass


def train(MODEL, loader, optimizer):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("model: nn.Module", [16]),
        ("model: torch.nn.Module", [16]),
        ("model: Net", [16]),
        ("model: Table", []),
        ("model", []),
    ],
)
def test_a_parameter_that_is_declared_to_be_a_model(tmp_path: Path, model: str, found: list[int]) -> None:
    assert lines(tmp_path, "AMP301", DECLARED.replace("MODEL", model)) == found


CRITERION = """
import torch
from torch import nn


def train(model: nn.Module, NAME: nn.Module, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        out = NAME(model(x), y)
        with torch.autocast("cuda"):
            loss = out.mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def losses(model: nn.Module, NAME: nn.Module, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            out = model(x)
        with torch.autocast("cuda"):
            loss = NAME(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize("name", ["criterion", "loss_fn"])
def test_a_loss_that_is_declared_to_be_a_module_is_no_model(tmp_path: Path, name: str) -> None:
    assert lines(tmp_path, "AMP316", CRITERION.replace("NAME", name)) == [11]


SAMPLER = """
import torch
from torch import nn


@torch.no_grad()
def sample(net: nn.Module, x, steps):
    FROZEN
    with torch.autocast("cuda", dtype=torch.float16CACHE):
        for t in range(steps):
            x = x - net(x, t)
    return x
"""


@pytest.mark.parametrize(
    ("frozen", "cache", "found"),
    [
        ("net.eval()", ", cache_enabled=False", [11]),
        ("net.eval()", "", []),
        ("net.eval().requires_grad_(False)", ", cache_enabled=False", []),
    ],
)
def test_a_sampler_without_the_cache(tmp_path: Path, frozen: str, cache: str, found: list[int]) -> None:
    program = SAMPLER.replace("FROZEN", frozen).replace("CACHE", cache)
    assert lines(tmp_path, "AMP602", program) == found


def test_what_a_graph_captures_must_not_be_cached(tmp_path: Path) -> None:
    program = SAMPLER.replace("FROZEN", "net.eval()").replace("CACHE", ", cache_enabled=False")
    assert lines(tmp_path, "AMP602", program.replace("net.eval()", "graph = torch.cuda.CUDAGraph()")) == []
