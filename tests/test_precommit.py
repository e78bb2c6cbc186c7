"""The hook as pre-commit runs it, from the configuration that the README shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .test_packaging import BAD, ROOT

pytest.importorskip("pre_commit", reason="pre-commit is not installed (it is in the extra `dev`)")

GOOD = BAD.replace("    torch.nn.utils.clip", "    scaler.unscale_(optimizer)\n    torch.nn.utils.clip")
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".amp-audit", "*_cache", "__pycache__", "dist", "build", ".hypothesis"
)


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def repository(folder: Path) -> str:
    """Commit all that is in ``folder``; the commit."""
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "all")
    return git(folder, "rev-parse", "HEAD")


def documented_config() -> str:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "id: amp-audit" in block]
    return block


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    hook = tmp_path_factory.mktemp("hook") / "amp-audit"
    shutil.copytree(ROOT, hook, ignore=LEFT_OUT)
    commit = repository(hook)
    config = re.sub(r"repo: \S+", f"repo: {hook}", documented_config())
    config = re.sub(r"rev: \S+", f"rev: {commit}", config)
    folder = tmp_path_factory.mktemp("project")
    (folder / ".pre-commit-config.yaml").write_text(config)
    (folder / "train.py").write_text(BAD)
    (folder / "mended.py").write_text(GOOD)
    (folder / "notes.txt").write_text("clip_grad_norm_ before unscale_\n")
    repository(folder)
    return folder


def pre_commit(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    home = project.parent / "pre-commit-home"
    environ = {**os.environ, "PRE_COMMIT_HOME": str(home), "PRE_COMMIT_COLOR": "never"}
    command = [sys.executable, "-m", "pre_commit", "run", *words]
    return subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, timeout=900)


def test_a_bad_file_fails_and_is_told_why(project: Path) -> None:
    result = pre_commit(project, "--files", "train.py", "mended.py")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "error AMP202 clip-before-unscale" in result.stdout and "--> train.py:11:5" in result.stdout
    assert "--> mended.py" not in result.stdout


def test_a_clean_file_passes(project: Path) -> None:
    result = pre_commit(project, "--files", "mended.py")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Passed" in result.stdout


def test_other_files_are_none_of_its_business(project: Path) -> None:
    assert "Skipped" in pre_commit(project, "--files", "notes.txt").stdout


def test_torch_is_not_in_its_environment(project: Path) -> None:
    pre_commit(project, "--files", "mended.py")
    packages = {
        path.name for path in (project.parent / "pre-commit-home").glob("repo*/py_env-*/lib/python*/site-packages/*")
    }
    assert "libcst" in packages and "torch" not in packages
