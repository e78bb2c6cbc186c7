"""Steps that the scaler leaves out: what code does about them by itself is no mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from amp_audit import rulebook
from amp_audit.trace import judge
from tests.runtime.recording import events, recorded

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("drops", "expected"),
    [("what is not finite, after unscale_", False), ("everything, before unscale_", True)],
)
def test_gradients_may_be_dropped_where_the_step_is_skipped_anyway(drops: str, expected: bool, tmp_path: Path) -> None:
    def run() -> None:
        torch.manual_seed(0)
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for number in range(4):
            x = torch.randn(16, 8) * (1e6 if number == 2 else 1.0)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).float().square().mean()
            scaler.scale(loss).backward()
            if drops.startswith("everything"):
                optimizer.zero_grad(set_to_none=False)
            scaler.unscale_(optimizer)
            if not torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
                optimizer.zero_grad()
            scaler.step(optimizer)
            scaler.update()

    trace = recorded(run, tmp_path)
    skipped = [row.skipped for row in events(trace) if row.kind == "step"]
    assert skipped == ([False] * 4 if expected else [False, False, True, False])
    rules = {found.rule for found in judge.findings([trace], rulebook.load())}
    assert ("AMP212" in rules) is expected
