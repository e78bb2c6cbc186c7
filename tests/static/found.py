"""What the tests of single detectors share: the lines that a rule marks in a program."""

from __future__ import annotations

from pathlib import Path

from amp_audit import rulebook
from amp_audit.model import Confidence, Finding
from amp_audit.static.check import check

BOOK = rulebook.load()


def findings(folder: Path, rule: str, source: str, **others: str) -> list[Finding]:
    """The findings of one rule in ``train.py``, beside other files of its project, whatever their confidence."""
    for name, text in {"train": source, **others}.items():
        (folder / f"{name}.py").write_text(text)
    found = check([folder], BOOK).findings
    return [each for each in found if each.rule == rule and each.location and each.location.path.endswith("train.py")]


def lines(folder: Path, rule: str, source: str, **others: str) -> list[int]:
    """The lines of those that are shown by default."""
    return sorted(
        each.location.line
        for each in findings(folder, rule, source, **others)
        if each.location is not None and each.confidence >= Confidence.MEDIUM
    )
