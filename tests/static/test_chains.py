"""A clip of scaled gradients, reached in as many ways as programs have of running code: ``chains`` holds one of each.

Each program has the mistake at its mark. With the statement in that its comment leaves out, nothing is found.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import amp_audit
from amp_audit.model import Severity
from amp_audit.settings import Settings

CHAINS = sorted((Path(__file__).parent / "chains").glob("*.py"))
MEND = "# mend: "


def found(source: str, folder: Path) -> list[tuple[str, int]]:
    """The rules and lines of what is found at warning and above."""
    (folder / "train.py").write_text(source, encoding="utf-8")
    report = amp_audit.check(folder, settings=Settings(root=folder))
    assert report.coverage.notes == ()
    told = [each for each in report.findings if each.severity >= Severity.WARNING]
    return [(each.rule, each.location.line) for each in told if each.location is not None]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda path: path.stem)
def test_a_clip_is_found_however_it_is_reached(chain: Path, tmp_path: Path) -> None:
    source = chain.read_text(encoding="utf-8")
    marked = [number for number, line in enumerate(source.split("\n"), 1) if line.endswith("# AMP202")]
    assert source.count(MEND) == 1
    assert [("AMP202", number) for number in marked] == found(source, tmp_path)
    assert found(source.replace(MEND, ""), tmp_path) == []


CONTEXT = """
import torch
from torch import nn


class Amp:
    def __init__(self, enabled=True, dtype=torch.float16):
        self.region = torch.autocast("cuda", dtype=dtype, enabled=enabled)

    def __enter__(self):
        self.region.__enter__()
        return self

    def __exit__(self, *error):
        self.region.__exit__(*error)


def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        with Amp({arguments}):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
"""


def test_a_context_of_the_project_is_what_it_enters(tmp_path: Path) -> None:
    assert [rule for rule, _ in found(CONTEXT.format(arguments=""), tmp_path)] == ["AMP201"]
    assert found(CONTEXT.format(arguments="False"), tmp_path) == []
    assert found(CONTEXT.format(arguments="dtype=torch.bfloat16"), tmp_path) == []


STEP = """
import torch
from torch import nn


class Step:
    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler = optimizer, scaler

    def __enter__(self):
        self.optimizer.zero_grad()

    def __exit__(self, *error):
        self.scaler.step(self.optimizer)
        {update}


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with Step(optimizer, scaler):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if len(x) > 100:
                continue
"""


def test_a_context_of_the_project_ends_on_every_way_out(tmp_path: Path) -> None:
    assert found(STEP.format(update="self.scaler.update()"), tmp_path) == []
    assert [rule for rule, _ in found(STEP.format(update="pass"), tmp_path)] == ["AMP205"]


def test_who_goes_on_with_a_generator_may_train(tmp_path: Path) -> None:
    source = """
import torch
from torch import nn


def clipping(model, optimizer, scaler):
    while True:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        yield
"""
    assert found(source, tmp_path) == []
    assert [rule for rule, _ in found(source.replace("        yield\n", "") + "    yield\n", tmp_path)] == ["AMP207"]
