"""Every block of the README is what it says: commands are run, what they print is compared, code is executed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from amp_audit import cli, settings
from amp_audit.rulebook import load
from amp_audit.static.source.suppress import directives

from .test_packaging import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
NUMBER = re.compile(r"<?\d[\d.,]*(?:e[+-]\d+)?(?:\+cpu|\+cu\d+)?")
INSTALL = re.compile(r"^pip install .*? && ")


def blocks(language: str) -> list[str]:
    return [body for name, body in BLOCKS if name == language]


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "80", "NO_COLOR": "1"}
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, env=environ, capture_output=True, text=True, timeout=600, check=False
    )


def masked(text: str) -> list[str]:
    """Lines without what differs between machines: numbers, and bars drawn from them."""
    lines = (NUMBER.sub("0", re.sub(r"#+\.*|\.{4,}", "#", line)) for line in text.strip().splitlines())
    return [re.sub(r"\s+", " ", line) for line in lines]


def test_the_first_command_prints_what_is_shown() -> None:
    first, shown = blocks("bash")[0].strip(), blocks("text")[0]
    assert INSTALL.match(first), "the first command does all set-up"
    result = shell(INSTALL.sub("", first), ROOT)
    assert result.returncode == 1, result.stderr
    assert masked(result.stdout) == masked(shown)


def test_findings_are_shown_at_the_lines_where_they_are() -> None:
    places = set(re.findall(r"--> (examples/\w+\.py):(\d+):(\d+)\n +(\d+) \| (.*)", blocks("text")[0]))
    assert len(places) >= 4
    for path, line, _, number, code in places:
        assert line == number
        source = (ROOT / path).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        assert source.strip().startswith(code.strip().rstrip("…"))


def test_the_mended_twin_is_clean_as_the_readme_says() -> None:
    result = shell("amp-audit --fail-on warning examples/digits_mended.py", ROOT)
    assert result.returncode == 0, result.stdout
    assert "\nNo errors or warnings: 1 file read, 16 steps watched" in result.stdout


def test_the_second_command_is_the_one_that_ci_runs() -> None:
    second = blocks("bash")[1].strip()
    assert f"step {second}\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_extras_of_the_install_commands_exist() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = set(re.findall(r"\.\[(\w+)\]", README))
    assert extras and all(f"\n{extra} = [" in project for extra in extras)


def test_the_usage_is_the_one_that_help_prints() -> None:
    (usage,) = [body for name, body in BLOCKS if name == "" and "amp-audit explain RULE" in body]
    assert usage.split() == cli.USAGE.removeprefix("usage:").split()


def test_the_configuration_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(blocks("toml")[0])
    (tmp_path / "my_rules").mkdir()
    read = settings.read(tmp_path)
    read.check(load(read.rules))
    assert read.exclude == ("third_party",)


EXEMPTIONS = next(code for code in blocks("python") if "ignore-begin" in code)
PYTHON = [code for code in blocks("python") if code != EXEMPTIONS]


def test_the_exemptions_are_understood() -> None:
    found = directives(EXEMPTIONS, load())
    assert all(directive.rule for directive in found), found
    last = len(EXEMPTIONS.splitlines())
    covered = {line for directive in found for line in range(directive.first, (directive.last or last) + 1)}
    assert covered == set(range(1, last + 1))


def test_a_rule_of_ones_own_needs_no_python(tmp_path: Path) -> None:
    (rule,) = [block for block in blocks("yaml") if "id: TEAM001" in block]
    (tmp_path / "my_rules").mkdir()
    (tmp_path / "my_rules" / "clip.yaml").write_text(rule)
    (tmp_path / "pyproject.toml").write_text('[tool.amp-audit]\nrules = ["my_rules"]\nselect = ["TEAM"]\n')
    (tmp_path / "train.py").write_text("from torch.nn import utils as u\n\nu.clip_grad_value_([], 1.0)\n")
    result = shell("amp-audit check -q", tmp_path)
    assert result.stdout.startswith("train.py:3:1: warning TEAM001 gradients are clipped by value")
    assert result.returncode == 1
    assert "Clipping by value changes" in shell("amp-audit explain clip-by-value", tmp_path).stdout


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_python_blocks_run(code: str) -> None:
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def test_two_ranks_either_way(tmp_path: Path) -> None:
    (block,) = [body for name, body in BLOCKS if name == "" and "--no-python" in body]
    (tmp_path / "train.py").write_text(RANKS)
    for command in block.strip().splitlines():
        result = shell(command, tmp_path)
        assert result.stdout.count("The run\n") == 1, result.stdout + result.stderr
        assert "ranks 0-1 of 2" in result.stdout and "AMP202" in result.stdout


RANKS = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(4):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(8, 4)).square().mean()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
dist.destroy_process_group()
"""
