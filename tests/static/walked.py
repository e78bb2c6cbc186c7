"""What the tests of the path interpreter share: a loop to put code into, and the rules that a program breaks."""

from __future__ import annotations

import textwrap
from pathlib import Path

from amp_audit import rulebook
from amp_audit.static.binding.project import Project
from amp_audit.static.source import lowering
from amp_audit.static.walking import paths

HEAD = """
import torch
from torch import nn

def train(model, optimizer, loader, args, scaler=None):
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
"""


def rules(body: str) -> set[str]:
    source = HEAD + textwrap.indent(textwrap.dedent(body), " " * 8)
    raw, notes = paths.find(Project([lowering.lower("/project/main.py", source)], Path("/project")), rulebook.load())
    assert notes == []
    return {found.rule.id for found in raw}


def ids(source: str) -> set[str]:
    module = lowering.lower("/project/main.py", textwrap.dedent(source))
    raw, _ = paths.find(Project([module], Path("/project")), rulebook.load())
    return {found.rule.id for found in raw}
