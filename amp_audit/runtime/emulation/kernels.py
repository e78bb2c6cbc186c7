"""Operators that CUDA has and the CPU has not, made of what the CPU has."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from amp_audit.chips import Chip
from amp_audit.runtime.emulation import recurrent as recurrent
from amp_audit.runtime.emulation.attention import Attention
from amp_audit.runtime.emulation.backend import Library, special
from amp_audit.runtime.emulation.bridge import on_device, on_host
from amp_audit.runtime.emulation.randomness import generator

_libraries: list[Any] = []


def load(chip: Chip) -> None:
    """Register what is composed of other operators; those below and in the other modules are by their import."""
    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key in ("CUDA", "AutogradCUDA"):
            library.impl("scaled_dot_product_attention", Attention(chip), key)
    _libraries.append(library)


@special("native_dropout")
def _native_dropout(op: Any, tensor: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """CUDA's kernel scales in float32 and rounds once."""
    host = on_host(tensor)
    if p == 0 or train is False:
        return on_device(host.clone()), on_device(torch.ones_like(host, dtype=torch.bool))
    keep = torch.empty(host.shape, dtype=torch.float32).uniform_(generator=generator()) >= p
    scale = 1 / (1 - p) if p < 1 else 0.0
    wide = host.float() if host.dtype in (torch.float16, torch.bfloat16) else host
    return on_device((wide * keep * scale).to(host.dtype)), on_device(keep)


@special("_softmax", "_log_softmax")
def _softmax(op: Any, tensor: torch.Tensor, dim: int, half_to_float: bool, **out: Any) -> torch.Tensor:
    """CUDA turns half into float32 within the kernel; the CPU refuses to."""
    host = on_host(tensor)
    result: torch.Tensor = op(host.float() if half_to_float else host, dim, False)
    return on_device(result)


@special("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(
    op: Any, gradient: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype, **out: Any
) -> torch.Tensor:
    host = on_host(gradient)
    result: torch.Tensor = op(host, on_host(output), dim, host.dtype)
    return on_device(result.to(input_dtype))
