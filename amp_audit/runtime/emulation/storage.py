"""Storages on the emulated device, which torch makes in C++ from an allocator that is not there; saving and loading."""

from __future__ import annotations

from typing import Any

import torch

from amp_audit.runtime.emulation.backend import CannotEmulate
from amp_audit.runtime.emulation.bridge import on_device, over_storage

_FIRST = 5
"""Before torch's own entries (10 for the CPU, 20 for CUDA) in the order in which locations of storages are tried."""


def install() -> None:
    """Let ``torch.UntypedStorage`` be made on CUDA, and ``torch.load`` put storages there."""
    untyped: Any = torch.UntypedStorage
    make = untyped.__new__
    copy = untyped.copy_

    def __new__(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return make(cls, *args, **({} if device is None else {"device": device}), **kwargs)
        return on_cuda(make(cls, *args, **kwargs))

    untyped.__new__ = staticmethod(__new__)
    untyped.cuda = _to_cuda

    def copy_(storage: Any, source: Any, non_blocking: Any = None) -> Any:
        if not (storage.is_cuda or source.is_cuda):
            return copy(storage, source, non_blocking)
        over_storage(storage).copy_(over_storage(source))
        return storage

    untyped.copy_ = copy_
    resize = untyped.resize_

    def resize_(storage: Any, size: int) -> Any:
        if not storage.is_cuda:
            return resize(storage, size)
        if size > storage.nbytes():
            raise CannotEmulate("amp-audit cannot emulate a CUDA storage that grows (UntypedStorage.resize_)")
        return storage  # memory that is given back and taken again, as sharded modules do, stays

    untyped.resize_ = resize_
    torch.serialization.register_package(_FIRST, lambda storage: None, _restore)


def on_cuda(host: torch.UntypedStorage) -> torch.UntypedStorage:
    """A storage on the device over the memory of one on the CPU."""
    return on_device(torch.empty(0, dtype=torch.uint8).set_(host)).untyped_storage()


def _to_cuda(storage: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    if storage.is_cuda:
        return storage
    return on_cuda(storage.clone())


def _restore(storage: Any, location: str) -> Any:
    """What ``torch.load`` calls for each storage; None leaves it to the entries that follow."""
    if not location.startswith("cuda"):
        return None
    return on_cuda(storage)
