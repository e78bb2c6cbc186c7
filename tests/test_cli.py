"""The command line as a user meets it: every mistake has one clear line and the right exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from amp_audit import __version__, cli

from .test_packaging import BAD

TRAIN = """\
import sys
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range({steps}):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(8, 4)).square().mean()
    scaler.scale(loss).backward()
    {unscale}
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    {each}
{after}
"""


def program(steps: int = 4, *, bad: bool = False, each: str = "pass", after: str = "") -> str:
    unscale = "pass" if bad else "scaler.unscale_(optimizer)"
    return TRAIN.format(steps=steps, unscale=unscale, each=each, after=after)


def amp_audit(cwd: Path, *words: str | Path, timeout: float = 300, **options: Any) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "amp_audit", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=timeout, **options)


def audited(cwd: Path, source: str, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    (cwd / "train.py").write_text(source)
    result = amp_audit(cwd, "--format", "json", "-o", "report.json", *options, "train.py")
    return result, json.loads((cwd / "report.json").read_text())


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.startswith("amp-audit: ") and error.count("\n") == 1, error
    return error


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# -- usage


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"amp-audit {__version__}\n"


def test_help_fits_eighty_columns_and_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in (*cli.COMMANDS, "-m MODULE", "-- LAUNCHER", "--steps", "--min-confidence"))
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_has_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([command, "--help"]) == 0
    assert f"usage: amp-audit {command}" in capsys.readouterr().out


def test_nothing_given_is_an_error_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: amp-audit [OPTIONS] TRAIN.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--stepz", "5", "train.py"], "--stepz"),
        (["--step", "5", "train.py"], "--step"),
        (["--steps", "0", "train.py"], "'0' is neither a number from 1 nor all"),
        (["--sample", "often", "train.py"], "'often' is neither default"),
        (["--format", "yaml", "train.py"], "yaml"),
        (["--steps", "5"], "no program given"),
        (["-m"], "-m"),
        (["--"], "nothing after `--`"),
        (["missing.py"], "missing.py: no such file"),
        (["--steps", "3", "-"], "a program on the standard input is not run: save it to a file"),
        (["options.yaml"], "options.yaml: neither a Python file nor a notebook"),
        (["notebook.ipynb"], "notebook.ipynb: a notebook is not run; amp-audit check reads it"),
        (["."], "is a folder"),
        (["-m", "no.such.module"], "no module named 'no.such.module'"),
        (["--format", "json", "check"], "options of `check` stand after it"),
        (["-o", "no/such/folder/r.txt", "check"], "cannot write the report"),
        (["check", "--frobnicate"], "--frobnicate"),
        (["check", "missing.py"], "missing.py"),
        (["check", "--select", "AMP999", "."], "unknown rule 'AMP999' in --select"),
        (["check", "--ignore", "E501", "."], "unknown rule 'E501' in --ignore"),
        (["check", "--rules", "nowhere", "."], "nowhere: no such file or folder of rules"),
        (["explain"], "no rule given"),
        (["explain", "AMP999"], "no rule 'AMP999'"),
        (["report"], "no trace given"),
        (["report", "nowhere"], "nowhere: no such folder"),
        (["report", "."], "not a trace folder"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "options.yaml").write_text("a: 1\nprint('ran')\n")
    (tmp_path / "notebook.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    assert cli.main(words) == 2
    assert said in one_line(capsys)


@pytest.mark.parametrize(
    "words",
    [
        ["check", "--format", "json", "--bogus"],
        ["check", "--bogus", "--format=json"],
        ["--format", "json", "--steps", "none", "train.py"],
        ["report", "--format", "json"],
        ["check", "--format", "json", "--stdin-filename", "a.py"],
        ["check", "--format", "json", "-o", "no/such/folder.json"],
    ],
)
def test_who_asked_for_json_gets_it_of_a_command_line_that_cannot_be_read(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    out, error = capsys.readouterr()
    data = json.loads(out)
    assert data["exit_code"] == 2 and f"amp-audit: {data['problem']}\n" == error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "json", "missing.py"], "missing.py: no such file"),
        (["--format", "json", "-m", "no.such.module"], "no module named 'no.such.module'"),
        (["check", "--format", "json", "missing.py"], "missing.py"),
        (["check", "--format", "json", "--select", "AMP999"], "unknown rule 'AMP999'"),
        (["check", "--format", "json", "--rules", "broken.yaml"], "broken.yaml: not valid YAML"),
        (["report", "--format", "json", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_who_asked_for_json_gets_it_of_a_job_that_cannot_be_done_too(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.yaml").write_text("id: [")
    assert cli.main(words) == 2
    out, error = capsys.readouterr()
    data = json.loads(out)
    assert data["exit_code"] == 2 and said in data["problem"] and data["findings"] == []
    assert error == f"amp-audit: {data['problem']}\n"


def test_closed_standard_streams_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\n")
    for command in ("check train.py", "train.py"):
        line = f"{sys.executable} -m amp_audit {command} >&- 2>&-"
        assert subprocess.run(["bash", "-c", line], cwd=tmp_path, timeout=300, check=False).returncode == 0


def test_a_folder_without_python_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    assert cli.main(["check", "."]) == 2
    assert "no Python file in ." in one_line(capsys)


@pytest.mark.parametrize("table", ["colour = true", "fail-on = 'fatal'", "select = ['AMP999']", "select = ["])
def test_a_bad_configuration_names_the_file(table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.amp-audit]\n{table}\n")
    (tmp_path / "train.py").write_text(BAD)
    assert cli.main(["check", "train.py"]) == 2
    assert str(tmp_path / "pyproject.toml") in one_line(capsys)


@pytest.mark.parametrize("text", ["id: AMP999\n", "id: [\n", "- a list\n", "\xff"])
def test_a_broken_rule_file_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_bytes(text.encode("latin-1"))
    (tmp_path / "train.py").write_text(BAD)
    assert cli.main(["check", "--rules", "mine.yaml", "train.py"]) == 2
    assert "mine.yaml" in one_line(capsys)


def test_rules_lists_each_rule_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("AMP")]
    assert len(lines) == len({line.split()[0] for line in lines}) >= 30


@pytest.mark.parametrize("word", ["AMP202", "amp202", "clip-before-unscale"])
def test_explain_takes_ids_and_names(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", word]) == 0
    text = capsys.readouterr().out
    assert text.startswith("AMP202 clip-before-unscale  error\n")
    assert all(f"\n{title}\n" in text for title in ("Why", "Fix", "Wrong", "Right, though it may look wrong"))


# -- check


def test_check_finds_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(BAD)
    assert cli.main(["check", "train.py"]) == 1
    assert "error AMP202 clip-before-unscale" in capsys.readouterr().out
    assert cli.main(["check", "--ignore", "AMP202", "train.py"]) == 0
    assert cli.main(["check", "--ignore", "clip-before-unscale", "train.py"]) == 0
    assert cli.main(["check", "--select", "AMP3,AMP4", "train.py"]) == 0


def test_fail_on_moves_the_bar(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.amp-audit]\nseverity = {AMP202 = 'warning'}\n")
    (tmp_path / "train.py").write_text(BAD)
    assert cli.main(["check", "train.py"]) == 1
    assert cli.main(["check", "--fail-on", "error", "train.py"]) == 0


def test_output_goes_to_a_file_without_colour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(BAD)
    assert cli.main(["check", "-o", "report.txt", "train.py"]) == 1
    assert capsys.readouterr().out == ""
    assert "AMP202" in (tmp_path / "report.txt").read_text()


@pytest.mark.parametrize(
    "content",
    [b"import torch\ndef broken(:\n    torch.autocast('cuda')\n", b"# torch.autocast GradScaler\nx = '\xff\xfe'\n"],
)
def test_a_file_that_cannot_be_read_is_a_finding_and_the_rest_is_checked(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.py").write_bytes(content)
    (tmp_path / "train.py").write_text(BAD)
    assert cli.main(["check", "--format", "json", "."]) == 2
    data = json.loads(capsys.readouterr().out)
    assert {("AMP001", "broken.py"), ("AMP202", "train.py")} <= {(f["rule"], f["path"]) for f in data["findings"]}
    assert data["files"]["failed"] == 1


def test_check_starts_fast_and_without_torch(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print('hello')\n")
    code = (
        "import sys; from amp_audit.cli import main; main(['check', '.']); "
        "print(sorted({'torch', 'libcst'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    # A file without a word of mixed precision is not parsed, so not even the parser is loaded.
    assert result.stdout.splitlines()[-1] == "[]"


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BAD)
    command = f"{sys.executable} -m amp_audit check --format json train.py | head -c 10"
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert result.stderr == ""


# -- audit


def test_the_programs_own_options_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys, torch\nprint(sys.argv, __name__)\n")
    result = amp_audit(tmp_path, "--steps", "3", "train.py", "--help", "--steps", "7", "--", "-m")
    assert result.stdout.splitlines()[0] == "['train.py', '--help', '--steps', '7', '--', '-m'] __main__"


def test_a_script_with_the_name_of_a_command_runs_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "check").write_text("import torch\nprint('I am a script')\n")
    result = amp_audit(tmp_path, "./check")
    assert "I am a script" in result.stdout and "1 skipped" in result.stdout and result.returncode == 0, result.stdout


def test_a_confirmed_finding_and_what_the_run_was(tmp_path: Path) -> None:
    result, data = audited(tmp_path, program(bad=True))
    assert result.returncode == 1, result.stderr
    (finding,) = [item for item in data["findings"] if item["rule"] == "AMP202"]
    assert (finding["verdict"], finding["line"], finding["confidence"]) == ("confirmed", 15, "high")
    assert {item["source"] for item in finding["evidence"]} == {"static", "runtime"}
    assert (data["trace"]["program_exit"], data["trace"]["steps"]) == (0, 4)


def test_a_right_program_is_clean(tmp_path: Path) -> None:
    result, data = audited(tmp_path, program())
    assert result.returncode == 0
    assert [f for f in data["findings"] if f["severity"] != "info"] == []


def test_the_program_is_stopped_after_its_steps_and_that_is_no_failure(tmp_path: Path) -> None:
    result, data = audited(tmp_path, program(10**6), "--steps", "3")
    assert result.returncode == 0
    assert (data["trace"]["steps"], data["trace"]["stopped"]) == (3, True)


def test_continue_lets_the_program_end(tmp_path: Path) -> None:
    result, data = audited(tmp_path, program(9, after="print('the end')"), "--steps", "3", "--continue")
    assert "the end" in result.stdout
    assert data["trace"]["stopped"] is False


def test_a_module_is_run_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "train.py").write_text(program(2, bad=True, after="print(__name__, __package__)"))
    result = amp_audit(tmp_path, "--format", "json", "-o", "r.json", "-m", "pkg.train", "--lr", "1")
    assert "__main__ pkg" in result.stdout
    data = json.loads((tmp_path / "r.json").read_text())
    assert ("AMP202", "pkg/train.py", "confirmed") in {(f["rule"], f["path"], f["verdict"]) for f in data["findings"]}


@pytest.mark.parametrize(
    ("after", "code", "steps", "said"),
    [
        ("raise ValueError('no')", 1, {4}, "ValueError: no"),
        ("sys.exit(3)", 3, {4}, ""),
        ("import os; os._exit(5)", 5, {3, 4}, ""),  # the step in flight may be lost
    ],
)
def test_a_program_that_fails_is_still_reported(
    tmp_path: Path, after: str, code: int, steps: set[int], said: str
) -> None:
    result, data = audited(tmp_path, program(bad=True, after=after))
    assert result.returncode == 3
    assert said in result.stderr and "amp_audit" not in result.stderr
    assert data["trace"]["program_exit"] == code and data["trace"]["steps"] in steps
    assert "confirmed" in {f["verdict"] for f in data["findings"] if f["rule"] == "AMP202"}


def test_a_killed_program_is_still_reported(tmp_path: Path) -> None:
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    result, data = audited(tmp_path, program(bad=True, after=kill))
    assert result.returncode == 3
    assert (data["trace"]["program_exit"], data["trace"]["program_signal"]) == (None, 9)
    assert data["trace"]["steps"] >= 3
    assert "confirmed" in {f["verdict"] for f in data["findings"] if f["rule"] == "AMP202"}


def test_a_launcher_that_ends_all_ranks_does_not_end_the_report(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.run")
    source = program(bad=True, after="import os; os.environ['RANK'] == '0' or os.abort()")
    (tmp_path / "train.py").write_text(source)
    command = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2"]
    own = [sys.executable, "-m", "amp_audit", "--format", "json", "-o", "report.json", "train.py"]
    result = subprocess.run(
        [*command, *own],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode != 0
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["exit_code"] in (1, 3) and data["trace"]["ranks"] == [0, 1]
    assert "confirmed" in {f["verdict"] for f in data["findings"] if f["rule"] == "AMP202"}


def test_ctrl_c_gives_the_report_of_what_was_seen(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        program(10**6, bad=True, each="open('started', 'w').close() if step == 3 else __import__('time').sleep(0.01)")
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "amp_audit", "--steps", "all", "train.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    until = time.monotonic() + 120
    while not (tmp_path / "started").exists() and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 3, err
    assert "AMP202" in out and "interrupted after" in out


OVERFLOWING = """
import torch
from torch import nn

torch.manual_seed(0)
encoder, out = nn.Linear(8, 256), nn.Linear(1, 1)
optimizer = torch.optim.Adam([*encoder.parameters(), *out.parameters()], lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
for _ in range(4):
    with torch.autocast("cpu", dtype=torch.float16):
        p = encoder(torch.randn(16, 8) * 40)
        squares = p * p
        loss = out(torch.log1p(squares.sum(-1, keepdim=True))).float().square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize("options", [("--ignore", "AMP504"), ("--select", "AMP512")])
def test_a_rule_that_is_not_in_force_takes_no_other_with_it(tmp_path: Path, options: tuple[str, str]) -> None:
    _, data = audited(tmp_path, OVERFLOWING, *options)
    (told,) = [finding for finding in data["findings"] if finding["rule"] in ("AMP504", "AMP512")]
    assert (told["rule"], told["severity"], told["line"]) == ("AMP512", "error", 13)
    assert data["exit_code"] == 1


def test_a_rule_that_is_not_in_force_takes_no_other_with_it_when_reading(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nfrom torch import nn\n\nmodel = nn.Linear(16, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.05)\n"
        'with torch.autocast("cuda", dtype=torch.bfloat16):\n    for x, y in data():\n'
        "        optimizer.zero_grad()\n        loss = nn.functional.mse_loss(model(x), y)\n"
        "        loss.backward()\n        optimizer.step()\n"
    )
    rules = {}
    for options in ((), ("--ignore", "AMP301")):
        amp_audit(tmp_path, "check", "--no-cache", "--format", "json", "-o", "report.json", *options, "train.py")
        found = json.loads((tmp_path / "report.json").read_text())["findings"]
        rules[options] = {finding["rule"] for finding in found} & {"AMP301", "AMP303"}
    assert rules == {(): {"AMP301"}, ("--ignore", "AMP301"): {"AMP303"}}


def test_ctrl_c_again_and_again_loses_nothing(tmp_path: Path) -> None:
    """A terminal's Ctrl-C that is passed on as well comes twice; people press it more often."""
    after = """
import os, signal, threading
def press():
    while True:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.002)
threading.Thread(target=press, daemon=True).start()
time.sleep(60)
"""
    source = program(3, bad=True, after="import time")
    (tmp_path / "train.py").write_text(source + after)
    process = amp_audit(tmp_path, "train.py")
    assert process.returncode == 3, process.stderr
    assert "AMP202" in process.stdout and "interrupted after 3 steps" in process.stdout


def test_a_program_that_never_trains_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint(torch.zeros(1))\n")
    result = amp_audit(tmp_path, "train.py")
    assert result.returncode == 0
    assert "no optimizer step was seen" in result.stdout


def test_a_program_without_torch_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    result = amp_audit(tmp_path, "train.py")
    assert "hello" in result.stdout and "left no trace" in " ".join(result.stdout.split())


def test_a_syntax_error_in_the_program_is_exit_code_2(tmp_path: Path) -> None:
    result, data = audited(tmp_path, "import torch\nwith torch.autocast('cpu') as\n")
    assert result.returncode == 2
    assert "AMP001" in {f["rule"] for f in data["findings"]}
    assert data["trace"]["program_exit"] == 1


def test_forked_workers_do_no_harm(tmp_path: Path) -> None:
    source = program(
        bad=True,
        after="print(sum(x.item() for x in torch.utils.data.DataLoader(torch.arange(6), num_workers=2)))",
    )
    result, data = audited(tmp_path, source)
    assert "15" in result.stdout and result.returncode == 1
    assert data["trace"]["ranks"] == [0]


def test_a_forked_child_that_leaves_at_once_is_not_the_program(tmp_path: Path) -> None:
    child = "import os\nif os.fork() == 0:\n    train(1)\n    os._exit(7)\nos.wait()\ntrain(1)"
    text = f"""
import torch
net = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
def train(steps):
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(torch.randn(4, 8)).float().square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
train(3)
{child}
"""
    result, data = audited(tmp_path, text)
    assert result.returncode == 0 and data["trace"]["steps"] == 4
    (tmp_path / "train.py").write_text(text)
    assert "ran to its end, 4 steps" in amp_audit(tmp_path, "train.py").stdout


def test_a_program_that_prints_to_a_closed_pipe_is_still_reported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program(bad=True, each="print('x' * 100000, flush=True)"))
    command = f"{sys.executable} -m amp_audit --format json -o r.json train.py | head -c 10"
    result = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["exit_code"] == 3 and "BrokenPipeError" in result.stderr
    assert "AMP202" in {f["rule"] for f in data["findings"]}


# -- run and report


def test_a_trace_is_recorded_now_and_reported_later(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program(bad=True))
    recorded = amp_audit(tmp_path, "run", "--trace", "t", "train.py")
    assert recorded.returncode == 0
    assert recorded.stderr.splitlines()[-1] == "amp-audit: 4 steps recorded in t; amp-audit report t shows them"
    reported = amp_audit(tmp_path, "report", "--format", "json", "t")
    assert reported.returncode == 1
    data = json.loads(reported.stdout)
    assert ("AMP202", "runtime") in {(f["rule"], f["verdict"]) for f in data["findings"]}
    assert data["trace"]["steps"] == 4


def test_run_passes_a_failure_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program(after="sys.exit(4)"))
    assert amp_audit(tmp_path, "run", "--trace", "t", "train.py").returncode == 3
