"""Every example of every rule, read: exactly the marked lines are found, by exactly the marked rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import amp_audit
from amp_audit import rulebook
from amp_audit.model import Severity
from amp_audit.rulebook import Example, Rule
from amp_audit.settings import Settings

BOOK = rulebook.load()
CASES = [
    pytest.param(rule, example, id=f"{rule.id}-{number}-{'bad' if example.bad else 'good'}")
    for rule in BOOK.rules.values()
    if rule.static
    for number, example in enumerate(rule.examples, 1)
]
MARK = re.compile(r"#.*?\b(AMP\d{3}(?:[ ,]+AMP\d{3})*)")


def marked(code: str) -> set[tuple[int, str]]:
    return {
        (number, rule)
        for number, line in enumerate(code.split("\n"), 1)
        for match in [MARK.search(line)]
        if match is not None
        for rule in re.split(r"[ ,]+", match[1])
    }


@pytest.mark.parametrize(("rule", "example"), CASES)
def test_example(rule: Rule, example: Example, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(example.code, encoding="utf-8")
    report = amp_audit.check(path, settings=Settings(root=tmp_path))
    found = {
        (finding.location.line, finding.rule)
        for finding in report.findings
        if finding.location is not None and (finding.severity >= Severity.WARNING or finding.rule == rule.id)
    }
    assert found == marked(example.code)


@pytest.mark.parametrize("rule", [rule for rule in BOOK.rules.values() if rule.static], ids=lambda rule: rule.id)
def test_a_rule_has_examples_of_both_kinds(rule: Rule) -> None:
    bad = [example for example in rule.examples if example.bad]
    assert len(bad) >= 2 and len(rule.examples) - len(bad) >= 3
    assert all(rule.id in {name for _, name in marked(example.code)} for example in bad)
    assert not any(marked(example.code) for example in rule.examples if not example.bad)
