"""A torch that is too old for something says so, and does the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.runtime.drive import ENVIRONMENT

VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


@pytest.mark.skipif(VERSION >= (2, 10), reason="this torch can be emulated on")
@pytest.mark.parametrize("device", ["cuda", "xpu", "mps"])
def test_emulation_is_refused_with_the_reason(device: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint(torch.ones(2).sum())\n")
    done = subprocess.run(
        [sys.executable, "-m", "amp_audit", "--emulate", device, "train.py"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr.startswith(f"amp-audit: cannot emulate {device}: torch 2.")) == (3, True)
    assert "Traceback" not in done.stderr
    assert f"cannot emulate {device}" in done.stdout
