"""Whose work a frame does: ours, or what the program asked for."""

from __future__ import annotations

import dis
import functools
import os
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from amp_audit.runtime.patches import UNSEEN

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_OURS = os.path.dirname(os.path.dirname(_HERE)) + os.sep
_EMULATION = os.path.join(_HERE, "emulation") + os.sep
"""Stands for torch's own code of a device."""

_ORIGINAL = frozenset({"original"})

_passing: dict[CodeType, frozenset[str]] = {}

F = TypeVar("F", bound=Callable[..., Any])


def passing(*names: str) -> Callable[[F], F]:
    """A function of ours that runs what the program asked for, which it calls by one of ``names``.

    So are all that ``Patches`` puts around torch's functions: they call ``original``.
    """

    def note(function: F) -> F:
        _passing[function.__code__] = frozenset(names)
        return function

    return note


def _passes(frame: FrameType) -> bool:
    """Whether a frame of ours is where it runs what the program asked for."""
    return frame.f_lineno in _calls(frame.f_code)


@functools.cache
def _calls(code: CodeType) -> frozenset[int | None]:
    """The lines on which that is done."""
    names = _ORIGINAL if code.co_filename.endswith(UNSEEN) else _passing.get(code, frozenset())
    at = {step.offset for step in dis.get_instructions(code) if step.argval in names}
    return frozenset(line for start, end, line in code.co_lines() if at & {*range(start, end)})


def is_ours(code: CodeType) -> bool:
    """Whether code is amp-audit's own."""
    name = code.co_filename
    return name[: len(_OURS)] == _OURS and name[: len(_EMULATION)] != _EMULATION


def is_at_work(frame: FrameType | None) -> bool:
    """Whether a frame does work of ours: our own code, what that calls, or what a weak reference calls when something
    has gone, from which no exception comes back.
    """
    innermost = True
    while frame is not None:
        code = frame.f_code
        if is_ours(code):
            return innermost or not _passes(frame)
        if innermost and code.co_filename == weakref.__file__:
            return True
        innermost = False
        frame = frame.f_back
    return False


_ELSEWHERE = sys.stdlib_module_names | {"torch", "amp_audit"}


def is_thrown_in(error: BaseException) -> bool:
    """Whether another thread had an error raised in this one (``PyThreadState_SetAsyncExc``) that came up in our code.

    Its class is one of the program's, which nothing in our code raises. One of Python's own cannot be told.
    """
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    root = type(error).__module__.partition(".")[0]
    return step is not None and is_ours(step.tb_frame.f_code) and root not in _ELSEWHERE
