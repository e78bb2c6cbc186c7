"""How long operators take, one by one: by the clock on the CPU, by events in its stream on a GPU.

What is timed is the operator's own call. What the tracer does for it, and what is run again in float32, happens before
and after. On a GPU nothing is waited for: the events are read when the step is over.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from amp_audit.runtime.frames import passing

_now = time.perf_counter_ns


class Timed(Protocol):
    """What takes up the time of an operator."""

    nanoseconds: int


class Stopwatch:
    """Times operators, and adds the times to rows. ``event`` makes what is recorded in the stream of a GPU.

    An event of a GPU passes when all before it is done, so a short operator's time is that of its launch.
    """

    def __init__(self, event: Callable[[], Any] | None = None) -> None:
        self._event = event or functools.partial(torch.cuda.Event, enable_timing=True)
        self._open: list[tuple[Timed, Any, Any]] = []

    @passing("call")
    def run(
        self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], gpu: bool
    ) -> tuple[Any, Any]:
        """The operator's result, and its time, to be given to ``book``. What it raises goes through.

        ``gpu``: it runs in the current stream of a GPU, and no graph is being captured there.
        """
        if not gpu:
            began = _now()
            out = call(*args, **kwargs)
            return out, _now() - began
        first, last = self._event(), self._event()
        first.record()
        out = call(*args, **kwargs)
        last.record()
        return out, (first, last)

    def book(self, row: Timed, spent: Any) -> None:
        """Add the time of an operator to its row, now or when the device has come so far."""
        if spent.__class__ is int:
            row.nanoseconds += spent
        else:
            self._open.append((row, *spent))

    def read(self) -> None:
        """Add what is open, when the step is over. Waits for the device."""
        waiting, self._open = self._open, []
        for row, first, last in waiting:
            last.synchronize()
            row.nanoseconds += round(1e6 * first.elapsed_time(last))
