"""What is known of values in memory, by where they lie: buckets, views and writes into parts of a tensor told apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
Extent = tuple[int, int]  # bytes from the beginning of a storage: first, and one past the last

_MANY = 4096
"""So many separate writes into one storage are told apart; beyond them the oldest are forgotten."""


def extent(tensor: torch.Tensor) -> Extent:
    """The bytes of its storage between which a strided tensor lies."""
    size = tensor.dtype.itemsize
    first = int(tensor.storage_offset()) * size
    if tensor.is_contiguous():
        return first, first + tensor.numel() * size
    reach: int = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (reach + 1) * size


@dataclass(slots=True)
class Memory(Generic[T]):
    """Says of a tensor what was said last of the memory it lies in. Keeps addresses, no tensors."""

    _writes: dict[int, list[tuple[Extent, T | None]]] = field(default_factory=dict)

    def write(self, tensor: torch.Tensor, known: T | None) -> None:
        """The values of ``tensor`` are new; None: nothing is known of them."""
        storage = int(tensor.untyped_storage()._cdata)
        first, end = where = extent(tensor)
        writes = self._writes.get(storage)
        if writes is None:
            if known is not None:
                self._writes[storage] = [(where, known)]
            return
        if len(writes) == 1 and writes[0][0] == where:
            writes[0] = (where, known)
            return
        kept = [write for write in writes if write[0][0] < first or write[0][1] > end]
        self._writes[storage] = [*kept[-_MANY:], (where, known)]

    def read(self, tensor: torch.Tensor) -> T | None:
        """What is known of the latest write that ``tensor`` overlaps."""
        writes = self._writes.get(int(tensor.untyped_storage()._cdata))
        if writes is None:
            return None
        if len(writes) == 1 and writes[0][0][0] == 0 == tensor.storage_offset():
            return writes[0][1]
        first, end = extent(tensor)
        for (begin, stop), known in reversed(writes):
            if begin < end and first < stop:
                return known
        return None
