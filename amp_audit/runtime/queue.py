"""Values that stay on their device until a step is over."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from amp_audit.runtime.profilers import Unprofiled


def finite(value: float) -> float | None:
    """The value, or None where strict JSON has no word for it."""
    return value if math.isfinite(value) else None


def at_once(value: torch.Tensor) -> Any:
    """What is in a tensor on the CPU, where nothing is waited for: a number, or a list of numbers.

    Raises ValueError for a tensor on any other device.
    """
    if value.device.type != "cpu":
        raise ValueError("what lies on a device is read when the step is over")
    return value.tolist()


def widest(value: torch.Tensor) -> torch.Tensor:
    """The value as float64; as float32 on MPS, which has no float64."""
    return value.float() if value.device.type == "mps" else value.double()


_started = torch.cuda.is_initialized


def capturing() -> bool:
    """Whether a CUDA graph is being made of what the current stream is given: our work would become part of it, and
    reading anything would break it.
    """
    return _started() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def quiet_clone(value: torch.Tensor) -> torch.Tensor | None:
    """A copy made without any mode or autograd seeing it.

    None inside a CUDA graph, whose copies would replay, and for tensors that wrap others (DTensor): without their own
    dispatch they have no memory to read, and with it a norm over shards would talk to other ranks.
    """
    plain = value.__class__ is torch.Tensor  # as nearly all are
    if (not plain and is_traceable_wrapper_subclass(value)) or capturing():
        return None
    with torch.no_grad(), torch._C._DisableTorchDispatch(), Unprofiled():
        return value.detach().clone()


class Queue:
    """Scalars to be read together, each with what to do with its value (a float, may be inf or NaN)."""

    def __init__(self) -> None:
        self._waiting: list[tuple[torch.Tensor, Callable[[float], None]]] = []

    def add(self, value: torch.Tensor, then: Callable[[float], None]) -> None:
        """Read ``value`` (one element, not changed any more) later."""
        self._waiting.append((value, then))

    def read(self) -> None:
        """Wait once per device, then hand out all values in the order in which they came."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        by_device: dict[torch.device, list[int]] = {}
        values: dict[int, float] = {}
        with torch.no_grad(), torch._C._DisableTorchDispatch(), Unprofiled():
            for index, (value, _) in enumerate(waiting):
                if value.device.type == "cpu":
                    values[index] = float(value.item())
                else:
                    by_device.setdefault(value.device, []).append(index)
            for indices in by_device.values():
                stacked = torch.stack([widest(waiting[index][0].detach().reshape(())) for index in indices])
                values.update(zip(indices, stacked.tolist(), strict=True))
        for index, (_, then) in enumerate(waiting):
            then(values[index])
