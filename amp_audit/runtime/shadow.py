"""Running an operator again in float32 on the same rounded inputs: which may be, and what the result tells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from amp_audit.runtime.dtypes import LOW, flush_threshold

MOVES = frozenset(
    {
        *("clone", "contiguous", "copy", "_to_copy", "_unsafe_view", "detach", "lift_fresh", "cat", "stack", "repeat"),
        *("index_select", "index", "gather", "select_backward", "slice_backward", "diagonal_backward", "roll", "flip"),
        *("constant_pad_nd", "where", "masked_fill", "scatter", "slice_scatter", "select_scatter", "triu", "tril"),
        *("index_put", "max_pool2d_with_indices", "threshold_backward", "zeros_like", "ones_like", "full_like"),
    }
)
"""Operators that move or drop values without rounding them: what is zero after them was zero before."""

_UNSAFE = ("rnn", "lstm", "gru", "empty", "dropout", "cudnn", "miopen")
"""Parts of names of operators with hidden state, uninitialised results, or work buffers of the original dtype."""


CARRIERS = MOVES | {"add", "add_", "mul", "mul_", "div", "div_"}
"""Operators whose result holds the values of one argument, moved, added to or multiplied."""


def base_name(func: Any) -> str:
    """The operator's name without namespace and overload, "" for what is no operator."""
    schema = getattr(func, "_schema", None)
    return schema.name.rpartition("::")[2] if schema is not None else ""


@cache
def repeatable(func: Any) -> bool | None:
    """Whether an operator may be run again. None: there is nothing to learn from it.

    False for random operators, for those that write to an argument, collectives and custom operators, and for the
    forward of batch norm, which changes its running statistics although its schema does not say so.
    """
    schema = getattr(func, "_schema", None)
    if schema is None:
        return False
    namespace, _, name = schema.name.partition("::")
    view = any(result.alias_info is not None for result in schema.returns) and not schema.is_mutable
    if name in MOVES or view:
        return None
    if namespace != "aten" or schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    return not (("batch_norm" in name and "backward" not in name) or any(part in name for part in _UNSAFE))


def in_float32(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor | None]:
    """The results of ``func`` with all low-precision tensors and dtypes replaced by float32.

    Raises whatever the operator raises when it has no such form (a fused kernel made for half types only).
    """
    out = func(*(_raised(arg) for arg in args), **{key: _raised(value) for key, value in kwargs.items()})
    return tensors(out)


def tensors(out: Any) -> list[torch.Tensor | None]:
    """The results of an operator as a list, None where one is not a tensor."""
    results = out if isinstance(out, (tuple, list)) else [out]
    return [item if isinstance(item, torch.Tensor) else None for item in results]


def _raised(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in LOW else value
    if isinstance(value, (list, tuple)):
        return type(value)([_raised(item) for item in value])
    return torch.float32 if isinstance(value, torch.dtype) and value in LOW else value


def compare(reference: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """What rounding to ``out``'s dtype lost: int64 [nonzero, flushed, subnormal, zero], on the device.

    ``reference``: the float32 values before rounding, same shape. ``flushed``: not zero in ``reference`` and at most
    the flush threshold, zero in ``out``; the threshold keeps sums out that cancel to zero. ``subnormal``: results
    with 0 < |x| < finfo.tiny. ``zero``: zero in ``reference`` already.
    """
    magnitude, result = reference.abs(), out.abs()
    nonzero = torch.count_nonzero(reference)
    flushed = torch.count_nonzero((result == 0) & (magnitude > 0) & (magnitude <= flush_threshold(out.dtype)))
    subnormal = torch.count_nonzero((result > 0) & (result < torch.finfo(out.dtype).tiny))
    return torch.stack([nonzero, flushed, subnormal, reference.numel() - nonzero])


_SAMPLE = 2**14
"""Elements from which the error of a result is told: enough for a mean of squares, whatever the size of the model."""


def rounding(reference: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """How far ``out`` is from the float32 values it should have been rounded from: float64 [squares of the errors,
    squares of the values, elements], on the device.

    Only elements count that are finite and not subnormal in ``out``'s dtype: there rounding to nearest is off by half
    of ``finfo.eps`` at most, relative to the value. Of a large result about 16,384 elements are taken, evenly spaced
    by an odd number, so that they are of all columns.
    """
    step = reference.numel() // _SAMPLE | 1
    values, result = (item.reshape(-1)[::step].double() for item in (reference, out))
    counted = (values.abs() >= torch.finfo(out.dtype).tiny) & result.isfinite() & values.isfinite()
    errors = torch.where(counted, result - values, 0.0).square().sum()
    squares = torch.where(counted, values, 0.0).square().sum()
    return torch.stack([errors, squares, counted.sum().double()])


def compare_cast(source: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``compare`` of a cast with its own source, and the finite elements that became inf: int64, five numbers."""
    nonzero = torch.count_nonzero(source)
    left = torch.count_nonzero(out)
    result = out.abs()
    small = torch.count_nonzero(result < torch.finfo(out.dtype).tiny) - (out.numel() - left)
    overflowed = torch.count_nonzero(result == math.inf) - torch.count_nonzero(source.isinf())
    return torch.stack([nonzero, nonzero - left, small, source.numel() - nonzero, overflowed])
