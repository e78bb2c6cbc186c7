"""On which device the arguments of an operator lie, and which operators take those of two."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch

from amp_audit.runtime.emulation import target
from amp_audit.runtime.emulation.bridge import aim, on_host

CPU = torch.device("cpu")

MIXED = frozenset(
    {
        *("copy_", "_copy_from", "_foreach_copy_", "index", "index_put", "index_put_", "_index_put_impl_", "set_"),
        *("_unsafe_index", "_unsafe_index_put", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"),
        *("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_", "is_set_to", "_to_copy"),
        *("_ctc_loss", "_ctc_loss_backward"),
    }
)
"""Operators that take tensors of both devices; of others torch takes CPU tensors without dimensions only."""

_INDEXED = frozenset(
    {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"},
)
"""Of those the ones whose indices may lie on the CPU, and nothing else."""


_MOST = 8
"""Devices of the guard that torch keeps for builds without one (``kFakeGuardImplMaxDevices``)."""


def count() -> int:
    """One device; of CUDA, under a launcher, as many as it started processes, each of which uses its own."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(local), _MOST) if local.isdigit() and target.kind.name == "cuda" else 1


current: Any = torch._C._accelerator_getDeviceIndex
"""The index of the current device."""

SEVERAL = False
"""Whether tensors are put on devices of several indices; with one all have index 0, and nobody looks."""


def several(obeyed: bool) -> None:
    """Say whether there are several devices, and torch's guard lets each become the current one."""
    global SEVERAL
    SEVERAL = obeyed


def index_of(device: torch.device) -> int:
    """The index of an emulated device, the current one's if it has none. Raises as CUDA does beyond the last."""
    index = current() if device.index is None else device.index
    if index >= count():
        raise RuntimeError(f"{target.kind.key} error: invalid device ordinal")
    return index


def take_aim(args: Iterable[Any], kwargs: dict[str, Any]) -> None:
    """Results of an operator go to the device asked for, else to that of its first tensor, else to the current one."""
    device = kwargs.get("device")
    if isinstance(device, torch.device) and device.type == target.kind.name:
        aim.index = index_of(device)
        return
    first = _first((*args, *kwargs.values()))
    aim.index = current() if first is None else first


def _first(values: Iterable[Any]) -> int | None:
    for value in values:
        if isinstance(value, torch.Tensor):
            if target.there(value):
                return value.get_device()
        elif isinstance(value, (list, tuple)):
            found = _first(value)
            if found is not None:
                return found
    return None


class Devices:
    """Lets the arguments of an operator cross to the CPU, and takes note of where they came from."""

    __slots__ = ("_host", "_others", "device", "dtypes")

    def __init__(self) -> None:
        self.device = False
        self._host = False
        self._others: int | None = None
        self.dtypes: set[torch.dtype] = set()

    def cross(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self.dtypes.add(value.dtype)
            if target.there(value):
                self.device = True
                if SEVERAL and value.dim() > 0 and value.get_device() != aim.index:
                    self._others = value.get_device()
                return on_host(value)
            self._host = self._host or value.dim() > 0
            return value
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.cross, value))
        if isinstance(value, torch.device) and value.type == target.kind.name:
            index_of(value)
            return CPU
        return value

    def check(self, op: Any, name: str, args: tuple[Any, ...]) -> None:
        """Raises RuntimeError as CUDA does where an operator does not take tensors of both devices."""
        if self._others is not None and name not in MIXED:
            raise _apart(op, f"{target.kind.name}:{self._others}")
        if not (self.device and self._host):
            return
        if name not in MIXED:
            raise _apart(op)
        if name in _INDEXED:
            _check_indices(op, *args[:3])


def _check_indices(op: Any, tensor: torch.Tensor, indices: Any, values: torch.Tensor | None = None) -> None:
    if not target.there(tensor) and any(index is not None and target.there(index) for index in indices):
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    if isinstance(values, torch.Tensor) and values.dim() > 0 and target.there(values) != target.there(tensor):
        raise _apart(op)


def _apart(op: Any, other: str = "cpu") -> RuntimeError:
    here = f"{target.kind.name}:{aim.index}"
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {here} and {other}! "
        f"(when checking arguments of {op})"
    )


def check_generator(given: torch.Generator, device: str) -> None:
    """Raises RuntimeError as torch does when random numbers for a device are to come from another's generator."""
    if given.device.type != device:
        raise RuntimeError(f"Expected a '{device}' device type for generator but found '{given.device.type}'")
