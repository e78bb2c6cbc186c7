"""What the rules that stand on dtypes find in the sources of a project, and what the sources say must be found."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from amp_audit import rulebook
from amp_audit.model import Confidence, Severity
from amp_audit.rulebook import Rulebook
from amp_audit.static import dtypes
from amp_audit.static.binding.project import Project
from amp_audit.static.dtypes import rules
from amp_audit.static.raw import RawFinding
from amp_audit.static.source import ir
from amp_audit.static.source.lowering import lower, positions

TRAIN = """
    import torch
    from model import Net

    def train(loader):
        model = Net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for x, mask in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(x, mask).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""
"""A training program whose model is in ``model.py``."""


def book() -> Rulebook:
    """The rules that have an ``op`` detector, without those that only inform."""
    whole = rulebook.load()
    found = {rule.id: rule for rule, _ in whole.detectors("static", "op") if rule.severity >= Severity.WARNING}
    return Rulebook(found)


def find(files: Mapping[str, str], least: Confidence = Confidence.MEDIUM) -> set[tuple[str, int, str]]:
    """(file, line, rule) of what is found in a project of these files; the same where each is asked for alone."""
    modules = [lower(f"/project/{name}", source) for name, source in files.items()]
    found = dtypes.find(Project(modules, Path("/project")), book())
    for module in modules if len(modules) > 1 else ():
        with mock.patch.object(rules, "_MUCH", 0):  # a small project is looked at as a large one
            alone = dtypes.find(Project(modules, Path("/project")), book(), {module.path})
        assert _of(module, alone) == _of(module, found)
    places = {name: positions(source) for name, source in files.items()}
    return {
        (name, places[name](finding.at).line, finding.rule.id)
        for finding in found
        if finding.confidence >= least
        for name in [finding.path.removeprefix("/project/")]
    }


def _of(module: ir.Module, found: list[RawFinding]) -> list[RawFinding]:
    return [finding for finding in found if finding.path == module.path]


def marked(files: Mapping[str, str]) -> set[tuple[str, int, str]]:
    """(file, line, rule) of the comments that say what must be found."""
    return {
        (name, number, rule)
        for name, source in files.items()
        for number, line in enumerate(source.splitlines(), 1)
        for rule in re.findall(r"AMP\d+", line.partition("#")[2])
    }


def misjudged(**sources: str) -> list[str]:
    """What is told and not marked, or marked and not told; ``pkg__model="..."`` is the file ``pkg/model.py``."""
    files = {f"{name.replace('__', '/')}.py": textwrap.dedent(source) for name, source in sources.items()}
    told, wanted = find(files), marked(files)
    return [
        f"{name}:{line} {rule} is {'told' if (name, line, rule) in told else 'not told'}"
        for name, line, rule in sorted(told ^ wanted)
    ]


def filled(template: str, body: str) -> str:
    """``template`` with ``body`` in the place, and at the depth, of the line ``BODY``."""
    return re.sub(
        r"^( *)BODY$",
        lambda found: textwrap.indent(textwrap.dedent(body), found[1]),
        textwrap.dedent(template),
        flags=re.M,
    )


def messages(source: str, own: Rulebook) -> list[str]:
    """What rules say of one module."""
    module = lower("/project/train.py", textwrap.dedent(source))
    return [finding.message for finding in dtypes.find(Project([module], Path("/project")), own)]


def rule_of(**static: object) -> Rulebook:
    """A book of one rule with this detector."""
    data = {"id": "X001", "name": "x", "severity": "error", "summary": "s", "why": "w", "fix": "f", "static": static}
    return Rulebook({"X001": rulebook.parse_rule(data)})
