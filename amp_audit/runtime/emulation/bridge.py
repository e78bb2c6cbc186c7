"""Tensors over the same memory on both devices: on the CPU, where kernels run, and on CUDA, where the program has them.

torch takes over foreign tensors by DLPack and believes what that says of the device. So a tensor crosses by exporting
it, writing the other device into the exported header, and importing it again: nothing is copied.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import torch

_HOST, _CUDA = 1, 2  # kDLCPU, kDLCUDA of dlpack.h


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


class _Aim(threading.local):
    """The device on which results are put in this thread: ``cuda:0`` unless several are emulated."""

    index = 0


aim = _Aim()


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the memory of an emulated CUDA tensor: same shape, strides and dtype, without autograd."""
    capsule = _export(tensor)
    device = _Header.from_address(_address(capsule, b"dltensor")).device
    device.type, device.index = _HOST, 0
    host: torch.Tensor = _import(capsule)
    if host.is_complex() and tensor.is_conj():
        return host.conj()
    return torch._neg_view(host) if tensor.is_neg() else host


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """A CUDA tensor over the memory of a CPU tensor: same shape, strides and dtype, without autograd.

    It is on the device that ``aim`` says.
    """
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    capsule = _export(tensor)
    device = _Header.from_address(_address(capsule, b"dltensor")).device
    device.type, device.index = _CUDA, aim.index
    crossed: torch.Tensor = _import(capsule)
    return crossed


def over_storage(storage: torch.UntypedStorage) -> torch.Tensor:
    """A CPU tensor of bytes over the memory of a storage on the emulated device, which it keeps alive."""
    if storage.nbytes() == 0:
        return torch.empty(0, dtype=torch.uint8)
    memory: Any = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
    memory.owner = storage
    return torch.frombuffer(memory, dtype=torch.uint8)
