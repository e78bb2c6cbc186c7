"""AMP201 beyond its examples: which switches belong to the scaling alone, and which regions can do without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.static.found import lines

TWO = """
import torch

class Trainer:
    def __init__(self, model, opt, use_amp, grad_scaling, dtype):
        self.model, self.opt, self.amp = model, opt, use_amp
        {build}

    def step(self, x):
        with {region}:
            loss = self.model(x).mean()
        if self.scaler is None:
            loss.backward()
            self.opt.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
"""


@pytest.mark.parametrize(
    ("build", "region", "marked"),
    [
        ("self.scaler = torch.amp.GradScaler('cuda', enabled=grad_scaling)", "torch.autocast('cuda')", [7]),
        ("self.scaler = torch.cuda.amp.GradScaler(enabled=use_amp and grad_scaling)", "torch.autocast('cuda')", [7]),
        (
            "self.scaler = None\n        if use_amp:\n            if grad_scaling:\n"
            "                self.scaler = torch.amp.GradScaler('cuda')",
            "torch.cuda.amp.autocast(self.amp)",
            [10],
        ),
        (
            "if not grad_scaling:\n            self.scaler = None\n        else:\n"
            "            self.scaler = torch.amp.GradScaler('cuda')",
            "torch.autocast('cuda')",
            [],
        ),
        ("self.scaler = torch.amp.GradScaler('cuda', enabled=use_amp)", "torch.autocast('cuda', enabled=self.amp)", []),
        (
            "self.scaler = torch.amp.GradScaler('cuda', enabled=grad_scaling)",
            "torch.autocast('cuda', dtype=torch.bfloat16)",
            [],
        ),
        ("self.scaler = torch.amp.GradScaler('cuda', enabled=grad_scaling)", "torch.autocast('cpu')", []),
        (
            "self.scaling = grad_scaling\n        self.scaler = torch.amp.GradScaler('cuda', enabled=grad_scaling)",
            "torch.autocast('cuda', enabled=self.scaling)",
            [],
        ),
        (
            "use_scaler = dtype == 'float16'\n        self.scaler = torch.amp.GradScaler('cuda', enabled=use_scaler)",
            "torch.autocast('cuda', enabled=self.amp)",
            [],
        ),
    ],
)
def test_switches_of_the_scaling_alone(tmp_path: Path, build: str, region: str, marked: list[int]) -> None:
    assert lines(tmp_path, "AMP201", TWO.format(build=build, region=region)) == marked


OPTIONAL = """
import torch

def make(model, opt, {param}):
    def step(x):
        {open}
            loss = model(x).mean()
        if {test}:
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        else:
            {plain}.backward()
            opt.step()
    return step
"""
CUDA = "with torch.autocast('cuda'):"


@pytest.mark.parametrize(
    ("param", "opened", "test", "plain", "marked"),
    [
        ("scaler=None", CUDA, "scaler", "loss", [13]),
        ("scaler=None", CUDA, "scaler is not None", "loss", [13]),
        ("scaler=False", "with torch.cuda.amp.autocast(enabled=True):", "scaler", "loss", [13]),
        ("scaler", CUDA, "scaler", "loss", []),  # whoever calls this says what it is
        ("scaler=None", "with torch.autocast('cuda', dtype=torch.bfloat16):", "scaler", "loss", []),
        ("scaler=None", "with torch.autocast('cuda', enabled=scaler is not None):", "scaler", "loss", []),
        ("scaler=None", "with torch.autocast(x.device.type):", "scaler", "loss", []),  # None may mean the CPU
        ("scaler=None", "with torch.autocast('cuda', enabled=False):", "scaler", "loss", []),
        ("scaler=None", CUDA, "scaler", "model(x).mean()", []),
    ],
)
def test_scalers_that_may_be_left_out(
    tmp_path: Path, param: str, opened: str, test: str, plain: str, marked: list[int]
) -> None:
    source = OPTIONAL.format(param=param, open=opened, test=test, plain=plain)
    assert lines(tmp_path, "AMP201", source) == marked


COPIED = """
from dataclasses import dataclass, replace
import torch

@dataclass
class Config:
    amp: bool = True
    scaled: bool = True
    fold: int = 0

def epoch(model, loader, optimizer, scaler, cfg):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=cfg.amp):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

def main(args, loader):
    cfg = Config(**vars(args))
    for fold in range(5):
        one = replace(cfg, {fields})
        model = torch.nn.Linear(2, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", enabled=one.{switch})
        for _ in range(3):
            epoch(model, loader, optimizer, scaler, {handed})
"""


@pytest.mark.parametrize(
    ("fields", "switch", "handed", "expected"),
    [
        ("fold=fold", "amp", "one", set()),
        ("fold=fold", "amp", "cfg", set()),
        ("fold=fold", "scaled", "one", {"AMP213"}),
        ("fold=fold, amp=False", "amp", "cfg", {"AMP201"}),
    ],
)
def test_a_changed_copy_keeps_the_other_switches(
    tmp_path: Path, fields: str, switch: str, handed: str, expected: set[str]
) -> None:
    source = COPIED.format(fields=fields, switch=switch, handed=handed)
    assert {rule for rule in ("AMP201", "AMP213") if lines(tmp_path, rule, source)} == expected
