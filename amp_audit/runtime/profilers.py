"""A profiler of the program's own, running while we work."""

from __future__ import annotations

import threading
from typing import Any

import torch

profiled = torch._C._autograd._profiler_enabled
"""Whether a profiler runs that is told of the calling thread's operators."""

_tell = torch._C._autograd._enable_record_function


class _Depth(threading.local):
    within = 0


_depth = _Depth()


class Unprofiled:
    """Within it the calling thread's operators are not told to profilers (``torch.profiler`` and its kin).

    Costs next to nothing while none runs. May be entered within itself.
    """

    __slots__ = ("_hides",)

    def __enter__(self) -> None:
        self._hides = profiled()
        if self._hides:
            _depth.within += 1
            _tell(False)

    def __exit__(self, *error: Any) -> None:
        if self._hides:
            _depth.within -= 1
            if not _depth.within:
                _tell(True)
