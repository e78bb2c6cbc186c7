"""Run a program under audit: progress while it runs, Ctrl-C, and one report from many ranks.

The program runs in a child that only writes a trace, so whatever becomes of it, the report is made here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

from amp_audit.runtime import launch
from amp_audit.target import Target
from amp_audit.trace.ranks import Member

POLL = 0.1
PATIENCE = 2
"""How often the program is asked to end before it is killed."""
QUIET = 2.0
"""Seconds between two lines of progress."""


@dataclass(frozen=True, slots=True)
class Recording:
    """How a program is recorded. ``steps`` None: to its end. ``go_on``: after ``steps`` only the recording stops.

    ``emulate``: the device it is to see (``cuda``, ``cuda:sm80``); None: what is there; ``dry``: without arithmetic,
    for one step. ``compile``: ``eager``: recorded steps run compiled functions as written; ``observe``: compiled.
    """

    steps: int | None = 20
    sample: str = "default"
    deep: str = "default"
    go_on: bool = False
    trace: Path | None = None
    emulate: str | None = None
    dry: bool = False
    compile: str = "eager"


def trace_folder(recording: Recording, member: Member | None) -> Path:
    """Where the trace goes: as asked, else below ``.amp-audit``, else a temporary folder. It exists afterwards."""
    folder = recording.trace or (Path(".amp-audit") / f"ranks-{member.key}" if member else _fresh_name())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if recording.trace is None:
            (folder.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    except OSError:
        return Path(tempfile.mkdtemp(prefix="amp-audit-"))
    return folder.resolve()


def _fresh_name() -> Path:
    """A folder that is not there yet: one process may record twice in a second."""
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
    folders = (Path(".amp-audit") / (f"{name}-{n}" if n > 1 else name) for n in itertools.count(1))
    return next(folder for folder in folders if not folder.exists())


def request(target: Target, recording: Recording, folder: Path, watch: Path | None) -> launch.Request:
    return launch.Request(
        kind=target.kind,
        command=target.command,
        trace_dir=folder,
        steps=1 if recording.dry else recording.steps,
        sample=recording.sample,
        deep=recording.deep,
        go_on=recording.go_on,
        watch=watch,
        emulate=recording.emulate,
        dry=recording.dry,
        compile=recording.compile,
    )


class Progress:
    """Lines on a terminal while the program runs; nothing anywhere else.

    Whole lines and few of them: the program prints to the same terminal, and its output is not ours to overwrite.
    """

    def __init__(self, stream: TextIO, steps: int | None, findings: Callable[[], int]) -> None:
        self._stream = stream if stream.isatty() else None
        self._steps = steps
        self._findings = findings
        self._last = (-1, -1)
        self._due = time.monotonic() + QUIET

    def show(self, step: int) -> None:
        """Tell of ``step`` if it is time and there is news."""
        if self._stream is None or time.monotonic() < self._due:
            return
        began = time.monotonic()
        news = (step, self._findings())
        if news != self._last:
            self._last = news
            of = f" of {self._steps}" if self._steps is not None else ""
            count = f"{news[1]} finding{'' if news[1] == 1 else 's'} so far"
            print(f"amp-audit: step {step}{of}, {count}", file=self._stream, flush=True)
        # Counting reads the trace; a long one must not keep a core busy.
        self._due = time.monotonic() + max(QUIET, 20 * (time.monotonic() - began))


def follow(running: launch.Running, progress: Progress, hurry: threading.Event | None = None) -> launch.Outcome:
    """Wait for the program. Ctrl-C and SIGTERM are for the program; what it leaves behind is still reported.

    ``hurry``: set on SIGTERM, which then does not end this process either once the program has ended. A launcher sends
    it to all ranks when one has failed, and one of these has the report of all to write.
    """
    with _passing_on(running, hurry):
        while True:
            outcome = running.wait(POLL)
            if outcome is not None:
                return outcome
            progress.show(running.steps())


@contextlib.contextmanager
def _passing_on(running: launch.Running, hurry: threading.Event | None) -> Iterator[None]:
    """Hand Ctrl-C and SIGTERM on to the program instead of ending here; one that will not end is killed in the end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers belong to the main thread; the caller keeps its own
        return
    asked = itertools.count(1)

    def hand_on(number: int, frame: object) -> None:
        if hurry is not None and number == signal.SIGTERM:
            hurry.set()
        if next(asked) > PATIENCE:
            running.send(signal.SIGKILL)
        elif number == signal.SIGINT:
            running.interrupt()
        else:
            running.terminate()

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if hurry is None or number != signal.SIGTERM:
                signal.signal(number, handler)


def program_code(outcome: launch.Outcome) -> int:
    """The program's exit code as a shell would give it: 128 + the signal when it was killed."""
    if outcome.stopped or outcome.code is not None:
        return 0 if outcome.stopped else int(outcome.code or 0)
    return 128 + (outcome.signal or 0)
