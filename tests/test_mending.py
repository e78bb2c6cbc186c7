"""``check --fix``, ``--unsafe-fixes`` and ``--preview`` from the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

OLD = "import torch\n\nscaler = torch.cuda.amp.GradScaler()\n"
NEW = 'import torch\n\nscaler = torch.amp.GradScaler("cuda")\n'
UNSURE = "\n\ndef build(cfg):\n    return torch.amp.GradScaler(cfg.use_amp)\n"
NAMED = UNSURE.replace("(cfg.use_amp)", '("cuda", enabled=cfg.use_amp)')


def check(folder: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "amp_audit", "check", *options, "train.py"], cwd=folder, capture_output=True, check=False
    )


def test_fix_writes_and_what_remains_decides(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(OLD + UNSURE)
    first = check(tmp_path)
    assert first.returncode == 1 and b"1 fixable with amp-audit check --fix; 1 more with --unsafe-fixes" in first.stdout
    safe = check(tmp_path, "--fix")
    assert path.read_text() == NEW + UNSURE and safe.returncode == 1 and b"1 finding fixed" in safe.stdout
    both = check(tmp_path, "--fix", "--unsafe-fixes", "--format", "json")
    assert path.read_text() == NEW + NAMED and both.returncode == 0
    document = json.loads(both.stdout)
    assert document["findings"] == [] and document["fixed"] == 1


def test_preview_is_a_diff_that_git_applies_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes((OLD + UNSURE).replace("\n", "\r\n").encode())
    before = path.read_bytes()
    shown = check(tmp_path, "--preview", "--unsafe-fixes")
    assert path.read_bytes() == before and shown.returncode == 1
    if shutil.which("git") is None:
        pytest.skip("no git")
    done = subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=shown.stdout, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == (NEW + NAMED).replace("\n", "\r\n").encode()


def test_the_fix_of_a_finding_is_in_the_json(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OLD)
    (finding,) = json.loads(check(tmp_path, "--format", "json").stdout)["findings"]
    fix = finding["fix"]
    assert fix["safe"] is True and fix["description"]
    text = OLD.split("\n")
    for edit in sorted(fix["edits"], key=lambda e: (e["line"], e["column"]), reverse=True):
        assert edit["path"] == "train.py" and "cell" not in edit and edit["line"] == edit["end_line"]
        line = text[edit["line"] - 1]
        text[edit["line"] - 1] = line[: edit["column"] - 1] + edit["text"] + line[edit["end_column"] - 1 :]
    assert "\n".join(text) == NEW


def test_only_what_is_reported_is_mended(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(OLD)
    assert check(tmp_path, "--fix", "--ignore", "AMP101").returncode == 0 and path.read_text() == OLD
    path.write_text(OLD.replace("()\n", "()  # amp-audit: ignore[AMP101] old torch\n"))
    before = path.read_text()
    assert check(tmp_path, "--fix").returncode == 0 and path.read_text() == before


def test_preview_and_a_format_do_not_go_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OLD)
    done = check(tmp_path, "--preview", "--format", "json")
    assert done.returncode == 2 and b"--preview" in done.stderr


def test_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from amp_audit import mending
    from amp_audit.settings import Configuration, Settings
    from amp_audit.target import TargetError

    path = tmp_path / "train.py"
    path.write_text(OLD)
    done = mending.mend([path], Configuration(Settings(root=tmp_path)), unsafe=False)

    def refuse(self: Path, data: bytes) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(TargetError, match=r"train\.py: cannot be written: Permission denied"):
        mending.write(done)
