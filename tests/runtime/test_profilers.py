"""A profiler of the program's own is not told what we compute."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from amp_audit.runtime.profilers import Unprofiled
from tests.runtime.recording import every_step_deep, notes, recorded

torch.set_num_threads(1)


class Nothing(TorchDispatchMode):
    """The profiler sees an operator before a mode and after it, whatever the mode does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def trained() -> Counter[str]:
    """What a profiler counts in three steps, with a scaler, a clip and attention."""
    torch.manual_seed(0)
    attention, head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 4)
    parameters = [*attention.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(3):
            x = torch.randn(2, 6, 8)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = head(attention(x, x, x)[0]).float().square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()
    return Counter({event.key: event.count for event in profiler.key_averages()})


def test_what_we_compute_is_in_no_profile(tmp_path: Path) -> None:
    """Deep steps, histograms and norms: the profile is that under a mode that does nothing."""
    with Nothing():
        expected = trained()
    found: list[Counter[str]] = []
    with every_step_deep():
        trace = recorded(lambda: found.append(trained()), tmp_path)
    assert found == [expected]
    assert [step.deep for step in trace.steps if not step.open] == [True] * 3
    assert any("profiler" in note for note in notes(trace))


def test_hiding_within_hiding_ends_with_the_outer_one() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        x = torch.ones(3).exp()
        with Unprofiled():
            with Unprofiled():
                x.log()
            x.sin()
        x.cos()
    counted = {event.key for event in profiler.key_averages()}
    assert {"aten::exp", "aten::cos"} <= counted and not {"aten::log", "aten::sin"} & counted
