"""The CUDA runtime and its profilers, as far as torch lets programs call them: nothing happens there."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch

from amp_audit.runtime.emulation import target
from amp_audit.runtime.emulation.memory import held


def install() -> None:
    """Let torch's profilers record the CPU when they are told to record the device, and draw no timeline."""
    profiler: Any = torch.autograd.profiler
    begin = profiler.profile.__init__

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        if self.use_device == target.kind.name:
            self.use_device = None
            self.profiler_kind = torch._C._profiler.ProfilerState.KINETO

    profiler.profile.__init__ = __init__
    profiler.emit_nvtx.__enter__ = lambda self: self if self.enabled else None
    profiler.emit_nvtx.__exit__ = lambda self, *error: False if self.enabled else None


class Ranges:
    """``torch._C._nvtx``: nested ranges and marks of a timeline that nobody draws."""

    def __init__(self) -> None:
        self._depth = 0
        self._numbers = itertools.count(1)

    def rangePushA(self, message: str) -> int:
        """The depth of the range that was entered, from 0."""
        self._depth += 1
        return self._depth - 1

    def rangePop(self) -> int:
        """The depth of the range that was left; below zero if there was none."""
        self._depth = max(self._depth - 1, -1)
        return self._depth

    def rangeStartA(self, message: str) -> int:
        return next(self._numbers)

    def rangeEnd(self, number: int) -> None:
        pass

    def deviceRangeStart(self, message: str, stream: int) -> int:
        return next(self._numbers)

    def deviceRangeEnd(self, number: int, stream: int) -> None:
        pass

    def markA(self, message: str) -> None:
        pass


class Runtime:
    """What ``torch.cuda.cudart()`` gives: functions of the CUDA runtime; each returns the code of success."""

    class cudaError:
        success = 0

    def __init__(self, total: int) -> None:
        self._total = total

    def cudaMemGetInfo(self, index: int) -> tuple[int, int]:
        """Bytes that are free, and bytes in all."""
        return max(0, int(self._total * (1 - _IN_USE)) - held()), self._total

    def cudaProfilerStart(self) -> int:
        return 0

    def cudaProfilerStop(self) -> int:
        return 0

    def cudaHostRegister(self, *args: Any) -> int:
        return 0

    def cudaHostUnregister(self, *args: Any) -> int:
        return 0

    def cudaGetErrorString(self, error: int) -> str:
        return "no error"


_IN_USE = 0.05
"""The share of the device's memory that ``mem_get_info`` counts as used by others."""
