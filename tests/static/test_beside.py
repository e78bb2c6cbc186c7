"""Work in a second process gives what it gives in one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.records import replace
from amp_audit.static import beside, examination
from amp_audit.static.beside import Beside, is_worth_it
from amp_audit.static.binding.project import Project
from amp_audit.static.check import Options, check

BOOK = rulebook.load()

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")

PROGRAM = """
import torch
from torch import nn
from parts import scores

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = scores(model(x), y)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

def main():
    train(nn.Linear(4, 4), [], None)
"""
PARTS = """
def scores(x, y):
    return (x @ y.T).masked_fill(y > 0, -1e9).softmax(-1).sum()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "parts.py").write_text(PARTS)
    return tmp_path


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were made, however many cores and threads there are."""
    made: list[int] = []
    fork = os.fork

    def counted() -> int:
        made.append(fork())
        return made[-1]

    monkeypatch.setattr(os, "fork", counted)
    monkeypatch.setattr(examination, "is_worth_it", lambda: True)
    return made


def test_two_processes_find_what_one_does(folder: Path, forks: list[int]) -> None:
    alone = check([folder], BOOK, Options())
    assert forks == [] and {each.rule for each in alone.findings} == {"AMP202", "AMP501"}
    assert check([folder], BOOK, Options(beside=True)) == alone
    assert len(forks) == 1


def test_a_large_project_is_read_by_one(folder: Path, forks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "MOST_BESIDE", len(PROGRAM))
    check([folder], BOOK, Options(beside=True))
    assert forks == []


def test_where_the_other_process_looked_is_kept(folder: Path, forks: list[int], tmp_path: Path) -> None:
    """What is kept holds until something changes there, so both ways have to keep the same."""
    kept = []
    for name, options in (("one", Options()), ("two", Options(beside=True))):
        place = tmp_path / name
        check([folder / "train.py"], BOOK, replace(options, cache=place))
        kept.append({path.name: path.read_bytes() for path in place.glob("*.kept")})
    assert len(forks) == 1 and kept[0] == kept[1] != {}


def test_all_that_a_copy_has_asked_the_disk_is_learnt(folder: Path) -> None:
    first, copy = (Project([], folder) for _ in range(2))
    copy.layout.read["weights.json"] = None
    copy.layout.listed["listed"] = ""
    assert copy.layout.is_file(str(folder / "train.py"))
    copy.read_everything = True
    examination.Looked.of(copy).into(first)
    assert first.read_everything
    for name in ("read", "listed", "asked"):
        assert getattr(first.layout, name) == getattr(copy.layout, name) != {}


def test_rules_come_back_as_what_they_are() -> None:
    rule = BOOK["AMP202"]
    assert Beside(lambda: [rule], BOOK.rules).result()[0] is rule


def test_what_is_raised_there_is_raised_here() -> None:
    def fails() -> None:
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        Beside(fails, {}).result()


@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(0)])
def test_a_process_that_came_to_nothing_is_made_up_for(end: object) -> None:
    here = os.getpid()

    def work() -> int:
        if os.getpid() != here:
            assert callable(end)
            end()
        return 7

    assert Beside(work, {}).result() == 7


def test_where_no_process_can_be_made_the_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    assert Beside(lambda: 7, {}).result() == 7


def test_where_the_end_of_a_child_is_ignored_its_result_counts() -> None:
    here = os.getpid()
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert Beside(lambda: os.getpid() != here, {}).result()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_who_reads_the_output_waits_for_the_first_process_alone() -> None:
    source = """
import os, time
from amp_audit.static.beside import Beside
Beside(lambda: time.sleep(30), {})
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", source], capture_output=True, timeout=20, check=True)


def test_what_cannot_be_sent_is_made_here() -> None:
    assert Beside(lambda: threading.Lock(), {}).result().acquire()


def test_much_is_sent_whole() -> None:
    assert len(Beside(lambda: b"x" * 5_000_000, {}).result()) == 5_000_000


def test_one_core_or_other_threads_are_no_place_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(beside.threading, "active_count", lambda: 2)
    assert is_worth_it()
    monkeypatch.setattr(beside.threading, "active_count", lambda: 3)
    assert not is_worth_it()
    monkeypatch.setattr(beside.threading, "active_count", lambda: 2)
    monkeypatch.setattr(beside.os, "sched_getaffinity", lambda pid: {0})
    assert not is_worth_it()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be taken away")
def test_the_command_line_says_the_same_on_one_core(folder: Path) -> None:
    """Nothing is printed twice, and the exit code is that of the whole."""
    command = [sys.executable, "-W", "error", "-m", "amp_audit", "check", "--no-cache", "--format", "json", "."]
    ours = os.sched_getaffinity(0)
    found = [
        subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda cores=cores: os.sched_setaffinity(0, cores),
        )
        for cores in (ours, {min(ours)})
    ]
    assert found[0].returncode == found[1].returncode == 1
    assert found[0].stderr == found[1].stderr == ""
    assert json.loads(found[0].stdout)["findings"] == json.loads(found[1].stdout)["findings"] != []
