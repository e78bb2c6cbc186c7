"""Start a program under audit from a process of its own, so that what it prints can be caught."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from amp_audit.runtime.launch import Outcome
from amp_audit.trace import reader
from amp_audit.trace.schema import Trace

ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if not key.startswith(("AMP_AUDIT", "PYTEST"))},
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass
class Run:
    """What a program did."""

    code: int
    stdout: bytes
    stderr: bytes
    outcome: Outcome | None = None
    folder: Path | None = None
    traces: list[Trace] = field(default_factory=list)

    @property
    def trace(self) -> Trace:
        (trace,) = self.traces
        return trace


def again_after_abort(run: Callable[[], Run]) -> Run:
    """What a program did, with us or without.

    Seen a few times in thousands of runs without us: a thread of gloo's or of autograd's aborts a process that has
    finished its work. Such a run is done again, twice at most: what aborts each time is a fault of the program or ours.
    """
    for _ in range(2):
        done = run()
        if b"terminate called" not in done.stderr:
            return done
    return run()


def plainly(command: list[str], cwd: Path, **options: Any) -> Run:
    """Run a Python program without amp-audit."""

    def run() -> Run:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=cwd,
            env=ENVIRONMENT,
            capture_output=True,
            timeout=300,
            check=False,
            **options,
        )
        return Run(done.returncode, done.stdout, done.stderr)

    return again_after_abort(run)


def audited(command: list[str], cwd: Path, **request: Any) -> Run:
    """Run it under audit: ``request`` are fields of ``launch.Request``, ``folder`` is where the trace goes;
    ``environment`` and ``options`` are for the process that starts it.
    """
    if request.get("kind") != "launcher":
        return _audited(command, cwd, **request)
    return again_after_abort(lambda: _audited(command, cwd, **request))


def _audited(command: list[str], cwd: Path, *, kind: str = "script", folder: Path | None = None, **request: Any) -> Run:
    folder = folder or cwd / "trace"
    environment = {**ENVIRONMENT, **request.pop("environment", {})}
    options = request.pop("options", {})
    fields = {"kind": kind, "command": command, "trace_dir": str(folder), **request}
    result = cwd / "outcome.json"
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(fields), str(result)],
        **{"cwd": cwd, "env": environment, "capture_output": True, "timeout": 300, "check": False, **options},
    )
    run = Run(done.returncode, done.stdout, done.stderr)
    data = json.loads(result.read_text())
    run.folder, run.outcome = Path(data.pop("folder")), Outcome(**data)
    if any(run.folder.glob("rank-*.jsonl")):
        run.traces = reader.read(run.folder)
    return run


def main() -> None:
    from amp_audit.runtime import launch

    fields = json.loads(sys.argv[1])
    for name in ("trace_dir", "watch"):
        if fields.get(name) is not None:
            fields[name] = Path(fields[name])
    running = launch.start(launch.Request(**fields))
    outcome = running.wait()
    assert outcome is not None
    assert "torch" not in sys.modules and "libcst" not in sys.modules
    Path(sys.argv[2]).write_text(json.dumps({**asdict(outcome), "folder": str(running.trace_dir)}))
    sys.exit(outcome.code if outcome.code is not None else 128 + (outcome.signal or 0))


if __name__ == "__main__":
    main()
