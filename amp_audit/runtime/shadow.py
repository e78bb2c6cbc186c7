"""Running an operator again in float32 on the same rounded inputs: which may be, and what the result tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from amp_audit.runtime.counts import spacing
from amp_audit.runtime.dtypes import LOW

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


_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})

FACTORS = _PRODUCTS | {"mv", "dot", "mul", "mul_", "convolution_backward", "threshold_backward"}
"""Operators whose result is zero where any of their arguments is."""

_BATCHES = {
    "convolution": 1,
    "_scaled_dot_product_flash_attention_for_cpu": 3,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 6,
}
"""Operators that do each element of a batch by itself, and how many of their arguments, the first ones, are batches."""

CARRIERS = MOVES | {"add", "add_", "mul", "mul_", "div", "div_"}
"""Operators whose result holds the values of one argument, moved, added to or multiplied."""


@cache
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


def part(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], results: Sequence[torch.Tensor]
) -> tuple[tuple[Any, ...], Mapping[str, Any], list[torch.Tensor]]:
    """The same operator with less to compute, and what that gives of its ``results``: enough to tell their error from.

    Of products some rows are computed, of convolutions and attention some of the batch, of elementwise operators some
    elements; others stay whole. What is taken begins in the middle: the first of a sequence is often masked.
    """
    name, out = base_name(func), results[0]
    step = spacing(out)
    if step == 1 or out.dim() == 0:
        return args, kwargs, [*results]
    if name in _PRODUCTS:
        at = slice(min(step, out.shape[-2]) // 2, None, step)
        first = args[: -2 if len(args) > 2 else 0]  # what is added to the product
        rows = [item[..., at, :] if item.dim() > 1 and item.shape[-2] > 1 else item for item in first]
        return (*rows, args[-2][..., at, :], args[-1]), kwargs, [out[..., at, :]]
    if name in _BATCHES:
        at = slice(min(step, out.shape[0]) // 2, None, step)
        batched = args[: _BATCHES[name]]
        if all(item.shape[0] == out.shape[0] for item in (*batched, *results)):
            mask = {k: v[at] if _batch(v) == out.shape[0] else v for k, v in kwargs.items()}
            return (*(item[at] for item in batched), *args[len(batched) :]), mask, [item[at] for item in results]
    if torch.Tag.pointwise in func.tags and out.is_contiguous() and len(results) == 1:
        given = [*args, *kwargs.values()]
        if all(not isinstance(item, torch.Tensor) or _alike(item, out) for item in given):
            named = {key: _some(value, step) for key, value in kwargs.items()}
            return tuple(_some(item, step) for item in args), named, [_some(out, step)]
    return args, kwargs, [*results]


def _batch(value: Any) -> int:
    return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() > 1 else -1


def _alike(tensor: torch.Tensor, out: torch.Tensor) -> bool:
    return tensor.dim() == 0 or (tensor.shape == out.shape and tensor.is_contiguous())


def _some(value: Any, step: int) -> Any:
    return value.view(-1)[::step] if isinstance(value, torch.Tensor) and value.dim() else value


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
