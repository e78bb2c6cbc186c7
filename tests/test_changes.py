"""``--diff``: the findings that changed lines concern, in checkouts as people have them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from amp_audit import cli

GOOD = """\
import torch

model = torch.nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in torch.randn(8, 4, 2).cuda():
    optimizer.zero_grad()
    with torch.autocast("cuda"): loss = model(x).sum()
    scaler.scale(loss).backward()
    # one

    scaler.unscale_(optimizer)

    # two
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
BAD = GOOD.replace("    scaler.unscale_(optimizer)\n", "")
OLD = "import torch\nscaler = torch.cuda.amp.GradScaler()\n"


def git(*words: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], check=True, capture_output=True)


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    git("init", "-q", "-b", "main")


def commit(**files: str) -> None:
    for name, text in files.items():
        path = Path(name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git("add", "-A")
    git("commit", "-q", "-m", "c")


def check(capsys: pytest.CaptureFixture[str], *words: str) -> list[tuple[str, str, int]]:
    code = cli.main(["check", "--format", "json", *words])
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == data["exit_code"] == (1 if data["findings"] else 0), data
    return [(finding["rule"], finding["path"], finding["line"]) for finding in data["findings"]]


def test_findings_on_changed_lines_stay_and_others_go(capsys: pytest.CaptureFixture[str]) -> None:
    commit(train=OLD)
    Path("train.py").write_text(OLD + "other = torch.cuda.amp.GradScaler()\n")
    assert len(check(capsys)) == 2
    assert check(capsys, "--diff", "HEAD") == [("AMP101", "train.py", 3)]


def test_a_deleted_line_makes_an_unchanged_one_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    commit(train=GOOD)
    assert check(capsys) == []
    Path("train.py").write_text(BAD)
    assert check(capsys, "--diff", "HEAD") == [("AMP202", "train.py", 14)]
    git("commit", "-aqm", "deleted")
    assert check(capsys, "--diff", "HEAD") == []
    assert check(capsys, "--diff", "HEAD~1") == [("AMP202", "train.py", 14)]


def test_a_change_of_a_related_line_counts(capsys: pytest.CaptureFixture[str]) -> None:
    commit(train=BAD)
    Path("train.py").write_text(BAD.replace("scaler.scale(loss).backward()", "scaler.scale(loss / 2).backward()"))
    assert check(capsys, "--diff", "HEAD") == [("AMP202", "train.py", 14)]
    Path("train.py").write_text(BAD.replace("lr=0.1", "lr=0.2"))
    assert check(capsys, "--diff", "HEAD") == []


def test_what_main_gained_meanwhile_is_no_change_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    commit(train=OLD)
    git("checkout", "-qb", "ours")
    commit(more="x = 1\n")
    git("checkout", "-q", "main")
    commit(train="import torch\n")
    git("checkout", "-q", "ours")
    assert check(capsys, "--diff", "main") == []
    assert len(check(capsys)) == 1


def test_untracked_files_count_and_ignored_ones_do_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    commit(train=OLD)
    Path("new name é.py").write_text(OLD)
    Path(".gitignore").write_text("skip.py\n")
    Path("skip.py").write_text(OLD)
    assert check(capsys, "--diff", "HEAD") == [("AMP101", "new name é.py", 2)]


def test_a_renamed_file_has_the_changes_made_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    commit(old=OLD + "# line\n" * 30)
    git("mv", "old.py", 'n"ew é.py')
    assert check(capsys, "--diff", "HEAD") == []
    Path('n"ew é.py').write_text(OLD + "s = torch.cuda.amp.GradScaler()\n" + "# line\n" * 30)
    assert check(capsys, "--diff", "HEAD") == [("AMP101", 'n"ew é.py', 3)]


def test_lines_that_look_like_headers_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    commit(train=OLD, z=OLD)
    Path("train.py").write_text(OLD + '"""\n++ b/z.py\n@@ -1 +1,9 @@\n-- a/z.py\n"""\n')
    assert check(capsys, "--diff", "HEAD") == []


def test_the_checkout_is_that_of_the_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(deep__train=OLD)
    Path("deep/train.py").write_text(OLD + "s = torch.cuda.amp.GradScaler()\n")
    monkeypatch.chdir(tmp_path.parent)
    (found,) = check(capsys, "--diff", "HEAD", str(tmp_path / "deep"))
    assert found[2] == 3


def test_a_change_in_a_notebook_is_a_change_of_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    cell = {"cell_type": "code", "source": OLD}
    Path("a.ipynb").write_text(json.dumps({"cells": [cell], "nbformat": 4}))
    commit()
    assert check(capsys, "--diff", "HEAD") == []
    Path("a.ipynb").write_text(json.dumps({"cells": [cell, cell], "nbformat": 4}))
    assert len(check(capsys, "--diff", "HEAD")) == 2


@pytest.mark.parametrize("ref", ["nowhere", "--output=stolen", "HEAD:train.py"])
def test_what_is_no_commit_is_one_clear_line(ref: str, capsys: pytest.CaptureFixture[str]) -> None:
    commit(train=OLD)
    assert cli.main(["check", f"--diff={ref}"]) == 2
    error = capsys.readouterr().err
    assert f"--diff {ref}: git knows no such commit" in error and error.count("\n") == 1
    assert not Path("stolen").exists()


def test_without_a_checkout_it_says_so(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("bare"))
    Path("train.py").write_text(OLD)
    assert cli.main(["check", "--diff", "HEAD"]) == 2
    assert "is in no checkout of git" in capsys.readouterr().err


def test_without_git_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").write_text(OLD)
    monkeypatch.setenv("PATH", "")
    assert cli.main(["check", "--diff", "HEAD"]) == 2
    assert capsys.readouterr().err == "amp-audit: --diff needs git, which is not installed here\n"
