"""Kept results: the same as new ones, and gone as soon as anything changed that they rest on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.model import Finding
from amp_audit.static import cache
from amp_audit.static import examination as module
from amp_audit.static.check import CheckResult, Options, check
from amp_audit.static.source.lowered import Shelf

BOOK = rulebook.load()
LOOP = """\
from tools import backward, scaler
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in []:
    optimizer.zero_grad()
    backward(model(x).sum())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
TOOLS = "import torch\nscaler = torch.amp.GradScaler('cuda')\ndef backward(loss):\n    scaler.scale(loss).backward()\n"
PLAIN = TOOLS.replace("scaler.scale(loss).backward()", "scaler.scale(loss).backward(); scaler.unscale_(None)")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(LOOP)
    (folder / "tools.py").write_text(TOOLS)
    monkeypatch.chdir(folder)
    return tmp_path / "cache"


def run(where: Path, *paths: str, rules: frozenset[str] | None = None) -> CheckResult:
    return check(list(paths) or ["train.py"], BOOK, Options(cache=where, rules=rules))


def names(result: CheckResult) -> list[str]:
    return [finding.rule for finding in result.findings]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files each check has lowered."""
    counts: list[int] = []
    lower_all = module.lower_all

    def counting(sources: list[module.Source], shelf: Shelf | None) -> object:
        counts.append(len(sources))
        return lower_all(sources, shelf)

    monkeypatch.setattr(module, "lower_all", counting)
    return counts


def test_a_second_check_reads_nothing_and_says_the_same(project: Path, reads: list[int]) -> None:
    first = run(project)
    assert names(first) == ["AMP202"] and reads == [2]
    assert run(project) == first and reads == [2]
    assert first == check(["train.py"], BOOK)


@pytest.mark.parametrize("rule", [rule for rule in BOOK.rules if BOOK[rule].static])
def test_findings_survive_being_kept(rule: str, project: Path) -> None:
    for number, example in enumerate(BOOK[rule].examples):
        Path(f"e{number}.py").write_text(example.code)
    assert run(project, ".") == run(project, ".")


def test_what_it_rests_on_ends_it(project: Path, reads: list[int]) -> None:
    run(project)
    Path("tools.py").write_text(PLAIN)  # not asked for, read for context
    assert len(reads) == 1
    run(project)
    assert len(reads) == 2
    Path("tools.py").write_text(TOOLS)
    run(project)
    assert len(reads) == 3  # an entry is for what lay there last
    Path("train.py").write_text("# moved\n" + LOOP)
    assert [f.location.line for f in run(project).findings if f.location] == [9]
    before = len(reads)
    run(project, rules=frozenset({"AMP101"}))
    assert len(reads) == before + 1


def test_a_file_that_now_comes_first_in_an_import_ends_it(project: Path, reads: list[int]) -> None:
    run(project)
    Path("tools").mkdir()
    Path("tools/__init__.py").write_text("from torch import x as scaler\ndef backward(loss): loss.backward()\n")
    assert names(run(project)) != ["AMP202"] and len(reads) == 2


def test_other_rules_and_another_folder_are_other_entries(
    project: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run(project)
    monkeypatch.chdir(tmp_path)
    found = run(project, "project/train.py")
    assert len(reads) == 2 and [f.location.path for f in found.findings if f.location] == ["project/train.py"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("AMP202", "AMP203"),
        lambda text: "\0" * len(text),
        lambda text: f"{cache.digest(b'[]')}\n[]",
        lambda text: f"{cache.digest(b'{}')}\n{{}}",
    ],
    ids=["empty", "torn", "changed", "zeros", "list", "nothing"],
)
def test_a_spoilt_entry_is_none(project: Path, reads: list[int], spoil: object) -> None:
    first = run(project)
    (entry,) = project.glob("*.kept")
    entry.write_text(spoil(entry.read_text()))  # type: ignore[operator]
    assert run(project) == first and len(reads) == 2
    assert run(project) == first and len(reads) == 2  # it was mended


def test_a_check_that_failed_somewhere_is_not_kept(project: Path) -> None:
    Path("broken.py").write_text("from torch import autocast\nautocast(\n")
    assert "AMP001" in names(run(project, "."))
    assert not (project / "amp-audit" / "check").exists()


def test_a_folder_that_cannot_be_written_costs_nothing(project: Path) -> None:
    project.write_text("a file")
    assert names(run(project)) == ["AMP202"]


def test_only_the_entries_used_last_are_kept(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_ENTRIES", 3)
    for number in range(5):
        Path("train.py").write_text(f"x = {number}\n{LOOP}")
        run(project)
        for age, entry in enumerate(sorted(project.glob("*.kept"), key=lambda path: path.stat().st_mtime_ns)):
            os.utime(entry, (age, age))
    assert len(list(project.glob("*.kept"))) == 3


def test_processes_at_once_do_not_meet_half_an_entry(project: Path) -> None:
    environ = {**os.environ, "XDG_CACHE_HOME": str(project)}
    command = [sys.executable, "-m", "amp_audit", "check", "--format", "json", "train.py"]
    started = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [process.communicate()[0] for process in started]
    assert len(set(answers)) == 1 and json.loads(answers[0])["findings"][0]["rule"] == "AMP202"
    kept = [path.suffix for path in (project / "amp-audit" / "check").rglob("*") if path.is_file()]
    assert set(kept) == {".kept"}


def test_no_cache_reads_anew(project: Path) -> None:
    environ = {**os.environ, "XDG_CACHE_HOME": str(project)}
    command = [sys.executable, "-m", "amp_audit", "check", "--no-cache", "train.py"]
    assert subprocess.run(command, env=environ, capture_output=True).returncode == 1
    assert not (project / "amp-audit" / "check").exists()


def test_every_field_of_a_finding_is_kept() -> None:
    finding = check_all_fields()
    assert cache._finding(json.loads(json.dumps(cache._plain(finding)))) == finding


def check_all_fields() -> Finding:
    from amp_audit.model import (
        Confidence,
        Edit,
        Evidence,
        Fix,
        Location,
        Related,
        Severity,
        Subject,
        Verdict,
    )

    place = Location("a.py", 1, 2, 3, 4, 5)
    return Finding(
        "AMP202",
        "name",
        Severity.ERROR,
        Confidence.LOW,
        "message",
        place,
        Verdict.NOT_EXERCISED,
        Subject("parameter", "w"),
        "f" * 64,
        (Related(place, "there"),),
        (Evidence("static", "number", "text", "a.py", 1, "n", 2.5, "u", (1, 2), 3),),
        Fix(True, "how", (Edit("a.py", 1, 2, 3, 4, "text", 5),)),
        "note",
    )


RECYCLED = """\
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in []:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.no_grad():
            first = model(x)
        loss = model(first).sum()
    loss.backward()
    optimizer.step()
"""


def test_another_pin_ends_it(project: Path) -> None:
    folder = Path.cwd()
    (folder / ".git").mkdir()
    (folder / "train.py").write_text(RECYCLED)
    for pin, expected in ((None, []), ("torch==2.5.1\n", ["AMP305"]), ("torch>=2.5.1\n", []), (None, [])):
        if pin is None:
            (folder / "requirements.txt").unlink(missing_ok=True)
        else:
            (folder / "requirements.txt").write_text(pin)
        assert [rule for rule in names(run(project)) if rule == "AMP305"] == expected


def test_another_config_that_the_code_names_ends_it(project: Path) -> None:
    source = "from transformers import TrainingArguments\na = TrainingArguments('o', bf16=True, deepspeed='ds.json')\n"
    Path("train.py").write_text(source)
    assert names(run(project)) == []
    Path("ds.json").write_text('{"fp16": {"enabled": true}}')
    assert names(run(project)) == names(run(project)) == ["AMP805"]
    Path("ds.json").write_text('{"fp16": {"enabled": "auto"}}')
    assert names(run(project)) == []
