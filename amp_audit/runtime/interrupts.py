"""The program's signal handlers never run inside of us: what would come there waits until our code has been left.

Python runs a handler wherever its main thread is, on recorded steps often in here, and what a handler raises would
leave our books half written. So each handler is called through ``_Waiting``, which looks at the frame that was
interrupted. In ours it has Python call it again at the next occasion, of which there is one at nearly every call. Then
a handler runs where it would have run without us: when the operator, the pass or the call that we watch is over.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found,unused-ignore]  # which ``signal`` calls, whoever imported it before
import _thread
import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from amp_audit.runtime import tracebacks
from amp_audit.runtime.frames import is_at_work, is_ours, passing
from amp_audit.runtime.patches import Patches

_VALID = tuple(map(int, sorted(signal.valid_signals())))
_getsignal, _setsignal = _signal.getsignal, _signal.signal


class Handlers:
    """The handlers of the process. To the program they are what it has set."""

    def __init__(self) -> None:
        self._patches = Patches()

    def start(self) -> None:
        """Handlers wait from now on, those that are in force and those that will be."""
        if not self._patches.wraps(_signal, "signal"):
            self._patches.wrap(_signal, "signal", self._signal)
            self._patches.wrap(_signal, "getsignal", self._get)
        self.attend()

    def attend(self) -> None:
        """Those in force: in the main thread only may they be changed."""
        if _is_main():
            for number in _VALID:
                handler = _getsignal(number)
                made = _waiting(handler)
                if made is not handler:
                    _setsignal(number, made)

    def stop(self) -> None:
        """Leave the handlers as the program set them. They may run, and raise, in here."""
        if _is_main():
            try:
                self._put_back()
            finally:
                self._patches.undo()

    def _put_back(self) -> None:
        number = next((one for one in _VALID if type(_getsignal(one)) is _Waiting), None)
        if number is not None:
            try:
                _setsignal(number, _getsignal(number).handler)
            finally:
                self._put_back()

    def _signal(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def signal(number: Any, handler: Any, /) -> Any:
            return _told(original(number, _waiting(handler)))

        return signal

    def _get(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def getsignal(number: Any, /) -> Any:
            return _told(original(number))

        return getsignal


class _Waiting:
    """What Python calls in the place of a handler."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    @passing("handler")
    def __call__(self, number: int, frame: FrameType | None) -> Any:
        if frame is not None and is_at_work(frame):
            if _ENTRY_IS_ENDLESS and (sys.gettrace() or sys.getprofile()):
                if _await_event(number, frame):
                    return None
            else:
                # From here on nothing may be called: it would be the next occasion.
                descriptor = _WAKE[-1]
                _AGAIN[number]
                try:  # noqa: SIM105
                    _WAKE[descriptor]
                except (ValueError, OSError):  # closed by now
                    pass
                return None
        try:
            return self.handler(number, frame)
        except BaseException as error:
            tracebacks.clean(error)
            raise


class _Again(dict[int, None]):
    """An item of it that is asked for marks a signal as one that has come."""

    __missing__ = _thread.interrupt_main


class _Wake(dict[int, int]):
    """An item of it that is asked for becomes the file descriptor that is told of signals; it is the one before.

    An event loop reads them from there, each as often as it was told.
    """

    __missing__ = _signal.set_wakeup_fd


_AGAIN, _WAKE = _Again(), _Wake()

_ENTRY_IS_ENDLESS = sys.version_info[:2] == (3, 11)
"""Whether a function that is traced is not entered before no signal is marked as one that has come."""

_MARKS = Handlers.start.__code__.co_filename

_later: dict[int, None] = {}
"""Signals to be marked at the next event of a trace."""


def _await_event(number: int, frame: FrameType) -> bool:
    """Have a signal marked at the next event of a trace of our own, beside the program's; False if there is no room."""
    _later[number] = None
    if sys.getprofile() in (None, _mark_all):
        sys.setprofile(_mark_all)
    elif sys.gettrace() in (None, _mark_all):
        frame.f_trace = _mark_all
        sys.settrace(_mark_all)
    else:
        _later.pop(number, None)
        return False
    return True


def _mark_all(frame: FrameType, event: str, argument: Any) -> None:
    """Called at the events of a trace; the first ones are the end of the handler itself."""
    if frame.f_code.co_filename == _MARKS:
        return
    if sys.getprofile() is _mark_all:
        sys.setprofile(None)
    if sys.gettrace() is _mark_all:
        sys.settrace(None)
    numbers = tuple(_later)
    _later.clear()
    # As above: nothing may be called from the first mark on.
    marks = map(_AGAIN.__getitem__, numbers)
    descriptor = _WAKE[-1]
    _ = (*marks,)
    try:  # noqa: SIM105
        _WAKE[descriptor]
    except (ValueError, OSError):
        pass


def _waiting(handler: Any) -> Any:
    """A handler that waits, if it is one of the program's that is written in Python or that Python calls."""
    if not callable(handler) or type(handler) is _Waiting:
        return handler
    code = getattr(handler, "__code__", None)
    return handler if isinstance(code, CodeType) and is_ours(code) else _Waiting(handler)


def _told(handler: Any) -> Any:
    return handler.handler if type(handler) is _Waiting else handler


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident
