"""Why a program that cannot be emulated ended: the kernel or package that exists for GPUs only, by name."""

from __future__ import annotations

import re

GPU_ONLY = frozenset(
    {
        *("triton", "flash_attn", "flash_attn_interface", "xformers", "apex", "amp_C", "transformer_engine", "cupy"),
        *("bitsandbytes", "deepspeed", "vllm", "mamba_ssm", "causal_conv1d", "numba.cuda", "pycuda", "tensorrt"),
        *("nvidia.dali", "spconv", "MinkowskiEngine", "tinycudann", "fused_layer_norm_cuda", "syncbn"),
    }
)
"""Packages whose kernels are compiled for GPUs."""

_LACKING = re.compile(
    r"dummy base class (\w+)|'torch\._C' has no attribute '(_(?:cuda|cudart|cudnn|nccl|host|xpu|mps)_?\w*)'"
)
"""How a torch for the CPU says that it lacks a class or a function of CUDA's."""
_BUILDING = ("CUDA_HOME", "nvcc", "No CUDA runtime is found", "NVRTC")


def explain(error: BaseException) -> str | None:
    """A sentence about what cannot be emulated, if that is what ended the program."""
    if isinstance(error, ImportError):
        name = error.name or ""
        if name in GPU_ONLY or name.partition(".")[0] in GPU_ONLY:
            return f"the program needs {name}, whose kernels run on GPUs only: they cannot be emulated"
    text = str(error)
    if text.startswith("amp-audit cannot emulate"):
        return text.partition("\n")[0]
    missing = _LACKING.search(text)
    if missing is not None:
        return f"the program uses torch's {missing[1] or missing[2]}, which cannot be emulated"
    if isinstance(error, OSError) and any(word in text for word in _BUILDING):
        return f"the program compiles CUDA kernels of its own, which cannot be emulated ({text.partition(chr(10))[0]})"
    if isinstance(error, FileNotFoundError) and "nvidia-smi" in text:
        return "the program calls nvidia-smi, which comes with NVIDIA's driver and is not there"
    if text.startswith("Error building extension") and "nvcc" in text:
        return "the program compiles CUDA kernels of its own, which cannot be emulated"
    return None
