"""Tensors over the same memory on both devices: on the CPU, where kernels run, and on the one the program has them on.

torch takes over foreign tensors by DLPack and believes what that says of the device. So a tensor crosses by exporting
it, writing the other device into the exported header, and importing it again: nothing is copied.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import torch

from amp_audit.runtime.emulation import target

_HOST = 1  # kDLCPU of dlpack.h


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("index", ctypes.c_int32))


class _Header(ctypes.Structure):
    """The beginning of DLPack's ``DLManagedTensor``."""

    _fields_ = (("data", ctypes.c_void_p), ("device", _Device))


_address = ctypes.pythonapi.PyCapsule_GetPointer
_address.restype = ctypes.c_void_p
_address.argtypes = [ctypes.py_object, ctypes.c_char_p]
_export: Any = torch._C._to_dlpack
_import: Any = torch._C._from_dlpack


class CannotEmulate(NotImplementedError):
    """What the program asks of the device has no equivalent on the CPU; the message names it."""


def _exported(tensor: torch.Tensor) -> Any:
    try:
        return _export(tensor)
    except (RuntimeError, BufferError) as error:
        kind = _kind(tensor)
        if kind is None:
            raise
        raise CannotEmulate(f"amp-audit cannot emulate {kind} {target.kind.key} tensors") from error


def _kind(tensor: torch.Tensor) -> str | None:
    """What a tensor is that is not plain memory."""
    if tensor.is_quantized:
        return "quantized"
    if tensor.is_nested:
        return "nested"
    return None if tensor.layout is torch.strided else str(tensor.layout).removeprefix("torch.").replace("_", " ")


class _Aim(threading.local):
    """The index of the device on which results are put in this thread: 0 unless several are emulated."""

    index = 0


aim = _Aim()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the memory of one on the emulated device: same shape, strides and dtype, without autograd."""
    capsule = _exported(tensor)
    device = _Header.from_address(_address(capsule, b"dltensor")).device
    device.type, device.index = _HOST, 0
    host: torch.Tensor = _import(capsule)
    if host.is_complex() and tensor.is_conj():
        return host.conj()
    return torch._neg_view(host) if tensor.is_neg() else host


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the emulated device over the memory of a CPU tensor: same shape, strides and dtype, without autograd.

    It is on the device that ``aim`` says. Raises TypeError as torch does for a dtype that the device has not.
    """
    if not target.kind.float64 and tensor.dtype in _DOUBLE:
        raise TypeError(_NO_DOUBLE.format(dtype=str(tensor.dtype).removeprefix("torch.")))
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    capsule = _exported(tensor)
    header = _Header.from_address(_address(capsule, b"dltensor"))
    header.device.type, header.device.index = target.kind.dlpack, aim.index
    header.data = header.data or _SOMEWHERE  # XPU does not take a tensor without memory
    crossed: torch.Tensor = _import(capsule)
    return crossed


_nothing = ctypes.c_int64()
_SOMEWHERE = ctypes.addressof(_nothing)
_DOUBLE = frozenset({torch.float64, torch.complex128})
_NO_DOUBLE = (
    "Cannot convert a MPS Tensor to {dtype} dtype as the MPS framework doesn't support {dtype}. "
    "Please use float32 instead."
)


def over_storage(storage: torch.UntypedStorage) -> torch.Tensor:
    """A CPU tensor of bytes over the memory of a storage on the emulated device, which it keeps alive."""
    if storage.nbytes() == 0:
        return torch.empty(0, dtype=torch.uint8)
    memory: Any = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    memory.owner = storage
    return torch.frombuffer(memory, dtype=torch.uint8)
