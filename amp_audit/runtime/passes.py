"""Backward passes in progress, and when gradients may be looked at that are not the calling thread's own.

Autograd puts gradients into ``.grad`` without the interpreter's lock, and a gradient that is dropped is freed before
``.grad`` is empty: whoever reads one in another thread at that moment may take the process down. So a pass waits for
who is reading, nobody reads while one of another thread runs, and clearing gradients counts as a pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Passes:
    """The backward passes of a process that run now."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked child: only the calling thread is left, and nobody would ever release the lock."""
        self._lock = threading.RLock()
        self._running: dict[int, int] = {}

    def mine(self) -> int:
        """How many passes of the calling thread run, one inside the other."""
        return self._running.get(threading.get_ident(), 0)

    def begin(self) -> bool:
        """A pass of the calling thread begins; whether one of another thread runs."""
        here = threading.get_ident()
        with self._lock:
            self._running[here] = self._running.get(here, 0) + 1
            return len(self._running) > 1

    def end(self, left: int) -> None:
        """It is over, whether it came to ``begin`` or not: so many are ``left`` as there were before."""
        here = threading.get_ident()
        with self._lock:
            if left:
                self._running[here] = left
            else:
                self._running.pop(here, None)

    def read(self, look: Callable[[], T]) -> T | None:
        """What ``look`` returns, which reads gradients; None, uncalled, while a pass of another thread runs."""
        with self._lock:
            return None if self._running.keys() - {threading.get_ident()} else look()
