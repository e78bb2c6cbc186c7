"""What this machine and this torch can do in low precision, and how they are set: ``amp-audit doctor``."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import torch

TENSOR_CORES: Mapping[str, tuple[int, int]] = {
    "float16": (7, 0),
    "bfloat16": (8, 0),
    "tf32": (8, 0),
    "float8_e4m3fn": (8, 9),
}
"""The compute capability from which on CUDA devices multiply matrices of a dtype in tensor cores (CUDA C++ Programming
Guide, "Compute Capabilities")."""


def examine() -> dict[str, Any]:
    """Versions, devices, dtypes and switches, ready for ``json.dump``. Creates a CUDA context where there is a GPU."""
    cudnn: Any = torch.backends.cudnn
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": cudnn.version() if cudnn.is_available() else None,
        "devices": [_cpu(), *(_gpu(index) for index in range(_gpus()))],
        "switches": switches(),
    }


def _gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _cpu() -> dict[str, Any]:
    capability = torch.backends.cpu.get_cpu_capability()
    native = {"bfloat16": _has("_is_amx_tile_supported", "_is_avx512_bf16_supported")}
    native["float16"] = _has("_is_amx_fp16_supported", "_is_avx512_fp16_supported")
    return {
        "device": "cpu",
        "name": platform.processor() or platform.machine(),
        "capability": capability,
        "autocast": [name for name in ("bfloat16", "float16") if _autocasts("cpu", name)],
        "native": [name for name, known in native.items() if known],
    }


def _has(*names: str) -> bool:
    """Whether the processor has one of some instruction sets; False also where torch cannot tell."""
    known = (getattr(torch.cpu, name, None) for name in names)
    return any(bool(ask()) for ask in known if ask is not None)


def _gpu(index: int) -> dict[str, Any]:
    major, minor = torch.cuda.get_device_capability(index)
    known = torch.version.hip is None
    return {
        "device": f"cuda:{index}",
        "name": torch.cuda.get_device_name(index),
        "capability": f"{major}.{minor}",
        "autocast": [name for name in ("bfloat16", "float16") if _autocasts("cuda", name)],
        "native": [name for name, least in TENSOR_CORES.items() if known and (major, minor) >= least],
    }


def _autocasts(device: str, dtype: str) -> bool:
    if device == "cuda" and dtype == "bfloat16":
        return bool(torch.cuda.is_bf16_supported())
    return torch.amp.is_autocast_available(device)


def switches() -> dict[str, Any]:
    """The settings of torch that decide in which precision matrices are multiplied and sums are kept."""
    matmul = torch.backends.cuda.matmul
    return {
        "float32_matmul_precision": switch(torch, "get_float32_matmul_precision"),
        "cuda.matmul.allow_tf32": switch(matmul, "allow_tf32"),
        "cudnn.allow_tf32": switch(torch.backends.cudnn, "allow_tf32"),
        "cuda.matmul.allow_fp16_reduced_precision_reduction": switch(matmul, "allow_fp16_reduced_precision_reduction"),
        "cuda.matmul.allow_bf16_reduced_precision_reduction": switch(matmul, "allow_bf16_reduced_precision_reduction"),
        "cuda.matmul.allow_fp16_accumulation": switch(matmul, "allow_fp16_accumulation"),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "threads": torch.get_num_threads(),
    }


def switch(owner: Any, name: str) -> Any:
    """A switch, or what a function says; None where this torch has none or mixed settings forbid to ask."""
    try:
        value = getattr(owner, name)
        value = value() if callable(value) else value
    except (AttributeError, RuntimeError, AssertionError):
        return None
    return value if isinstance(value, (bool, int, str)) else str(value)


def lines(found: Mapping[str, Any]) -> list[str]:
    """``examine``'s result for a person to read."""
    built = f"CUDA {found['cuda']}" if found["cuda"] else f"HIP {found['hip']}" if found["hip"] else "no CUDA"
    none = "none of the low-precision dtypes, as far as torch tells"
    text = [f"torch {found['torch']} ({built}), Python {found['python']}"]
    if found["cudnn"]:
        text.append(f"cuDNN {found['cudnn']}")
    for device in found["devices"]:
        text += [
            "",
            f"{device['device']}: {device['name']}, {device['capability']}",
            f"  autocast to   {', '.join(device['autocast']) or 'nothing'}",
            f"  in hardware   {', '.join(device['native']) or none}",
        ]
    width = max(len(name) for name in found["switches"])
    rows = (f"  {name:{width}}  {'-' if value is None else value}" for name, value in found["switches"].items())
    return [*text, "", "switches", *rows]
