"""What ``torch.cuda`` answers when CUDA is emulated: as on a machine with one device of the chosen chip.

torch's own Python code asks its C++ part through functions named ``torch._C._cuda_...``. A CPU build lacks them; they
are given here, so that everything above stays torch's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import torch

from amp_audit.chips import Chip
from amp_audit.runtime.emulation import graphs, legacy, placement, profiling, randomness
from amp_audit.runtime.emulation.memory import memory
from amp_audit.runtime.emulation.profiling import Ranges, Runtime
from amp_audit.runtime.emulation.streams import Event, ExternalStream, Stream, Streams

CUDA_VERSION = "12.8"
CUDNN_VERSION = 91002
ARCHITECTURES = "sm_60 sm_61 sm_70 sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120"
NCCL_VERSION = 2 << 32 | 27 << 16 | 3
_pools = itertools.count(1)


_NO_ID = UUID(int=0)


@dataclass(frozen=True)
class DeviceProperties:
    """``torch.cuda.get_device_properties``."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    shared_memory_per_block: int
    L2_cache_size: int
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    warp_size: int = 32
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    gcnArchName: str = ""
    uuid: UUID = _NO_ID


def install(chip: Chip) -> None:
    """Let torch.cuda answer for ``chip``. There is no way back in this process."""
    everything: Any = torch
    device = _Device(chip)
    for name, function in device.functions().items():
        setattr(torch._C, name, function)
    for name, value in {"_has_cuda": True, "_has_cudnn": True}.items():
        setattr(torch._C, name, value)
    everything.version.cuda = CUDA_VERSION
    cuda: Any = torch.cuda
    cuda._cudart = runtime = Runtime(chip.memory)
    cuda.device_count = placement.count
    cuda._get_device_properties = device.properties
    cuda._exchange_device = device.exchange
    cuda._maybe_exchange_device = device.exchange
    cuda.graphs._cuda_isCurrentStreamCapturing = device.functions()["_cuda_isCurrentStreamCapturing"]
    cuda.default_generators = (randomness.default(),) * placement.count()
    cuda.cudart = lambda: runtime
    cuda.nvtx._nvtx = Ranges()
    cuda.graphs._graph_pool_handle = device.functions()["_graph_pool_handle"]
    for module in (cuda, cuda.streams, cuda.graphs):
        for made in (Stream, Event, ExternalStream, graphs.CUDAGraph):
            if hasattr(module, made.__name__):
                setattr(module, made.__name__, made)
    everything.backends.cudnn.version = lambda: CUDNN_VERSION
    torch._C._jit_override_can_fuse_on_gpu(False)
    placement.several(device.obeyed(placement.count() - 1))
    _without_cudnn()
    _prefer()
    profiling.install()
    torch.backends.mha.set_fastpath_enabled(False)  # its kernels take nested tensors
    _without_plans()
    legacy.install()


def _without_cudnn() -> None:
    """A torch built for CUDA would choose operators of cuDNN, which have no like on the CPU; nobody is told."""
    core: Any = torch._C
    core._set_cudnn_enabled(False)
    said = [True]
    core._get_cudnn_enabled = lambda: said[0]
    core._set_cudnn_enabled = lambda value: said.__setitem__(0, bool(value))
    own: Any = type(torch.backends.cudnn)
    prop: Any = torch.backends.ContextProp
    own.enabled = prop(core._get_cudnn_enabled, core._set_cudnn_enabled)
    torch.backends.cudnn.is_acceptable = lambda tensor: False


def _prefer() -> None:
    """Which library computes is a preference that is remembered."""
    core: Any = torch._C
    for kind in ("linalg", "blas"):
        getter, setter = f"_get_{kind}_preferred_backend", f"_set_{kind}_preferred_backend"
        chosen = [getattr(core, getter)()]
        setattr(core, getter, lambda chosen=chosen: chosen[0])
        setattr(core, setter, lambda backend, chosen=chosen: chosen.__setitem__(0, backend))


def _without_plans() -> None:
    """The cache of plans for Fourier transforms stays empty."""
    cache: Any = torch.backends.cuda.cuFFTPlanCache
    size, limit, most = vars(cache)["size"], vars(cache)["max_size"], [4096]
    size.getter = lambda device: 0
    limit.getter = lambda device: most[0]
    limit.setter = lambda device, value: most.__setitem__(0, value)
    cache.clear = lambda self: None


class _Device:
    """The one device, and the functions that torch's Python code calls."""

    def __init__(self, chip: Chip) -> None:
        self._chip = chip
        self._streams = Streams()
        core: Any = torch._C
        self._own = core._accelerator_getDeviceIndex, core._accelerator_setDeviceIndex

    def functions(self) -> dict[str, Callable[..., Any]]:
        return {
            "_cuda_getDeviceCount": placement.count,
            "_cuda_init": lambda: None,
            "_cuda_getDevice": self._own[0],
            "_cuda_setDevice": self.exchange,
            "_cuda_exchangeDevice": self.exchange,
            "_cuda_maybeExchangeDevice": self.exchange,
            "_cuda_synchronize": graphs.synchronize,
            "_cuda_sleep": lambda cycles: None,
            "_cuda_getCompiledVersion": lambda: 12080,
            "_cuda_getArchFlags": lambda: ARCHITECTURES,
            "_cuda_getCurrentStream": self._streams.current,
            "_cuda_getDefaultStream": self._streams.default,
            "_cuda_setStream": self._streams.set,
            "_cuda_getStreamFromExternal": lambda pointer, device: (pointer, 0, 1),
            "_cuda_isCurrentStreamCapturing": graphs.capturing,
            "_cuda_emptyCache": lambda: None,
            "_host_emptyCache": lambda: None,
            "_cuda_ipc_collect": lambda: None,
            "_cuda_memoryStats": memory.stats,
            "_cuda_resetPeakMemoryStats": memory.forget_peak,
            "_cuda_resetAccumulatedMemoryStats": lambda device: None,
            "_cuda_memorySnapshot": lambda *args: {"segments": [], "device_traces": []},
            "_cuda_setMemoryFraction": lambda fraction, device: None,
            "_cuda_getMemoryFraction": lambda device: 1.0,
            "_cuda_canDeviceAccessPeer": lambda one, other: False,
            "_cuda_getAllocatorBackend": lambda: "native",
            "_cuda_get_sync_debug_mode": lambda: 0,
            "_cuda_set_sync_debug_mode": lambda mode: None,
            "_cuda_get_cudnn_benchmark_limit": lambda: 10,
            "_cuda_set_cudnn_benchmark_limit": lambda limit: None,
            "_cuda_hasPrimaryContext": lambda device: True,
            "_accelerator_getStream": lambda index: Stream(stream_id=self._streams.current(index)[0]),
            "_accelerator_setStream": lambda stream: self._streams.set(stream.stream_id),
            "_accelerator_synchronizeDevice": lambda index: graphs.synchronize(),
            "_accelerator_setDeviceIndex": self.exchange,
            "_accelerator_exchangeDevice": self.exchange,
            "_accelerator_maybeExchangeDevice": self.exchange,
            "_broadcast": lambda tensor, devices: [tensor.to(torch.device("cuda", one)) for one in devices],
            "_broadcast_coalesced": lambda tensors, devices, size: [
                [item.to(torch.device("cuda", one)) for item in tensors] for one in devices
            ],
            "_scatter": _scatter,
            "_gather": _gather,
            "_cuda_getCurrentRawStream": lambda device: 0,
            "_cuda_getCurrentBlasHandle": lambda: 0,
            "_cuda_clearCublasWorkspaces": lambda: None,
            "_cuda_getMemoryMetadata": lambda: "",
            "_cuda_setMemoryMetadata": lambda text: None,
            "_cuda_hostMemoryStats": dict,
            "_cuda_resetPeakHostMemoryStats": lambda: None,
            "_cuda_resetAccumulatedHostMemoryStats": lambda: None,
            "_cuda_isHistoryEnabled": lambda: False,
            "_cuda_record_memory_history": lambda *args, **kwargs: None,
            "_cuda_record_memory_history_legacy": lambda *args, **kwargs: None,
            "_cuda_attach_out_of_memory_observer": lambda observer: None,
            "_cuda_isInBadFork": lambda: False,
            "_cuda_CUDAAllocator_AllocatorState": object,
            "_set_cached_tensors_enabled": lambda enabled: None,
            "_get_accelerator": lambda check=None: torch.device("cuda"),
            "_nccl_version": lambda: NCCL_VERSION,
            "_nccl_version_suffix": lambda: b"",
            "_graph_pool_handle": lambda: (0, next(_pools)),
        }

    def exchange(self, index: int) -> int:
        """Make another device the current one. Raises as CUDA does for one that is not there."""
        if index >= placement.count():
            raise RuntimeError("CUDA error: invalid device ordinal")
        current, choose = self._own
        before: int = current()
        if index >= 0 and index != before:
            choose(index)
        return before

    def obeyed(self, index: int) -> bool:
        """Whether another device can become the current one: guards of some torches know one alone."""
        before = self.exchange(index)
        obeyed = index > 0 and self._own[0]() == index
        self.exchange(before)
        return obeyed

    def properties(self, index: int) -> DeviceProperties:
        chip = self._chip
        return DeviceProperties(
            chip.name,
            chip.major,
            chip.minor,
            chip.memory,
            chip.multiprocessors,
            chip.shared_memory_per_block,
            chip.l2_cache,
        )


def _scatter(tensor: torch.Tensor, devices: list[int], sizes: list[int] | None, dim: int, streams: Any) -> Any:
    """What ``nn.DataParallel`` gives to each of its devices, which is this one."""
    parts = torch.split(tensor, sizes, dim) if sizes else torch.chunk(tensor, len(devices), dim)
    return tuple(part.to(torch.device("cuda", device)) for part, device in zip(parts, devices))


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
    place = torch.device("cpu") if destination == -1 else torch.device("cuda", destination or 0)
    return torch.cat([tensor.to(place) for tensor in tensors], dim)
