"""The CUDA runtime and its profilers, as far as torch lets programs call them: nothing happens there."""

from __future__ import annotations

import itertools
from typing import Any

from amp_audit.runtime.emulation.memory import held


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
