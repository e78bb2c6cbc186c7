"""Keep amp-audit out of the tracebacks of the program's own exceptions."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from amp_audit.runtime.frames import passing

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def strip(error: BaseException | None) -> None:
    """Take the frames of this package out of an exception's traceback, and out of those it came from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        clean(error)
        error = error.__cause__ or error.__context__


def clean(error: BaseException) -> None:
    """Take the frames of this package out of an exception's traceback.

    A wrapper that does so and raises again with a bare ``raise`` leaves none of its own behind, from Python 3.11 on.
    """
    error.__traceback__ = _without(error.__traceback__)


def _without(traceback: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_HERE):
            kept.append(traceback)
        traceback = traceback.tb_next
    for one, following in zip(kept, [*kept[1:], None]):
        one.tb_next = following
    return kept[0] if kept else None


class Hooks:
    """Our links in ``sys.excepthook`` and ``threading.excepthook``; whatever was there is called after."""

    def __init__(self) -> None:
        self._main: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self._thread: tuple[Callable[..., Any], Callable[..., Any]] | None = None

    def install(self) -> None:
        before, thread_before = sys.excepthook, threading.excepthook

        @passing("before")
        def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
            strip(error)
            before(kind, error, error.__traceback__)

        @passing("thread_before")
        def thread_hook(arguments: Any) -> None:
            strip(arguments.exc_value)
            if arguments.exc_value is not None:
                arguments = threading.ExceptHookArgs(
                    (arguments.exc_type, arguments.exc_value, arguments.exc_value.__traceback__, arguments.thread)
                )
            thread_before(arguments)

        sys.excepthook, threading.excepthook = hook, thread_hook
        self._main, self._thread = (hook, before), (thread_hook, thread_before)

    def uninstall(self) -> None:
        """Put back what was there, unless the program put something else on top."""
        if self._main is not None and sys.excepthook is self._main[0]:
            sys.excepthook = self._main[1]
        if self._thread is not None and threading.excepthook is self._thread[0]:
            threading.excepthook = self._thread[1]
