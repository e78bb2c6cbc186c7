"""What ``torch.xpu`` answers when XPU is emulated: as on a machine with one device of Intel's.

As for CUDA (``cuda.py``) the functions of torch's C++ part that a CPU build lacks are given here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from amp_audit.chips import Chip
from amp_audit.runtime.emulation import placement, randomness
from amp_audit.runtime.emulation.memory import held, memory
from amp_audit.runtime.emulation.streams import Event, Stream, Streams


@dataclass(frozen=True)
class DeviceProperties:
    """``torch.xpu.get_device_properties``."""

    name: str
    total_memory: int
    max_compute_units: int
    gpu_eu_count: int
    last_level_cache_size: int
    local_mem_size: int
    platform_name: str = "Intel(R) oneAPI Unified Runtime over Level-Zero"
    vendor: str = "Intel(R) Corporation"
    type: str = "gpu"
    version: str = "12.60.7"
    driver_version: str = "1.6.33578"
    device_id: int = 0x0BD5
    max_work_group_size: int = 1024
    max_num_sub_groups: int = 64
    sub_group_sizes: tuple[int, ...] = (16, 32)
    has_fp16: bool = True
    has_fp64: bool = True
    has_atomic64: bool = True
    has_bfloat16_conversions: bool = True
    has_subgroup_matrix_multiply_accumulate: bool = True
    has_subgroup_matrix_multiply_accumulate_tensor_float32: bool = True
    has_subgroup_2d_block_io: bool = True
    is_integrated_gpu: bool = False


def install(chip: Chip) -> None:
    """Let torch.xpu answer for ``chip``. There is no way back in this process."""
    everything: Any = torch
    xpu: Any = torch.xpu
    for name, function in _functions(chip).items():
        setattr(torch._C, name, function)
    everything._C._has_xpu = True
    everything.version.xpu = "20250302"
    xpu.device_count = placement.count
    xpu._exchange_device = xpu._maybe_exchange_device = _exchange
    units = chip.multiprocessors
    properties = DeviceProperties(
        chip.name, chip.memory, units, units, chip.l2_cache, local_mem_size=chip.shared_memory_per_block
    )
    xpu._get_device_properties = lambda index: properties
    xpu.default_generators = (randomness.default(),)
    for module in (xpu, xpu.streams):
        module.Stream, module.Event = Stream, Event


def _functions(chip: Chip) -> dict[str, Callable[..., Any]]:
    streams = Streams()
    return {
        "_xpu_getDeviceCount": placement.count,
        "_xpu_init": lambda: None,
        "_xpu_getDevice": placement.current,
        "_xpu_setDevice": _exchange,
        "_xpu_exchangeDevice": _exchange,
        "_xpu_maybeExchangeDevice": _exchange,
        "_xpu_synchronize": lambda index: None,
        "_xpu_getArchFlags": lambda: "pvc",
        "_xpu_getCurrentStream": streams.current,
        "_xpu_getCurrentRawStream": lambda index: 0,
        "_xpu_setStream": streams.set,
        "_xpu_getStreamFromExternal": lambda pointer, device: (pointer, 0, 12),
        "_xpu_emptyCache": lambda: None,
        "_xpu_memoryStats": memory.stats,
        "_xpu_resetPeakMemoryStats": memory.forget_peak,
        "_xpu_resetAccumulatedMemoryStats": lambda index: None,
        "_xpu_getMemoryInfo": lambda index: (max(0, chip.memory - held()), chip.memory),
        "_xpu_setMemoryFraction": lambda fraction, index: None,
        "_xpu_getMemoryFraction": lambda index: 1.0,
        "_xpu_canDeviceAccessPeer": lambda one, other: False,
        "_xpu_isCurrentStreamCapturing": lambda: False,
        "_accelerator_getStream": lambda index: Stream(stream_id=streams.current(index)[0]),
        "_accelerator_setStream": lambda stream: streams.set(stream.stream_id),
        "_accelerator_synchronizeDevice": lambda index: None,
    }


def _exchange(index: int) -> int:
    """Make a device the current one, which it is. Raises as XPU does for one that is not there."""
    if index >= placement.count():
        raise RuntimeError("The device index is out of range. It must be in [0, 1), but got " + str(index) + ".")
    return 0
