"""Run a program unchanged so that each of its processes attaches itself. Needs neither torch nor libcst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["script", "module", "launcher"]


class LaunchError(OSError):
    """The program could not be started at all; the message says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to run and how to record it.

    ``command``: the script, module or launcher and its arguments. ``steps``: stop after so many optimizer steps (None:
    never); with ``go_on`` only the recording stops. ``sample``: ``"default"``, ``"all"`` or a number N (every Nth
    step). ``watch``: a JSON file, which may appear a little later, ``{path: [[first line, last line], ...]}``: code
    whose reached lines are wanted (``End.lines``).
    """

    kind: Kind
    command: Sequence[str]
    trace_dir: Path
    steps: int | None = 20
    sample: str = "default"
    go_on: bool = False
    watch: Path | None = None


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
    """A program under audit."""

    trace_dir: Path
    """Where it really writes: ``Request.trace_dir``, or a temporary folder when that cannot be written."""

    def poll(self) -> Outcome | None:
        """The outcome, or None while the program runs."""
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> Outcome | None:
        """Wait for the end (``timeout`` in seconds; then None). Ctrl-C reaches the program, not the caller."""
        raise NotImplementedError

    def steps(self) -> int:
        """Optimizer steps finished so far, of the process furthest behind."""
        raise NotImplementedError

    def terminate(self) -> None:
        """Send SIGTERM to the program (the supervisor was asked to end); may be called again, then it is killed."""
        raise NotImplementedError


def start(request: Request) -> Running:
    """Start it. Raises ``LaunchError`` when there is nothing to start."""
    raise NotImplementedError
