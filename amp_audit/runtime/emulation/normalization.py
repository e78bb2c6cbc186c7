"""The kernels of synchronized batch norm, which CUDA alone has: statistics of a rank, of all ranks, and the two passes.

Formulas: aten/src/ATen/native/cuda/Normalization.cuh. Statistics are float32, and what has the input's dtype is rounded
once. Channels are the second dimension.
"""

from __future__ import annotations

from typing import Any

import torch

from amp_audit.runtime.emulation.backend import LOW, special
from amp_audit.runtime.emulation.bridge import on_device, on_host


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    host = on_host(tensor)
    return host.float() if host.dtype in LOW else host


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """Of shape (channels, all else)."""
    return _wide(tensor).transpose(0, 1).flatten(1)


def _along(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Values of channels, of a shape that goes with ``like``."""
    return values.view(1, -1, *(1,) * (like.dim() - 2))


@special("batch_norm_stats")
def _stats(op: Any, tensor: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean and the inverse deviation of each channel."""
    variance, mean = torch.var_mean(_rows(tensor), dim=1, correction=0)
    return on_device(mean), on_device((variance + eps).rsqrt())


@special("batch_norm_gather_stats_with_counts")
def _gather(
    op: Any,
    tensor: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of all ranks together, from those of each (rows), and the running statistics, which move on."""
    means, deviations, weights = _wide(mean), _wide(invstd), _wide(counts).view(-1, 1)
    count = weights.sum()
    total = (means * weights).sum(0) / count
    squares = ((deviations**-2 - eps + (means - total) ** 2) * weights).sum(0)
    for running, value in ((running_mean, total), (running_var, squares / (count - 1))):
        if running is not None:
            own = on_host(running)
            own.copy_((1 - momentum) * own.float() + momentum * value)
    return on_device(total), on_device((squares / count + eps).rsqrt())


@special("batch_norm_elemt")
def _normalized(
    op: Any,
    tensor: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    wide = _wide(tensor)
    result = (wide - _along(_wide(mean), wide)) * _along(_wide(invstd), wide)
    if weight is not None:
        result = result * _along(_wide(weight), wide)
    if bias is not None:
        result = result + _along(_wide(bias), wide)
    if out is not None:
        on_host(out).copy_(result)
        return out
    return on_device(torch.empty_like(on_host(tensor)).copy_(result))


@special("batch_norm_backward_reduce")
def _reduced(
    op: Any,
    grad_out: torch.Tensor,
    tensor: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[torch.Tensor | None, ...]:
    """Sums over a rank: of the gradient, of the gradient times the centred input; gradients of weight and bias."""
    gradient = _rows(grad_out)
    sums = gradient.sum(1)
    centred = (gradient * (_rows(tensor) - _wide(mean)[:, None])).sum(1)
    dtype = weight.dtype if weight is not None else sums.dtype
    of_weight = on_device((centred * _wide(invstd)).to(dtype)) if weight_g else None
    of_bias = on_device(sums.to(dtype)) if bias_g else None
    return on_device(sums) if input_g else None, on_device(centred) if input_g else None, of_weight, of_bias


@special("batch_norm_backward_elemt")
def _backward(
    op: Any,
    grad_out: torch.Tensor,
    tensor: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: torch.Tensor | None,
    sum_dy: torch.Tensor,
    sum_dy_xmu: torch.Tensor,
    count: torch.Tensor,
) -> torch.Tensor:
    """The gradient of the input, from the sums over all ranks."""
    wide, share, deviation = _wide(tensor), 1 / _wide(count).sum(), _wide(invstd)
    slope = deviation**2 * _wide(sum_dy_xmu) * share
    scale = deviation if weight is None else deviation * _wide(weight)
    centred = wide - _along(_wide(mean), wide)
    result = _wide(grad_out) - _along(_wide(sum_dy) * share, wide) - centred * _along(slope, wide)
    return on_device(torch.empty_like(on_host(tensor)).copy_(result * _along(scale, wide)))
