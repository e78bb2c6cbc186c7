"""Starting programs of all kinds: who attaches, what is written, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from amp_audit.runtime import launch
from amp_audit.trace import reader
from tests.runtime.drive import ENVIRONMENT, Run, audited

TRAIN = """
import os, sys, time
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(steps, after=lambda step: None):
    for step in range(1, steps + 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(3, 4)).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, flush=True)
        after(step)
"""


def program(folder: Path, text: str, name: str = "train.py") -> list[str]:
    (folder / name).write_text(TRAIN + textwrap.dedent(text), encoding="utf-8")
    return [name]


def steps(run: Run) -> list[int]:
    return [step.step for step in run.trace.steps]


# How it ends


def test_it_is_stopped_after_the_steps_that_were_wanted(tmp_path: Path) -> None:
    run = audited(program(tmp_path, 'train(9)\nprint("not reached")'), tmp_path, steps=3)
    assert run.stdout == b"step 1\nstep 2\nstep 3\n"  # what follows the third optimizer call still happened
    assert run.stderr == b""
    assert run.outcome == launch.Outcome(0, None, True, run.outcome.seconds) and not run.outcome.failed
    assert steps(run) == [1, 2, 3]
    assert run.trace.end.reason == "stopped" and run.trace.end.steps == 3
    assert [event.kind for event in run.trace.steps[2].events][-1] == "zero_grad"


def test_a_program_that_swallows_the_stop_is_stopped_all_the_same(tmp_path: Path) -> None:
    run = audited(
        program(
            tmp_path,
            """
            while True:
                try:
                    train(1)
                except:
                    print("swallowed", flush=True)
            """,
        ),
        tmp_path,
        steps=2,
    )
    assert run.outcome.stopped and run.code == 0
    assert run.stdout.count(b"swallowed") == 2 and steps(run) == [1, 2]


def test_what_cleans_up_after_the_stop_may_run_the_model(tmp_path: Path) -> None:
    run = audited(
        program(tmp_path, "try:\n    train(5)\nfinally:\n    model(torch.ones(1, 4)); print('saved')"),
        tmp_path,
        steps=2,
    )
    assert run.outcome.stopped and run.stdout.endswith(b"step 2\nsaved\n")


ENDS: dict[str, tuple[str, int | None, int | None, str | None]] = {
    # program, exit code, signal, reason in the trace
    "it ends": ("train(2)", 0, None, "finished"),
    "sys.exit": ("train(2); sys.exit(3)", 3, None, "finished"),
    "an exception": ("train(2); raise KeyError('mine')", 1, None, "failed"),
    "os._exit": ("train(2); os._exit(5)", 5, None, None),
    "SIGTERM": ("train(2); os.kill(os.getpid(), 15); time.sleep(9)", None, 15, None),
    "SIGKILL": ("train(2); os.kill(os.getpid(), 9); time.sleep(9)", None, 9, None),
    "Ctrl-C": ("train(2); os.kill(os.getpid(), 2); time.sleep(9)", None, 2, "interrupted"),
}


@pytest.mark.parametrize("name", ENDS)
def test_however_it_ends_the_outcome_is_its_own(name: str, tmp_path: Path) -> None:
    text, code, number, reason = ENDS[name]
    run = audited(program(tmp_path, text), tmp_path)
    assert (run.outcome.code, run.outcome.signal, run.outcome.stopped) == (code, number, False)
    assert run.outcome.failed == (name != "it ends")
    assert run.stdout == b"step 1\nstep 2\n"
    assert steps(run) == [1, 2]
    assert all("optimizer" in {row.phase for row in step.ops} for step in run.trace.steps)
    # What follows the optimizer in its step is lost with a killed process, no more.
    cleared = [any(event.kind == "zero_grad" for event in step.events) for step in run.trace.steps]
    assert cleared == [True, reason is not None]
    assert (run.trace.end.reason if run.trace.end else None) == reason
    if name == "an exception":
        assert run.stderr.decode().splitlines()[-1] == "KeyError: 'mine'"
        assert run.stderr.count(b"  File") == 1


@pytest.mark.parametrize(
    ("after", "number"),
    [
        ("(model(torch.ones(3, 4)).sum()).backward(); raise KeyError('mine')", 3),
        ("model(torch.ones(3, 4)); raise KeyError('mine')", 3),
        ("model(torch.ones(3, 4)).sum().backward()", 3),
        ("model(torch.ones(3, 4))", 2),  # an evaluation after the last step
    ],
)
def test_what_follows_the_last_step_is_of_the_step_in_flight(after: str, number: int, tmp_path: Path) -> None:
    run = audited(program(tmp_path, f"train(2)\n{after}"), tmp_path)
    assert steps(run) == [1, 2, 3][:number] and run.trace.steps[-1].open == (number == 3)
    assert run.trace.end is not None and run.trace.end.steps == run.trace.finished == 2
    assert launch.Running(subprocess.Popen(["true"]), run.folder or tmp_path).steps() == 2


def test_ctrl_c_at_the_terminal_reaches_the_program_once(tmp_path: Path) -> None:
    command = program(
        tmp_path,
        """
        try:
            train(10**6, lambda step: time.sleep(0.01))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            time.sleep(0.5)
            sys.exit(7)
        """,
    )
    driver = (
        "import sys, signal; from pathlib import Path; from amp_audit.runtime import launch\n"
        f"running = launch.start(launch.Request('script', {command!r}, Path('trace'), None))\n"
        "signal.signal(signal.SIGINT, lambda *_: running.interrupt())\n"
        "while running.steps() < 3: pass\n"
        "print('ready', flush=True)\n"
        "print(running.wait())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", driver], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    while b"ready" not in (line := process.stdout.readline()):
        assert line
    process.send_signal(signal.SIGINT)  # without a terminal only the parent gets it
    rest = process.stdout.read().decode()
    assert rest.count("interrupted") == 1 and "Outcome(code=7, signal=None, stopped=False" in rest
    assert process.wait() == 0


# What cannot be run, or is not trained


def test_what_cannot_be_started_is_said_in_one_line(tmp_path: Path) -> None:
    for kind, command in (("script", ["absent.py"]), ("launcher", ["no-such-launcher", "train.py"])):
        with pytest.raises(launch.LaunchError, match=f"^{command[0]}: [Nn]o such file"):
            launch.start(launch.Request(kind, command, tmp_path / "trace"))  # type: ignore[arg-type]
    with pytest.raises(launch.LaunchError, match="no program"):
        launch.start(launch.Request("script", [], tmp_path))


def test_a_program_without_torch_leaves_no_trace_and_one_without_steps_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "no_torch.py").write_text("import json\nprint(1)\n")
    run = audited(["no_torch.py"], tmp_path)
    assert (run.code, run.stdout, run.traces) == (0, b"1\n", [])
    (tmp_path / "no_step.py").write_text(TRAIN + "raise SystemExit(4)\n")
    run = audited(["no_step.py"], tmp_path)
    assert (run.code, run.trace.end.steps, run.trace.end.reason) == (4, 0, "finished")


def test_a_script_with_a_syntax_error_ends_as_ever(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f(:\n")
    run = audited(["bad.py"], tmp_path)
    assert run.code == 1 and b"SyntaxError" in run.stderr and run.traces == []


def test_a_run_of_inference_under_autocast_is_recorded(tmp_path: Path) -> None:
    run = audited(
        program(tmp_path, 'with torch.autocast("cpu"), torch.no_grad():\n    model(torch.ones(1, 4))'), tmp_path
    )
    (step,) = run.trace.steps
    assert (step.step, run.trace.end.steps) == (1, 0)
    assert {(row.op, row.inputs[0], row.autocast) for row in step.ops if row.flops} == {
        ("aten.addmm", "bfloat16", "bfloat16")
    }


def test_a_closed_pipe_is_the_programs_affair(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    run = audited(program(tmp_path, "train(2)"), tmp_path, options={"capture_output": False, "stdout": write})
    os.close(write)
    assert run.code == 1 and run.outcome.failed


# Where the trace goes


def test_an_earlier_trace_in_the_folder_goes(tmp_path: Path) -> None:
    command = program(tmp_path, "train(int(sys.argv[1]))")
    audited([*command, "4"], tmp_path)
    (tmp_path / "trace" / "rank-3.jsonl").write_text("old")
    (tmp_path / "trace" / "notes.txt").write_text("kept")
    assert steps(audited([*command, "2"], tmp_path)) == [1, 2]
    assert (tmp_path / "trace" / "notes.txt").exists()


def test_ranks_in_one_folder_leave_each_other_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0, 1, 5):
        (tmp_path / f"rank-{number}.jsonl").write_text("")
    launch._clear(tmp_path, "1", "2")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rank-0.jsonl", "rank-5.jsonl"]
    launch._clear(tmp_path, "0", "2")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = audited(program(tmp_path, "train(2)"), tmp_path, folder=tmp_path / "file" / "trace")
    assert run.code == 0 and run.folder is not None and "amp-audit-" in run.folder.name and steps(run) == [1, 2]


def test_a_full_disk_stops_the_trace_and_not_the_program(tmp_path: Path) -> None:
    text = """
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
    import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    train(8)
    """
    run = audited(program(tmp_path, text), tmp_path)
    assert run.code == 0 and run.stdout.count(b"step") == 8
    assert run.stderr.decode().count("amp-audit: writing the trace failed") == 1 and len(run.stderr.splitlines()) == 1
    assert steps(run) == list(range(1, len(run.trace.steps) + 1)) and len(run.trace.steps) < 8


# Other processes


def test_processes_that_the_program_starts_attach_and_helpers_leave_nothing(tmp_path: Path) -> None:
    text = """
    import torch.multiprocessing as mp, subprocess
    def work(rank, steps):
        train(steps)
    if __name__ == "__main__":
        subprocess.run([sys.executable, "-c", "import torch; torch.ones(1).exp(); print('helper', flush=True)"])
        mp.start_processes(work, (2,), 2, start_method=sys.argv[1])
    """
    command = program(tmp_path, text)
    for method in ("spawn", "fork"):
        run = audited([*command, method], tmp_path)
        assert run.code == 0, run.stderr
        trained = [trace for trace in run.traces if trace.end and trace.end.steps]
        assert [[step.step for step in trace.steps] for trace in trained] == [[1, 2], [1, 2]]
        assert all(trace.end and trace.end.reason == "finished" for trace in trained)
        assert all(trace.steps[1].ops for trace in trained)
        assert len(run.traces) == 3  # the program itself tells that it did not train


DISTRIBUTED = """
import os, sys
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.ones(3, 4) + dist.get_rank()).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        with torch.no_grad():
            model.module(torch.ones(1, 4))
    dist.barrier()
os.write(1, f"rank {dist.get_rank()} {os.environ['LOCAL_RANK']}\\n".encode())  # in one piece beside the other rank
dist.destroy_process_group()
"""
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


def test_a_launcher_s_ranks_attach_and_the_launcher_does_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DISTRIBUTED)
    command = [TORCHRUN, "--nproc-per-node", "2", "train.py"]
    run = audited(command, tmp_path, kind="launcher")
    assert run.code == 0, run.stderr
    assert sorted(run.stdout.split(b"\n")) == [b"", b"rank 0 0", b"rank 1 1"]
    assert [(trace.header.rank, trace.header.world_size, trace.end.steps) for trace in run.traces] == [
        (0, 2, 6),
        (1, 2, 6),
    ]
    assert {row.place.module for trace in run.traces for row in trace.steps[0].ops if row.op == "aten.addmm"} == {""}
    stopped = audited(command, tmp_path, kind="launcher", steps=2)
    assert stopped.code == 0 and stopped.outcome.stopped, stopped.stderr
    assert [[step.step for step in trace.steps] for trace in stopped.traces] == [[1, 2], [1, 2]]


def test_ranks_with_an_amp_audit_each_write_one_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DISTRIBUTED)
    amp_audit = str(Path(sys.executable).with_name("amp-audit"))
    ranks = ["--nproc-per-node", "2"]
    done = subprocess.run(
        [TORCHRUN, "--no-python", *ranks, amp_audit, "--steps", "2", "--format", "json", "train.py"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["trace"]["ranks"], report["coverage"]["ranks_missing"]) == ([0, 1], [])
    (folder,) = (tmp_path / ".amp-audit").glob("ranks-*")
    assert [[step.step for step in trace.steps] for trace in reader.read(folder)] == [[1, 2], [1, 2]]


# What stands in the child's way


def test_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.was_here = __file__\n")
    run = audited(
        program(tmp_path, "print(sys.was_here); print([p for p in sys.path if 'bootstrap' in p]); train(1)"),
        tmp_path,
        environment={"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])},
    )
    assert run.stdout.decode().splitlines()[:2] == [str(site / "sitecustomize.py"), "[]"] and steps(run) == [1]


def test_a_torch_that_cannot_be_audited_is_said_in_the_trace_folder(tmp_path: Path) -> None:
    fake = tmp_path / "torch"
    fake.mkdir()
    (fake / "__init__.py").write_text("__version__ = '0.1'\n")
    (tmp_path / "train.py").write_text(
        "import torch\nprint(torch.__version__, torch.__spec__.loader.exec_module.__name__)\n"
    )
    run = audited(["train.py"], tmp_path)
    assert (run.code, run.stdout, run.stderr) == (0, b"0.1 exec_module\n", b"")
    (problem,) = reader.problems(run.folder)
    assert problem.startswith("a process could not be audited: ")


# Lines


def test_reached_lines_of_watched_code_are_told(tmp_path: Path) -> None:
    text = """
    def used(flag):
        if flag:
            return 1
        return 2
    def unused():
        return 3
    train(2)
    used(True)
    os._exit(0) if len(sys.argv) > 1 else None
    """
    command = program(tmp_path, text)
    source = (tmp_path / "train.py").read_text().splitlines()
    at = {line.strip(): number for number, line in enumerate(source, 1)}
    path, watch = str(tmp_path / "train.py"), tmp_path / "watch.json"
    first, last = at["def used(flag):"], at["return 3"]
    watch.write_text(json.dumps({path: [[first + 1, last]]}))
    run = audited(command, tmp_path, watch=str(watch))
    reached = run.trace.lines[path]
    assert {at["if flag:"], at["return 1"]} <= reached
    assert not {at["return 2"], at["return 3"]} & reached
    assert run.trace.header.flags["watch"] is True
    killed = audited([*command, "now"], tmp_path, watch=str(watch))
    assert killed.trace.end is None
    within = {path: [[at["for step in range(1, steps + 1):"], at["after(step)"]]]}
    watch.write_text(json.dumps(within))
    killed = audited([*command, "now"], tmp_path, watch=str(watch))
    assert at["loss.backward()"] in killed.trace.lines[path]


def test_a_list_of_lines_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    from amp_audit.runtime.attach import read_watch

    file = tmp_path / "watch.json"
    began = time.monotonic()
    assert read_watch(file, time.time() + 0.2) == {}
    assert 0.15 < time.monotonic() - began < 2
    writer = subprocess.Popen(
        [sys.executable, "-c", f"import time; time.sleep(0.3); open({str(file)!r}, 'w').write('{{\"a\": [[1, 2]]}}')"]
    )
    assert read_watch(file, time.time() + 5) in ({"a": [[1, 2]]}, {})
    writer.wait()
    for text in ("", "[]", '{"a": 1}', '{"a": [[1]]}'):
        file.write_text(text)
        assert read_watch(file, 0) == {}


def test_progress_is_read_as_it_is_written(tmp_path: Path) -> None:
    command = program(tmp_path, "train(4, lambda step: sys.stdin.readline())")
    environment: dict[str, Any] = dict(ENVIRONMENT)
    driver = (
        "import sys; from pathlib import Path; from amp_audit.runtime import launch\n"
        f"running = launch.start(launch.Request('script', {command!r}, Path('trace')))\n"
        "seen = []\n"
        "while running.poll() is None:\n"
        "    if (now := running.steps()) not in seen: seen.append(now)\n"
        "print(seen, running.steps(), file=sys.stderr)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", driver],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin and process.stdout and process.stderr
    for _ in range(4):
        assert process.stdout.readline()
        time.sleep(0.3)
        process.stdin.write(b"\n")
        process.stdin.flush()
    assert process.stderr.read().decode().strip().startswith("[0, 1, 2, 3")
    process.wait()
