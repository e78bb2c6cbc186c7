"""What holds for the repairs of every rule, on the rules' own examples: the outcome is Python, has fewer findings than
before, and nothing is left that could be repaired; findings come with edits that lie in their file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from amp_audit import mending, rulebook
from amp_audit.rulebook import Example
from amp_audit.settings import Configuration, Settings
from amp_audit.static.check import check
from tests.static.fixes.mended import inside

BOOK = rulebook.load()
BAD = [
    pytest.param(example, id=f"{rule.id}-{number}")
    for rule in BOOK.rules.values()
    for number, example in enumerate(rule.examples, 1)
    if rule.static and example.bad
]


@pytest.mark.parametrize("example", BAD)
def test_repairs_of_an_example(example: Example, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(example.code, encoding="utf-8")
    result = check([path], BOOK)
    assert not [note for note in result.coverage.notes if "internal error" in note]
    fixes = [finding.fix for finding in result.findings if finding.fix is not None]
    lines = example.code.split("\n")
    for edit in (edit for fix in fixes for edit in fix.edits):
        assert edit.path == str(path) and (edit.line, edit.column) <= (edit.end_line, edit.end_column)
        assert edit.line <= len(lines) and edit.column <= len(lines[edit.line - 1]) + 1
    if not fixes:
        return
    with inside(tmp_path):
        done = mending.mend([Path("train.py")], Configuration(Settings(root=tmp_path)), unsafe=True)
        after = done.after.get("train.py", example.code.encode())
        ast.parse(after)
        assert (done.count > 0) is (after != example.code.encode())
        mending.write(done)
        again = mending.mend([Path("train.py")], Configuration(Settings(root=tmp_path)), unsafe=True)
    assert again.after.get("train.py", after) == after
