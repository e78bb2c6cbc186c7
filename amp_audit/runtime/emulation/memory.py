"""Memory of the emulated device: what ``torch.cuda.memory_stats`` counts, and what running out of it looks like."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from typing import Any

import torch

from amp_audit.runtime.emulation import target

_BYTES = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
_COUNTS = ("allocation", "active", "segment")
_NOTHING = ("inactive_split_bytes", "inactive_split")
_NONE = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
_REFUSED = re.compile(r"DefaultCPUAllocator: .*tried to allocate (\d+) bytes")


class Memory:
    """Bytes and numbers of storages that live Python tensors hold. What only autograd keeps is not seen."""

    def __init__(self) -> None:
        self._bytes = 0
        self._count = 0

    def stats(self, index: int) -> dict[str, Any]:
        """The nested dictionary of which torch makes ``memory_stats``; peaks are the most seen when it was asked."""
        sizes = list(_storages())
        held, count = sum(sizes), len(sizes)
        self._bytes, self._count = max(self._bytes, held), max(self._count, count)
        amounts = {"current": held, "peak": self._bytes, "allocated": self._bytes, "freed": self._bytes - held}
        numbers = {"current": count, "peak": self._count, "allocated": self._count, "freed": self._count - count}
        return {
            **{kind: _pools(amounts) for kind in _BYTES},
            **{kind: _pools(numbers) for kind in _COUNTS},
            **{kind: _pools(_NONE) for kind in _NOTHING},
            "oversize_allocations": _NONE,
            "oversize_segments": _NONE,
            **dict.fromkeys(("num_alloc_retries", "num_ooms", "num_sync_all_streams"), 0),
            **dict.fromkeys(("num_device_alloc", "num_device_free"), 0),
            "max_split_size": -1,
        }

    def forget_peak(self, index: int) -> None:
        self._bytes = self._count = 0


memory = Memory()
"""Of the one device: what ``torch.cuda`` and ``torch.accelerator`` ask is the same."""


def _pools(numbers: dict[str, int]) -> dict[str, dict[str, int]]:
    return {"all": numbers, "large_pool": numbers, "small_pool": _NONE}


def held() -> int:
    """Bytes on the device."""
    return sum(_storages())


def _storages() -> Iterator[int]:
    seen: set[int] = set()
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor) and target.there(item) and item.layout is torch.strided:
            own = item.untyped_storage()
            if own._cdata not in seen:
                seen.add(own._cdata)
                yield own.nbytes()


def out_of_memory(error: RuntimeError) -> Exception | None:
    """CUDA's error in place of the CPU allocator's; None for another error. Programs catch it and try with less."""
    refused = _REFUSED.search(str(error))
    if refused is None:
        return None
    amount = int(refused[1]) / 2**30
    return torch.OutOfMemoryError(
        f"{target.kind.key} out of memory. Tried to allocate {amount:.2f} GiB. "
        "(Emulated by amp-audit: it is this machine's memory)"
    )
