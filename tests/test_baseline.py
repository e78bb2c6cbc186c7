"""A baseline through the command line: what it knows stays silent, what is new does not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from amp_audit import cli

SCALER = "import torch\nscaler = torch.cuda.amp.GradScaler()\n"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCALER)


def check(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert cli.main(["check", "--format", "json", "--select", "AMP101,AMP102,AMP001", *words]) == code
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return data


def test_what_is_known_is_silent_also_after_its_lines_moved(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(check(capsys, code=1)["findings"]) == 1
    data = check(capsys, "--write-baseline", "known.json")
    assert (
        data["findings"] == [] and "1 finding written to known.json, as known from now on" in data["coverage"]["notes"]
    )
    Path("train.py").write_text("# moved\n\n" + SCALER)
    data = check(capsys, "--baseline", "known.json")
    assert data["findings"] == [] and data["coverage"]["baseline"] == {"known": 1, "stale": []}


def test_a_new_finding_of_the_same_kind_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, "--write-baseline", "known.json")
    Path("train.py").write_text(SCALER + "scaler = torch.cuda.amp.GradScaler()\n")
    (finding,) = check(capsys, "--baseline", "known.json", code=1)["findings"]
    assert finding["line"] == 3


def test_an_entry_that_is_found_no_more_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    Path("gone.py").write_text(SCALER)
    check(capsys, "--write-baseline", "known.json")
    Path("train.py").write_text("import torch\nscaler = torch.amp.GradScaler('cuda')\n")
    Path("gone.py").unlink()
    data = check(capsys, "--baseline", "known.json")
    assert data["coverage"]["baseline"]["stale"] == [
        {"path": "gone.py", "rule": "AMP101"},
        {"path": "train.py", "rule": "AMP101"},
    ]
    assert any("2 entries of the baseline found no more" in note for note in data["coverage"]["notes"])


def test_files_and_rules_that_were_not_looked_at_are_not_stale(capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.py").write_text(SCALER)
    check(capsys, "--write-baseline", "known.json")
    data = check(capsys, "--baseline", "known.json", "train.py")
    assert data["coverage"]["baseline"] == {"known": 1, "stale": []}
    data = check(capsys, "--baseline", "known.json", "--ignore", "AMP101")
    assert data["coverage"]["baseline"] == {"known": 0, "stale": []}


def test_the_same_finding_has_the_same_fingerprint_wherever_the_search_began(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("deep").mkdir()
    Path("deep/train.py").write_text(SCALER)
    marks = set()
    for words in ([], ["deep"], ["deep/train.py"], [os.path.abspath("deep")]):
        found = check(capsys, *words, code=1)["findings"]
        marks |= {finding["fingerprint"] for finding in found if "deep" in finding["path"]}
    assert len(marks) == 1


def test_the_file_is_the_same_for_the_same_findings(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.py").write_text(SCALER)
    check(capsys, "--write-baseline", "one.json", "a.py", "train.py")
    Path("train.py").write_text("\n\n" + SCALER)
    check(capsys, "--write-baseline", "two.json", "train.py", "a.py")
    assert Path("one.json").read_bytes() == Path("two.json").read_bytes()
    paths = [entry["path"] for entry in json.loads(Path("one.json").read_text())["findings"]]
    assert paths == ["a.py", "train.py"]


def test_the_settings_name_a_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").write_text("[tool.amp-audit]\nbaseline = 'known.json'\n")
    assert cli.main(["check"]) == 2
    assert "known.json: No such file or directory; amp-audit check --write-baseline" in capsys.readouterr().err
    check(capsys, "--write-baseline", "known.json")
    assert check(capsys)["coverage"]["baseline"]["known"] == 1


def test_a_file_that_cannot_be_read_is_never_known(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text("from torch import autocast\nautocast(\n")
    check(capsys, "--write-baseline", "known.json", code=2)
    data = check(capsys, "--baseline", "known.json", code=2)
    assert [finding["rule"] for finding in data["findings"]] == ["AMP001"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "not a baseline of amp-audit"),
        ('{"tool": "amp-audit", "version": 9, "findings": []}', "version 9"),
        ('{"tool": "amp-audit", "version": 1, "findings": {}}', "`findings` must be a list"),
        ('{"tool": "amp-audit", "version": 1, "findings": [{"rule": 1}]}', "finding number 1"),
        ("[" * 100_000, "not valid JSON"),
    ],
    ids=["torn", "no object", "version", "no list", "entry", "deep"],
)
def test_a_baseline_that_is_none_is_one_clear_line(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("known.json").write_text(text)
    assert cli.main(["check", "--baseline", "known.json"]) == 2
    error = capsys.readouterr().err
    assert said in error and "known.json" in error and error.count("\n") == 1


def test_a_place_that_cannot_be_written_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--write-baseline", "no/such/folder.json"]) == 2
    assert "no/such/folder.json" in capsys.readouterr().err
