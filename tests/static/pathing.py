"""What the tests of the path interpreter share: a program to put code into, and what is found where in it."""

from __future__ import annotations

import textwrap
from pathlib import Path

from amp_audit import rulebook
from amp_audit.static.binding.project import Project
from amp_audit.static.source import lowering
from amp_audit.static.walking import paths

BASE = """
import torch
from torch import nn
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
loader = [(torch.randn(8, 4), torch.randn(8, 2))] * 4
"""


LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
"""


def found(*sources: str, names: tuple[str, ...] = ()) -> set[tuple[str, str, int]]:
    """(rule, file, line) of every finding in modules called main, then ``names``."""
    files = dict(zip((f"/project/{name}.py" for name in ("main", *names)), map(textwrap.dedent, sources)))
    modules = [lowering.lower(path, source) for path, source in files.items()]
    raw, notes = paths.find(Project(modules, Path("/project")), rulebook.load())
    assert notes == []
    place = {path: lowering.positions(source) for path, source in files.items()}
    return {(f.rule.id, Path(f.path).stem, place[f.path](f.at).line) for f in raw}


def line(source: str, text: str) -> int:
    lines = textwrap.dedent(source).split("\n")
    return next(n for n, each in enumerate(lines, 1) if text in each)


def rules(*sources: str, names: tuple[str, ...] = ()) -> set[str]:
    return {rule for rule, _, _ in found(*sources, names=names)}


def in_loop(*statements: str) -> str:
    return BASE + LOOP + textwrap.indent("\n".join(statements), "    ")


CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


UNSCALE = "scaler.unscale_(optimizer)"


STEP = "scaler.step(optimizer)"


UPDATE = "scaler.update()"
