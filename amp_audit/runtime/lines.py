"""Which lines of watched code are reached, at next to no cost to any other code.

Python 3.12 and newer: ``sys.monitoring``, where a line reports once and code that is not watched reports its first
start only. Older ones: a trace function that declines every frame that is not watched (measured on a tiny GPT: 3% of a
step), unless a debugger or a coverage tool has one already.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

Ranges = Mapping[str, Sequence[Sequence[int]]]


class Watch:
    """Reached lines by path, as the paths were given."""

    def __init__(self, ranges: Ranges) -> None:
        self.reached: dict[str, set[int]] = {}
        self.why_not: str | None = None
        self._told: dict[str, set[int]] = {}
        self._ranges = {os.path.abspath(path): (path, spans) for path, spans in ranges.items()}
        self._known: dict[int, set[int] | None] = {}
        self._kept: list[CodeType] = []  # so that an id in _known stays that of its code
        self._directory = os.getcwd()
        self._tool: int | None = None

    def lines_of(self, code: CodeType) -> set[int] | None:
        """Where to note reached lines of ``code``, or None when it is not watched."""
        key = id(code)
        if key not in self._known:
            self._kept.append(code)
            self._known[key] = self._find(code)
        return self._known[key]

    def news(self) -> dict[str, list[int]]:
        """Lines reached since the last call."""
        found: dict[str, list[int]] = {}
        for path, lines in self.reached.items():
            told = self._told.setdefault(path, set())
            new = sorted(set(lines) - told)
            if new:
                found[path] = new
                told.update(new)
        return found

    def all(self) -> dict[str, list[int]]:
        return {path: sorted(lines) for path, lines in self.reached.items() if lines}

    def _find(self, code: CodeType) -> set[int] | None:
        known = self._ranges.get(os.path.join(self._directory, code.co_filename))
        if known is None:
            return None
        path, spans = known
        last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
        if not any(first <= last and code.co_firstlineno <= end for first, end in spans):
            return None
        return self.reached.setdefault(path, set())

    def start(self) -> None:
        if hasattr(sys, "monitoring"):
            self._monitor()
        elif sys.gettrace() is not None:
            self.why_not = "which lines were reached: a debugger or coverage tool was at work"
        else:
            sys.settrace(self._call)
            threading.settrace(self._call)
            for frame in _stack():
                frame.f_trace = self._call(frame, "call", None)

    def stop(self) -> None:
        """Watch nothing any more: an interpreter that is shutting down takes the modules away that we stand on."""
        if self._tool is not None:
            sys.monitoring.free_tool_id(self._tool)  # type: ignore[attr-defined,unused-ignore]
            self._tool = None
        if sys.gettrace() == self._call:
            sys.settrace(None)
        if threading.gettrace() == self._call:
            threading.settrace(None)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        lines = self.lines_of(frame.f_code)
        return None if lines is None else _noting(lines)

    def _monitor(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        tool = next((number for number in (4, 3) if monitoring.get_tool(number) is None), None)
        if tool is None:
            self.why_not = "which lines were reached: sys.monitoring is in use"
            return
        monitoring.use_tool_id(tool, "amp-audit")
        self._tool = tool
        events = monitoring.events

        def started(code: CodeType, offset: int) -> Any:
            if self.lines_of(code) is not None:
                monitoring.set_local_events(tool, code, events.LINE)
            return monitoring.DISABLE

        def reached(code: CodeType, line: int) -> Any:
            lines = self.lines_of(code)
            if lines is not None:
                lines.add(line)
            return monitoring.DISABLE

        monitoring.register_callback(tool, events.PY_START, started)
        monitoring.register_callback(tool, events.LINE, reached)
        monitoring.set_events(tool, events.PY_START)
        for frame in _stack():
            started(frame.f_code, 0)


def _noting(lines: set[int]) -> Any:
    def note(frame: FrameType, event: str, argument: Any) -> Any:
        lines.add(frame.f_lineno)
        return note

    return note


def _stack() -> Iterator[FrameType]:
    """The frames that are running already."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


current: Watch | None = None
"""The watch of this process."""


def start(ranges: Ranges) -> None:
    """Watch from now on, also what is running already."""
    global current
    if current is None:
        current = Watch(ranges)
        if ranges:
            current.start()
            atexit.register(current.stop)
