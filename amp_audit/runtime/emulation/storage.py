"""Storages on the emulated device, which torch makes in C++ from an allocator that is not there; saving and loading."""

from __future__ import annotations

from typing import Any

import torch

from amp_audit.runtime.emulation import placement, target
from amp_audit.runtime.emulation.backend import CannotEmulate
from amp_audit.runtime.emulation.bridge import aim, on_device, over_storage
from amp_audit.runtime.emulation.placement import index_of

_FIRST = 5
"""Before torch's own entries (10 for the CPU, 20 for CUDA) in the order in which locations of storages are tried."""


def install() -> None:
    """Let ``torch.UntypedStorage`` be made on the device, and ``torch.load`` put storages there."""
    untyped: Any = torch.UntypedStorage
    make = untyped.__new__
    copy = untyped.copy_

    def __new__(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or torch.device(device).type != target.kind.name:
            return make(cls, *args, **({} if device is None else {"device": device}), **kwargs)
        return on_emulated(make(cls, *args, **kwargs), torch.device(device))

    untyped.__new__ = staticmethod(__new__)
    setattr(untyped, target.kind.name, _to_emulated)

    def copy_(storage: Any, source: Any, non_blocking: Any = None) -> Any:
        if not (_there(storage) or _there(source)):
            return copy(storage, source, non_blocking)
        over_storage(storage).copy_(over_storage(source))
        return storage

    untyped.copy_ = copy_
    untyped._share_cuda_ = _share
    _resize(untyped)
    torch.serialization.register_package(_FIRST, lambda storage: None, _restore)


def _share(storage: Any, *args: Any) -> Any:
    raise CannotEmulate("amp-audit cannot emulate tensors of the device that processes share (torch.multiprocessing)")


_SIZE = "_amp_audit_size"


def _resize(untyped: Any) -> None:
    """Sharded modules give memory back and take it again: here it stays, and the storage says what they were told."""
    resize, nbytes, address = untyped.resize_, untyped.nbytes, untyped.data_ptr

    def resize_(storage: Any, size: int) -> Any:
        if not _there(storage):
            return resize(storage, size)
        if size > nbytes(storage):
            raise CannotEmulate("amp-audit cannot emulate a storage on the device that grows (UntypedStorage.resize_)")
        setattr(storage, _SIZE, size)
        return storage

    def size(storage: Any) -> int:
        return int(getattr(storage, _SIZE, nbytes(storage)))

    def data_ptr(storage: Any) -> int:
        return int(address(storage)) if size(storage) else 0

    untyped.resize_, untyped.data_ptr = resize_, data_ptr
    untyped.nbytes = untyped.size = untyped.__len__ = size


def on_emulated(host: torch.UntypedStorage, device: torch.device) -> torch.UntypedStorage:
    """A storage on a device over the memory of one on the CPU."""
    aim.index = index_of(device)
    return on_device(torch.empty(0, dtype=torch.uint8).set_(host)).untyped_storage()


def _to_emulated(storage: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    if _there(storage):
        return storage
    place = device if isinstance(device, (int, torch.device)) else target.kind.name if device is None else str(device)
    return on_emulated(storage.clone(), torch.device(place))


def _restore(storage: Any, location: str) -> Any:
    """What ``torch.load`` calls for each storage; None leaves it to the entries that follow."""
    if not location.startswith(target.kind.name):
        return None
    place, count, name = torch.device(location), placement.count(), target.kind.name
    if place.index is not None and place.index >= count:
        raise RuntimeError(
            f"Attempting to deserialize object on {name.upper()} device {place.index} "
            f"but torch.{name}.device_count() is {count}. "
            "Please use torch.load with map_location to map your storages to an existing device."
        )
    return on_emulated(storage, place)


def _there(storage: Any) -> bool:
    return bool(storage.device.type == target.kind.name)
