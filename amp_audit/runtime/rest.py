"""Threads that are not Python's, at the end of a program.

Autograd's first backward starts a thread for each device (one on the CPU alone). Each takes the interpreter's lock
once, and again where it frees what Python holds. One that comes to it when Python has begun to end takes the process
down ("terminate called without an active exception"): short programs on a busy machine do see that, without us too.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path


def await_rest(patience: float = 0.5) -> None:
    """Wait until they are at rest, for ``patience`` seconds at most. This thread gives the lock away meanwhile.

    It does so while it sleeps and while it reads, so a thread that waited for the lock is then seen to run.
    """
    deadline = time.monotonic() + patience
    rests = 0
    while rests < _RESTS and time.monotonic() < deadline:
        time.sleep(0.001)
        rests = 0 if any(map(_runs, _native_threads())) else rests + 1


_RESTS = 3
"""How often in a row they must be seen at rest."""


def _native_threads() -> list[Path]:
    """Those of this process that Python did not start; none where the system does not tell."""
    own = {thread.native_id for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}
    try:
        return [task for task in Path("/proc/self/task").iterdir() if int(task.name) not in own]
    except OSError:
        return []


def _runs(task: Path) -> bool:
    """Whether a thread runs, or would if a core were free (proc(5), ``stat``, the field after the name)."""
    try:
        return (task / "stat").read_text().rpartition(") ")[2][:1] in {"R", "D"}
    except OSError:
        return False  # it has ended
