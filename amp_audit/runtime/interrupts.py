"""Signals of the program that come while we keep our books: what its handlers raise is the program's, not an error of
ours, and what must be whole is not cut in two.

Python runs a handler wherever its main thread is, and on recorded steps that is often in here. What a handler raises
there leaves through the operator or the call that was being recorded, as if the signal had come just before or after.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found,unused-ignore]  # as fast as Deferred needs it
import os
import signal
import threading
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_VALID = tuple(map(int, sorted(signal.valid_signals())))


def from_program(error: BaseException) -> bool:
    """Whether a signal handler of the program raised an error that came up in our code."""
    codes = _handlers()
    step = error.__traceback__
    while step is not None:
        frame = step.tb_frame
        ours = frame.f_code.co_filename.startswith(_HERE)
        if not ours and (frame.f_code in codes or _was_interrupting(frame)):
            return True
        step = step.tb_next
    return False


def _handlers() -> set[CodeType]:
    """The code of the handlers in force, as far as they are written in Python."""
    found: set[CodeType] = set()
    for handler in map(_signal.getsignal, _VALID):
        if callable(handler):
            code = getattr(getattr(handler, "__func__", handler), "__code__", None)
            if isinstance(code, CodeType):
                found.add(code)
    return found


def _was_interrupting(frame: FrameType) -> bool:
    """Whether a frame is that of a handler: it was called with the frame that it interrupted, which called it."""
    if frame.f_back is None:
        return False
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + (code.co_flags & 4 > 0)  # 4: takes *args
    for name in code.co_varnames[:count]:
        value = frame.f_locals.get(name)
        if value is frame.f_back or (type(value) is tuple and any(item is frame.f_back for item in value)):
            return True
    return False


class Deferred:
    """A context in which the program's signal handlers wait until it is over, as they do while C code runs.

    There are none to wait for in threads other than the main one. A context within another one leaves it to that.
    """

    __slots__ = ("_came", "_waiting")
    _open = False

    def __enter__(self) -> None:
        self._came: list[int] = []
        self._waiting: dict[int, Any] | None = None
        if Deferred._open or get_ident() != threading.main_thread().ident:
            return
        self._waiting = {}
        Deferred._open = True
        try:
            for number in _VALID:
                handler = _signal.getsignal(number)
                if callable(handler):
                    self._waiting[number] = handler
                    _signal.signal(number, self._note)
        except BaseException:
            self.__exit__()
            raise

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number not in self._came:
            self._came.append(number)

    def __exit__(self, *_: object) -> None:
        if self._waiting is None:
            return
        waiting, self._waiting = self._waiting, None
        Deferred._open = False
        try:
            self._put_back(waiting)
        finally:
            _deliver(self._came)

    def _put_back(self, waiting: dict[int, Any]) -> None:
        """Whatever handlers that are back already raise meanwhile."""
        note = self._note
        try:
            while waiting:
                number, handler = next(iter(waiting.items()))
                if _signal.getsignal(number) == note:  # otherwise the program has set another one
                    _signal.signal(number, handler)
                waiting.pop(number, None)
        finally:
            if waiting:
                self._put_back(waiting)


def _deliver(numbers: list[int]) -> None:
    """Send signals that were kept waiting, all of them, whatever their handlers raise."""
    try:
        while numbers:
            signal.raise_signal(numbers.pop(0))
    finally:
        if numbers:
            _deliver(numbers)
