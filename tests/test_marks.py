from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import amp_audit
from amp_audit import marks, rulebook
from amp_audit.model import Confidence, Finding, Location, Subject, Verdict

from .test_packaging import BAD

BOOK = rulebook.load()


def seen(path: str | Path, line: int, rule: str = "AMP202") -> Finding:
    own = BOOK[rule]
    place = Location(str(path), line)
    return Finding(rule, own.name, own.severity, Confidence.HIGH, own.summary, place, verdict=Verdict.RUNTIME)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def fingerprints(*findings: Finding) -> list[str]:
    return [finding.fingerprint for finding in marks.finish(findings, BOOK)]


def test_a_finding_of_a_run_is_known_by_what_reading_would_know_it_by(tmp_path: Path) -> None:
    wrapped = "def train():\n" + "".join(f"    {line}\n" for line in BAD.splitlines())
    (tmp_path / "train.py").write_text(wrapped)
    (read,) = [finding for finding in amp_audit.check("train.py").findings if finding.rule == "AMP202"]
    assert read.location is not None
    assert fingerprints(seen(tmp_path / "train.py", read.location.line)) == [read.fingerprint]


def test_a_fingerprint_survives_moved_lines_but_not_another_statement(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("class A:\n    def f(self):\n        clip(a)\n        clip(b)\n")
    first, second = fingerprints(seen(path, 3), seen(path, 4))
    path.write_text("# moved\n\nclass A:\n    def f(self):\n        clip( a )  # said\n")
    assert fingerprints(seen(path, 5)) == [first] != [second]
    path.write_text("class B:\n    def f(self):\n        clip(a)\n")
    assert fingerprints(seen(path, 3)) != [first]


def test_equal_statements_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("clip(a)\nclip(a)\n")
    one, two = fingerprints(seen("a.py", 1), seen("a.py", 2))
    assert one != two


def test_a_comment_silences_what_a_run_finds(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "clip(a)  # amp-audit: ignore[AMP202] the norm is only logged\n"
        "clip(a)  # amp-audit: ignore[AMP203]\n"
        "clip(a)\n"
    )  # fmt: skip
    kept = marks.finish([seen("a.py", line) for line in (1, 2, 3)], BOOK)
    assert [finding.location.line for finding in kept if finding.location] == [2, 3]


def test_what_has_no_source_has_a_fingerprint_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:\n")
    lost = replace(seen("gone.py", 1, "AMP514"), location=None, subject=Subject("parameter", "fc.weight"))
    marked = fingerprints(seen("gone.py", 1), seen("broken.py", 1), lost, replace(lost, subject=None))
    assert len(set(marked)) == 4 and all(len(mark) == 64 for mark in marked)
