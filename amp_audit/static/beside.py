"""Part of a check in a process beside this one, where the machine has a core for it.

The process is forked: it has all that was read so far and is told nothing. Only the result comes back, pickled; rules
are named in it by their ids. Where there is no fork or no second core, or where the other process came to nothing, the
work is done here when its result is asked for, so that the result is the same in every case.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Generic, TypeVar

from amp_audit.rulebook import Rule

T = TypeVar("T")


def is_worth_it() -> bool:
    """Whether two processes can run at once. Not where other threads than the main one and ours run: what they hold
    would be held for ever in the other process."""
    if not hasattr(os, "fork") or not hasattr(os, "sched_getaffinity"):
        return False
    return len(os.sched_getaffinity(0)) > 1 and threading.active_count() <= 2


class Beside(Generic[T]):
    """The result of ``work()``, which begins at once in another process. ``rules`` are those that may be in it."""

    def __init__(self, work: Callable[[], T], rules: Mapping[str, Rule]) -> None:
        self._work, self._rules = work, rules
        self._process, self._pipe = _started(work)

    def result(self) -> T:
        """Wait for the result. What ``work`` raises is raised here."""
        if self._process is None:
            return self._work()
        with open(self._pipe, "rb") as pipe:
            data = pipe.read()
        with contextlib.suppress(ChildProcessError):  # nobody waits for a child where SIGCHLD is ignored
            os.waitpid(self._process, 0)
        try:
            found: T = _Unpickler(io.BytesIO(data), self._rules).load()
        except Exception:  # it ended before it had sent all
            return self._work()
        return found


def _started(work: Callable[[], Any]) -> tuple[int | None, int]:
    """A process that does the work, and where to read its result; None where the system lets no more of them be."""
    pipe, end = os.pipe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: see ``is_worth_it``
            process = os.fork()
    except OSError:
        os.close(pipe)
        os.close(end)
        return None, -1
    if not process:
        os.close(pipe)
        _serve(work, end)
    os.close(end)
    return process, pipe


def _serve(work: Callable[[], Any], end: int) -> None:
    """Do the work and end the process, without what a program does at its end. It lets go of the standard streams:
    whoever reads them to their end waits for the first process alone.
    """
    status = 1
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        with contextlib.suppress(Exception), open(end, "wb") as pipe:
            data = io.BytesIO()
            _Pickler(data, pickle.HIGHEST_PROTOCOL).dump(work())
            pipe.write(data.getbuffer())
            pipe.flush()
            status = 0
    finally:
        os._exit(status)


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> str | None:
        return value.id if isinstance(value, Rule) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: BinaryIO, rules: Mapping[str, Rule]) -> None:
        super().__init__(data)
        self._rules = rules

    def persistent_load(self, name: str) -> Rule:
        return self._rules[name]
