"""What ``torch.mps`` and ``torch.backends.mps`` answer when MPS is emulated: as on a machine with an Apple GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from amp_audit.chips import Chip
from amp_audit.runtime.emulation import randomness
from amp_audit.runtime.emulation.backend import CannotEmulate
from amp_audit.runtime.emulation.memory import held
from amp_audit.runtime.emulation.streams import Event


def install(chip: Chip) -> None:
    """Let torch.mps answer for ``chip``. There is no way back in this process."""
    everything: Any = torch
    for name, function in _functions(chip).items():
        setattr(torch._C, name, function)
    everything._C._has_mps = True
    backend: Any = torch.backends.mps
    for asked in (backend.is_available, backend.is_macos_or_newer, backend.is_macos13_or_newer):
        asked.cache_clear()
    mps: Any = torch.mps
    mps._default_mps_generator = randomness.default()
    mps.Event = mps.event.Event = Event
    mps.compile_shader = _no_shaders


_SYSTEM = (15, 0)  # macOS; bfloat16 and autocast to it came with 14


def _functions(chip: Chip) -> dict[str, Callable[..., Any]]:
    return {
        "_mps_is_available": lambda: True,
        "_mps_is_on_macos_or_newer": lambda major, minor: (major, minor) <= _SYSTEM,
        "_mps_is_in_bad_fork": lambda: False,
        "_mps_get_default_generator": randomness.default,
        "_mps_get_name": lambda: chip.name,
        "_mps_get_core_count": lambda: chip.multiprocessors,
        "_mps_deviceSynchronize": lambda: None,
        "_mps_emptyCache": lambda: None,
        "_mps_setMemoryFraction": lambda fraction: None,
        "_mps_currentAllocatedMemory": held,
        "_mps_driverAllocatedMemory": held,
        "_mps_recommendedMaxMemory": lambda: chip.memory * 3 // 4,
        "_mps_maxBufferLength": lambda: chip.memory // 2,
        "_mps_profilerStartTrace": lambda mode, wait: None,
        "_mps_profilerStopTrace": lambda: None,
        "_mps_isCaptureEnabled": lambda: False,
        "_accelerator_synchronizeDevice": lambda index: None,
    }


def _no_shaders(source: str) -> Any:
    raise CannotEmulate("amp-audit cannot emulate Metal kernels (torch.mps.compile_shader)")
