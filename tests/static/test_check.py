"""The static half from paths to findings: places, fingerprints, failures, coverage."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.model import Finding, Severity
from amp_audit.static import examination
from amp_audit.static.check import CheckResult, Options, check
from amp_audit.static.findings import tokens
from amp_audit.static.source.sources import SourceError

BOOK = rulebook.load()
CLIP = """\
import torch
from torch import nn

model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")


def train(loader):
    for x in loader:
        optimizer.zero_grad()
        scaler.scale(model(x).sum()).backward()
        nn.utils.clip_grad_norm_(
            model.parameters(), 1.0
        )
        scaler.step(optimizer)
        scaler.update()
"""


def run(path: Path, source: str | bytes, **options: object) -> CheckResult:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source.encode() if isinstance(source, str) else source)
    return check([path], BOOK, Options(**options))  # type: ignore[arg-type]


def only(result: CheckResult) -> Finding:
    assert len(result.findings) == 1, result.findings
    return result.findings[0]


def test_a_finding_has_its_place_its_steps_and_the_rules_word(tmp_path: Path) -> None:
    found = only(run(tmp_path / "train.py", CLIP))
    place = found.location
    assert place is not None
    assert (found.rule, found.name, found.severity) == ("AMP202", "clip-before-unscale", Severity.ERROR)
    assert (place.line, place.column, place.end_line, place.end_column) == (13, 9, 15, 10)
    assert any(item.location.line == 12 for item in found.related)
    assert {(item.line, item.source, item.kind) for item in found.evidence} >= {(12, "static", "step")}


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_newlines_do_not_move_findings(tmp_path: Path, newline: str) -> None:
    plain = only(run(tmp_path / "train.py", CLIP))
    other = only(run(tmp_path / "train.py", CLIP.replace("\n", newline)))
    assert other == plain


def test_paths_are_relative_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert only(run(Path("sub/train.py"), CLIP)).location.path == os.path.join("sub", "train.py")  # type: ignore[union-attr]


# Fingerprints


def test_a_fingerprint_survives_moved_lines_and_layout_but_not_another_statement(tmp_path: Path) -> None:
    mark = only(run(tmp_path / "train.py", CLIP)).fingerprint
    moved = "# a comment\n\n" + CLIP.replace(
        "            model.parameters(), 1.0\n", "   model.parameters(),1.0  # x\n"
    )
    assert only(run(tmp_path / "train.py", moved)).fingerprint == mark
    assert only(run(tmp_path / "train.py", CLIP.replace("1.0", "2.0"))).fingerprint != mark
    assert only(run(tmp_path / "train.py", CLIP.replace("def train", "def fit"))).fingerprint != mark
    assert only(run(tmp_path / "other.py", CLIP)).fingerprint != mark


def test_equal_statements_have_fingerprints_of_their_own(tmp_path: Path) -> None:
    source = "import torch\na = torch.cuda.amp.GradScaler()\na = torch.cuda.amp.GradScaler()\n"
    marks = [finding.fingerprint for finding in run(tmp_path / "x.py", source).findings]
    assert len(marks) == len(set(marks)) == 2
    assert all(re.fullmatch("[0-9a-f]{64}", mark) for mark in marks)


def test_tokens_are_the_same_for_every_layout() -> None:
    assert tokens("f(a ,\n  'b c',  # why\n  1)") == tokens("f(a, 'b c', 1)")
    assert tokens("f('b  c')") != tokens("f('b c')")
    assert tokens("'#' + x") == "'#' + x"


# What cannot be read


def test_a_broken_file_is_a_finding_and_the_others_are_checked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CLIP)
    (tmp_path / "broken.py").write_text("from torch import autocast\nwith autocast(\n")
    (tmp_path / "latin.py").write_bytes(b"autocast()\nx = '\xff'\n")
    result = check([tmp_path], BOOK)
    assert [(f.rule, os.path.basename(f.location.path), f.location.line) for f in result.findings if f.location] == [
        ("AMP001", "broken.py", 2),
        ("AMP001", "latin.py", 2),
        ("AMP202", "train.py", 13),
    ]
    assert (result.coverage.files_checked, result.coverage.files_failed) == (1, 2)


def test_a_broken_file_without_a_trigger_word_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import helper\n" + CLIP)
    (tmp_path / "helper.py").write_text("def (:\n")
    (tmp_path / "lone.py").write_text("def (:\n")
    result = check([tmp_path], BOOK)
    assert only(result).rule == "AMP202"
    assert (result.coverage.files_skipped, result.coverage.files_failed) == (2, 0)


def test_a_missing_path_and_a_folder_without_python(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(SourceError):
            check([path], BOOK)


def test_a_default_that_calls_its_own_function_ends(tmp_path: Path) -> None:
    source = "import torch\n\n\ndef train(x, flag=train(0)):\n    return x.half() + flag\n\n\ntrain(torch.half)\n"
    assert run(tmp_path / "train.py", source).coverage.notes == ()


def test_a_generated_file_is_left_out_and_named(tmp_path: Path) -> None:
    result = run(tmp_path / "table.py", CLIP + "".join(f"x{i} = [{i}, 'abc', f({i})]\n" for i in range(80_000)))
    assert result.findings == () and (result.coverage.files_checked, result.coverage.files_skipped) == (0, 1)
    (note,) = result.coverage.notes
    assert "table.py: not read" in note and "MB of source" in note


def test_an_error_of_a_detector_is_told_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[object]:
        raise KeyError("lost")

    monkeypatch.setitem(examination._DETECTORS, "dtypes", broken)  # type: ignore[arg-type]
    result = run(tmp_path / "train.py", CLIP)
    assert only(result).rule == "AMP202"
    assert result.coverage.files_failed == 1
    assert any("internal error" in note and "lost" in note for note in result.coverage.notes)


# Notebooks, context, several projects


def test_findings_in_a_notebook_stand_in_their_cell(tmp_path: Path) -> None:
    first, second = CLIP.split("\n\n\n")
    cells = [
        {"cell_type": "code", "source": first.splitlines(keepends=True)},
        {"cell_type": "markdown", "source": ["# text"]},
        {"cell_type": "code", "source": "%matplotlib inline\n" + second},
    ]
    data = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4})
    place = only(run(tmp_path / "train.ipynb", data)).location
    assert place is not None
    assert (place.cell, place.line, place.column, place.end_line) == (2, 6, 9, 8)


def test_findings_in_imported_files_count_only_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(CLIP)
    script = "from engine import train\ntrain([])\n"
    assert run(tmp_path / "main.py", script + "# autocast\n").findings == ()
    found = only(run(tmp_path / "main.py", script + "# autocast\n", follow=True))
    assert found.location is not None and os.path.basename(found.location.path) == "engine.py"


def test_a_program_that_says_nothing_itself_is_followed(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(CLIP)
    found = only(run(tmp_path / "main.py", "import engine\nengine.train([])\n", follow=True))
    assert found.location is not None and os.path.basename(found.location.path) == "engine.py"


def test_two_checkouts_do_not_see_each_other(tmp_path: Path) -> None:
    for name, source in {"one": "from tools import GradScaler\ns = GradScaler()\n", "two": ""}.items():
        (tmp_path / name / ".git").mkdir(parents=True)
        (tmp_path / name / "train.py").write_text(source)
    (tmp_path / "two" / "tools").mkdir()
    (tmp_path / "two" / "tools" / "__init__.py").write_text("import torch\n\nGradScaler = torch.cuda.amp.GradScaler\n")
    assert check([tmp_path], BOOK).findings == ()


def test_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    paths = []
    for rule in list(BOOK.rules.values())[:20]:
        for number, example in enumerate(rule.examples):
            paths.append(tmp_path / f"{rule.id}_{number}.py")
            paths[-1].write_text(example.code)
    expected = check(paths, BOOK).findings
    random.Random(1).shuffle(paths)
    assert check(paths, BOOK).findings == expected
