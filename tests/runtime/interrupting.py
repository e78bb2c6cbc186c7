"""A signal at one exact point of a program, again and again: at calls, where functions begin, in loops.

CPython runs signal handlers at the start of functions, after calls into C and at backward jumps. Whoever traces
instructions can count them and send a signal right before one of them; where Python then calls the handler is real.
"""

from __future__ import annotations

import _thread
import dis
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import amp_audit
from amp_audit.runtime import interrupts

Point = tuple[str, str, int, int]
"""Some code, by file, name and line, and one of its instructions, -1 for its beginning."""

_OURS = os.path.dirname(os.path.abspath(amp_audit.__file__)) + os.sep
_CALLS = frozenset(code for name, code in dis.opmap.items() if name.startswith(("CALL", "JUMP_BACKWARD", "JUMP_ABS")))


class Interrupter:
    """Runs a step of a program with a SIGALRM at a point of amp-audit's code, or ``everywhere``."""

    def __init__(self, *, everywhere: bool) -> None:
        self._everywhere = everywhere
        self._visits: Counter[Point] = Counter()
        self._target: tuple[Point, int] | None = None
        self.sent = False

    def points(self, step: Callable[[], object]) -> dict[Point, int]:
        """All points that a step comes by, and how often."""
        self._target = None
        self._run(step)
        return dict(self._visits)

    def strike(self, step: Callable[[], object], point: Point, visit: int) -> None:
        """Run the step; a signal is ``sent`` when it comes to a point for the n-th time."""
        self._target = (point, visit)
        self._run(step)

    def _run(self, step: Callable[[], object]) -> None:
        self._visits.clear()
        self.sent = False
        call, before = self._tracers(), sys.gettrace()
        sys.settrace(call)
        try:
            step()
        finally:
            sys.settrace(before)

    def _tracers(self) -> Callable[[FrameType, str, Any], Any]:
        interrupt, number, settrace = _thread.interrupt_main, signal.SIGALRM, sys.settrace

        def instruction(frame: FrameType, event: str, argument: Any) -> Any:
            at = frame.f_lasti
            if event == "opcode" and frame.f_code.co_code[at] in _CALLS and self._is_there(frame.f_code, at):
                settrace(None)
                frame.f_trace = None
                interrupt(number)
            return instruction

        def call(frame: FrameType, event: str, argument: Any) -> Any:
            if not (self._everywhere or frame.f_code.co_filename.startswith(_OURS)):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            if self._is_there(frame.f_code, -1):
                settrace(None)
                frame.f_trace = None
                interrupt(number)
                return None
            return instruction

        for function in (call, instruction):  # handlers wait for them, too
            function.__code__ = function.__code__.replace(co_filename=interrupts.__file__)
        return call

    def _is_there(self, code: CodeType, at: int) -> bool:
        point = (code.co_filename, code.co_name, code.co_firstlineno, at)
        self._visits[point] += 1
        if self._target is None or self.sent or self._target != (point, self._visits[point]):
            return False
        self.sent = True
        return True
