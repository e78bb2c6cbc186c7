"""The wheel as a stranger installs it: its rules inside, no torch beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BAD = """\
import torch

model = torch.nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in torch.randn(8, 4, 2).cuda():
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).sum()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""


def run(*command: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, env={**clean, **environ}, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", folder, ROOT, cwd=folder)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment that holds the wheel and what it depends on, nothing else."""
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, with_pip=True)
    result = run(folder / "bin" / "pip", "install", "--quiet", wheel, cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder / "bin"


def test_every_rule_is_in_the_wheel(wheel: Path) -> None:
    shipped = {path.name for path in (ROOT / "rules").rglob("*.yaml")}
    with zipfile.ZipFile(wheel) as archive:
        inside = {Path(name).name for name in archive.namelist() if name.startswith("amp_audit/_rules/")}
        tables = [name for name in archive.namelist() if name.startswith("amp_audit/policies/")]
    assert shipped and inside == shipped
    assert len(tables) == len(list((ROOT / "amp_audit" / "policies").glob("*.json")))


def test_check_works_without_torch(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BAD)
    assert run(installed / "python", "-c", "import torch", cwd=tmp_path).returncode != 0
    result = run(installed / "amp-audit", "check", "--format", "json", "train.py", cwd=tmp_path)
    assert result.returncode == 1, result.stderr
    found = {(item["rule"], item["line"]) for item in json.loads(result.stdout)["findings"]}
    assert ("AMP202", 11) in found


def test_an_audit_without_torch_says_which_extra_is_missing(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BAD)
    result = run(installed / "amp-audit", "train.py", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and "pip install 'amp-audit[runtime]'" in result.stderr


def test_rules_are_listed_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    result = run(installed / "amp-audit", "rules", cwd=tmp_path)
    assert result.returncode == 0
    assert sum(line.startswith("AMP") for line in result.stdout.splitlines()) == len(
        list((ROOT / "rules").rglob("*.yaml"))
    )
