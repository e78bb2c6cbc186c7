"""However long a program trains: what is kept of it does not grow."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import torch
from torch import nn

from tests.runtime.recording import notes, numbers, recorded

torch.set_num_threads(1)


def test_hundreds_of_steps_leave_no_more_behind_than_dozens(tmp_path: Path) -> None:
    counts: dict[int, Counter[str]] = {}

    def train() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=10**6)
        for step in range(1, 401):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.randn(3, 4)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            del loss
            if step in (100, 400):
                gc.collect()
                counts[step] = Counter(type(one).__name__ for one in gc.get_objects())

    trace = recorded(train, tmp_path)
    assert notes(trace) == []
    assert len(trace.steps) == 400 and all(step.recorded for step in trace.steps)
    assert sum(step.deep for step in trace.steps) == 41
    assert len(numbers(trace, "loss")) == 400
    grown = {name: count - counts[100][name] for name, count in counts[400].items() if count > counts[100][name]}
    assert grown.get("Tensor", 0) == grown.get("StepRecord", 0) == grown.get("EventRow", 0) == 0
    assert sum(grown.values()) < 300, grown  # less than one object a step
