"""Operators that a GPU has and the CPU has not, made of what the CPU has."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

from amp_audit.chips import Chip
from amp_audit.runtime.emulation import normalization as normalization
from amp_audit.runtime.emulation import recurrent as recurrent
from amp_audit.runtime.emulation import target
from amp_audit.runtime.emulation.attention import Attention
from amp_audit.runtime.emulation.backend import LOW, Library, fill, special
from amp_audit.runtime.emulation.bridge import on_device, on_host
from amp_audit.runtime.emulation.randomness import generator

_libraries: list[Any] = []


def load(chip: Chip) -> None:
    """Register what is composed of other operators; those below and in the other modules are by their import."""
    library = Library("aten", "IMPL")
    core: Any = torch._C
    attention: Any = _plain_attention
    if target.kind.name == "cuda":
        attention = Attention(chip)
        core._is_flash_attention_available = lambda: True
        core._can_use_flash_attention = functools.partial(attention.can_use, "flash")
        core._can_use_mem_efficient_attention = functools.partial(attention.can_use, "efficient")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for key in (target.kind.key, f"Autograd{target.kind.key}"):
            library.impl("scaled_dot_product_attention", attention, key)
    _libraries.append(library)


def _plain_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention of plain operators in the dtype of its inputs: which kernel XPU and MPS choose is not followed."""
    with torch.autocast(target.kind.name, enabled=False):
        out: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    return out


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
    """CUDA computes in float32, and returns it where it is told to; the CPU refuses to."""
    host = on_host(tensor)
    result: torch.Tensor = op(host.float() if host.dtype in LOW else host, dim, False)
    return on_device(result if half_to_float else result.to(host.dtype))


@special("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(
    op: Any, gradient: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype, **out: Any
) -> torch.Tensor:
    host, own = on_host(gradient), on_host(output)
    if host.dtype in LOW:
        host, own = host.float(), own.float()
    result: torch.Tensor = op(host, own, dim, host.dtype)
    return on_device(result.to(input_dtype))


_HALVES = {torch.float16: torch.float32, torch.complex32: torch.complex64}


@special("_fft_r2c", "_fft_c2c", "_fft_c2r")
def _fft(op: Any, tensor: torch.Tensor, dim: list[int], *args: Any, out: torch.Tensor | None = None) -> torch.Tensor:
    """cuFFT takes halves, of sizes that are powers of two; its result is rounded once."""
    host = on_host(tensor)
    wide = _HALVES.get(host.dtype)
    if wide is not None:
        last = args[-1] if op._schema.name == "aten::_fft_c2r" else host.shape[dim[-1]]
        sizes = [*(host.shape[one] for one in dim[:-1]), last]
        if any(size & (size - 1) for size in sizes):
            raise RuntimeError(
                "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, "
                f"but got a signal size of{sizes}"
            )
        host = host.to(wide)
    packet: Any = getattr(torch.ops.aten, op._schema.name.removeprefix("aten::"))
    result: torch.Tensor = packet.default(host, dim, *args)
    if wide is not None:
        result = result.to(torch.complex32 if result.is_complex() else torch.float16)
    if out is None:
        return on_device(result)
    fill(out, result)
    return out
