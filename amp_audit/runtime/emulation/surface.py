"""What torch answers about the emulated device, whichever it is: generators, streams, storages, pinned memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device

from amp_audit.chips import Chip
from amp_audit.runtime.emulation import cuda, mps, randomness, storage, target, xpu
from amp_audit.runtime.emulation.memory import held, memory
from amp_audit.runtime.emulation.placement import check_generator
from amp_audit.runtime.emulation.streams import Event, Stream


def install(chip: Chip) -> None:
    """Let torch answer for ``chip``. There is no way back in this process."""
    {"cuda": cuda.install, "xpu": xpu.install, "mps": mps.install}[target.kind.name](chip)
    everything: Any = torch
    everything.Stream, everything.Event = Stream, Event
    everything.Generator = randomness.Generator
    everything.Tensor.record_stream = lambda tensor, stream: None
    for name, function in _accelerator(chip).items():
        setattr(torch._C, name, function)
    _pin()
    _compile_nothing()
    storage.install()


def _accelerator(chip: Chip) -> dict[str, Callable[..., Any]]:
    """What ``torch.accelerator`` asks of the memory of the device, whose allocator is not there."""
    return {
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getDeviceStats": memory.stats,
        "_accelerator_resetPeakStats": memory.forget_peak,
        "_accelerator_resetAccumulatedStats": lambda index: None,
        "_accelerator_getMemoryInfo": lambda index: (max(0, chip.memory - held()), chip.memory),
        "_accelerator_emptyCache": lambda: None,
        "_accelerator_emptyHostCache": lambda: None,
    }


# Pinned memory

_FACTORIES = (
    *("empty", "zeros", "ones", "full", "rand", "randn", "randint", "tensor", "arange", "empty_like", "zeros_like"),
    *("ones_like", "full_like", "rand_like", "randn_like", "empty_strided", "empty_permuted", "randperm", "linspace"),
)


def _pin() -> None:
    """Pinned memory is memory: only ``is_pinned`` tells the difference."""

    def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        if target.there(tensor):
            raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
        if is_pinned(tensor):
            return tensor
        return _marked(tensor.detach().clone() if not tensor.requires_grad else tensor.clone())

    def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
        return getattr(tensor if tensor._base is None else tensor._base, _PINNED, False)

    tensors: Any = torch.Tensor
    tensors.pin_memory = pin_memory
    tensors.is_pinned = is_pinned
    constructors: Any = torch.utils._device._device_constructors
    constructors()  # remembers torch's own functions
    for name in _FACTORIES:
        if hasattr(torch, name):
            made = _pinning(getattr(torch, name))
            setattr(torch, name, made)
            torch.jit._builtins._register_builtin(made, f"aten::{name}")  # TorchScript knows operators by identity


_PINNED = "_amp_audit_pinned"


def _marked(tensor: torch.Tensor) -> torch.Tensor:
    setattr(tensor, _PINNED, True)
    return tensor


def _pinning(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("generator") is not None:
            made = factory(*args, **kwargs)
            check_generator(kwargs["generator"], made.device.type)
            return made
        if not kwargs.get("pin_memory"):
            return factory(*args, **kwargs)
        return _marked(factory(*args, **{**kwargs, "pin_memory": False}))

    return make


def _compile_nothing() -> None:
    """``torch.compile`` would write kernels for a device that is not there: what it is given runs as it is."""
    everything: Any = torch
    original = torch.compile

    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        torch.compiler.set_stance("force_eager")
        return original(*args, **kwargs)

    everything.compile = compile
