"""Run a program unchanged so that each of its processes attaches itself. Needs neither torch nor libcst.

The program is started as its user would start it (``python train.py``, ``python -m train``, or a launcher), so its
``__main__``, ``sys.argv``, ``sys.path``, working directory, standard streams and tracebacks are its own. Only the
environment differs: see ``attach``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from amp_audit.runtime.attach import WATCH_WAIT, Config, environment

Kind = Literal["script", "module", "launcher"]


class LaunchError(OSError):
    """The program could not be started at all; the message says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to run and how to record it.

    ``command``: the script, module or launcher and its arguments. ``steps``: stop after so many optimizer steps (None:
    never); with ``go_on`` only the recording stops. ``sample``: ``"default"``, ``"all"`` or a number N (every Nth
    step). ``watch``: a JSON file, which may appear a little later, ``{path: [[first line, last line], ...]}``: code
    whose reached lines are wanted (``Trace.lines``). With torch imported the program waits until it is there, ten
    seconds after its start at most: write it also when there is nothing to watch. ``emulate``: a device to emulate,
    ``dry`` without arithmetic. ``compile``: recorded steps run what ``torch.compile`` was given as written
    (``"eager"``) or compiled (``"observe"``).
    """

    kind: Kind
    command: Sequence[str]
    trace_dir: Path
    steps: int | None = 20
    sample: str = "default"
    deep: str = "default"
    go_on: bool = False
    watch: Path | None = None
    emulate: str | None = None
    dry: bool = False
    compile: str = "eager"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the program ended: ``code`` its exit code, or None and ``signal`` when it was killed.

    ``stopped``: amp-audit ended it after ``steps``. ``seconds``: wall time.
    """

    code: int | None
    signal: int | None
    stopped: bool
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether the program itself failed or was killed (being stopped is no failure)."""
        return not self.stopped and self.code != 0


class Running:
    """A program under audit.

    ``trace_dir`` is where it really writes: ``Request.trace_dir``, or a temporary folder when that cannot be written.
    """

    def __init__(self, process: subprocess.Popen[bytes], trace_dir: Path) -> None:
        self.trace_dir = trace_dir
        self._process = process
        self._began = time.monotonic()
        self._outcome: Outcome | None = None
        self._read: dict[Path, tuple[int, int]] = {}  # file -> bytes read, steps seen in them

    def poll(self) -> Outcome | None:
        """The outcome, or None while the program runs."""
        if self._outcome is None and self._process.poll() is not None:
            self._outcome = self._ended(self._process.returncode)
        return self._outcome

    def wait(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the end, for ``timeout`` seconds at most (then None)."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        return self.poll()

    def send(self, number: int) -> None:
        """Send the program a signal; nothing happens when it has ended."""
        self._process.send_signal(number)

    def terminate(self) -> None:
        """Ask the program to end (SIGTERM)."""
        self._process.terminate()

    def interrupt(self) -> None:
        """Pass a Ctrl-C on, unless the terminal has sent it to the program as well."""
        if not _in_foreground():
            self.send(signal.SIGINT)

    def steps(self) -> int:
        """Optimizer steps written so far, of the process furthest behind."""
        return min((self._steps_in(file) for file in self.trace_dir.glob("rank-*.jsonl")), default=0)

    def most_steps(self) -> int:
        """Optimizer steps written so far, of the process furthest ahead: others may train something of their own."""
        return max((self._steps_in(file) for file in self.trace_dir.glob("rank-*.jsonl")), default=0)

    def _steps_in(self, file: Path) -> int:
        """The last step in a file. Reads only what was added since the last call; a record starts with its type."""
        done, step = self._read.get(file, (0, 0))
        with file.open("rb") as stream:
            stream.seek(done)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                done += len(line)
                if line.startswith(_STEP) and _OPEN not in line[:_HEAD]:
                    digits = line[len(_STEP) :].partition(b",")[0].rstrip(b"}\n")
                    step = int(digits) if digits.isdigit() else step
        self._read[file] = (done, step)
        return step

    def _ended(self, code: int) -> Outcome:
        seconds = time.monotonic() - self._began
        stopped = any(_END_STOPPED in line for file in self.trace_dir.glob("rank-*.jsonl") for line in _last_line(file))
        if code < 0:
            return Outcome(None, -code, False, seconds)
        return Outcome(code, None, stopped and code == 0, seconds)


_STEP = b'{"type":"step","step":'
_OPEN = b'"open":true'
_HEAD = 80
"""The first fields of a step that is in flight end before this byte."""
_END_STOPPED = b'{"type":"end","reason":"stopped"'


def _last_line(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        lines = stream.read().splitlines()
        yield from lines[-1:]


def _in_foreground() -> bool:
    """Whether Ctrl-C comes from a terminal, which sends it to all processes of the foreground group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def start(request: Request) -> Running:
    """Start the program. Raises ``LaunchError`` when there is nothing to start."""
    if not request.command:
        raise LaunchError("no program was given")
    folder = _writable(request.trace_dir)
    config = Config(
        trace_dir=str(folder),
        steps=request.steps,
        sample=request.sample,
        deep=request.deep,
        go_on=request.go_on,
        watch=None if request.watch is None else str(request.watch.resolve()),
        watch_until=time.time() + WATCH_WAIT,
        main=request.kind != "launcher",
        emulate=request.emulate,
        dry=request.dry,
        compile=request.compile,
    )
    _clear(folder, os.environ.get("RANK"), os.environ.get("WORLD_SIZE"))
    command = _command(request)
    try:
        process = subprocess.Popen(command, env=environment(config, os.environ))
    except OSError as error:
        raise LaunchError(f"{command[0]}: {error.strerror or error}") from error
    return Running(process, folder)


def _command(request: Request) -> list[str]:
    first, *rest = request.command
    if request.kind == "launcher":
        return [first, *rest]
    if request.kind == "script" and not Path(first).exists():
        raise LaunchError(f"{first}: no such file")
    options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *options, *(["-m"] if request.kind == "module" else []), first, *rest]


def _writable(folder: Path) -> Path:
    """The folder, made if need be; a temporary one when nothing can be written in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return Path(tempfile.mkdtemp(prefix="amp-audit-"))
    return folder.resolve()


def _clear(folder: Path, rank: str | None, world: str | None) -> None:
    """Remove an earlier trace. Among several ranks each removes its own, and the first those that are not among us."""
    for file in [*folder.glob("rank-*.jsonl"), *folder.glob("unattached-*.txt")]:
        number = file.name.removeprefix("rank-").partition(".")[0]
        if rank is None or number == rank or (rank == "0" and _beyond(number, world)):
            file.unlink(missing_ok=True)


def _beyond(number: str, world: str | None) -> bool:
    return number.isdigit() and world is not None and world.isdigit() and int(number) >= int(world)
