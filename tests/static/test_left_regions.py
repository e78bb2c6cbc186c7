"""Who leaves a body early leaves the region of the generator around it, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.check import check

LOOP = """
import contextlib
import torch


@contextlib.contextmanager
def region():
    with torch.autocast("cuda", dtype=torch.float16):
        yield


def main(model, loader, check):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with region():
            loss = model(x).mean()
            {early}
        {backward}
        try:
            with region():
                if check(model):
                    {leaves}
        except ValueError:
            print("skipped")
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize("leaves", ["raise ValueError", "continue", "break"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_region_ends_with_its_body(tmp_path: Path, leaves: str, inside: bool) -> None:
    backward = "scaler.scale(loss).backward()"
    text = LOOP.format(leaves=leaves, backward="pass" if inside else backward, early=backward if inside else "pass")
    (tmp_path / "train.py").write_text(text)
    told = {finding.rule for finding in check([tmp_path], rulebook.load()).findings}
    assert told & {"AMP302", "AMP303"} == ({"AMP302"} if inside else set())
