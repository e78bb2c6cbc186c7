"""Whether the root of a backward carries the loss scale, read from the autograd graph above it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_MARK = "amp_audit.scaler"
_NODES = 256  # how much arithmetic above a root is looked through

_PRODUCTS = frozenset({"MulBackward0", "DivBackward0"})
_SUMS = frozenset(
    f"{name}Backward{number}"
    for name in (
        *("Add", "Sub", "Neg", "Sum", "Mean", "Stack", "Cat", "ToCopy", "Clone", "Alias", "View", "ReshapeAlias"),
        *("UnsafeView", "Squeeze", "Unsqueeze", "Select", "Expand", "Unbind"),
    )
    for number in range(5)
)
_HAND_MADE = 128.0
"""A constant factor from which on a product is taken for a loss scale made by hand. Loss weights are smaller."""

_LEAF = "torch::autograd::AccumulateGrad"

_SCALED, _PLAIN, _UNKNOWN = "scaled", "plain", "unknown"


def mark(outputs: Any, scaler: int) -> None:
    """Remember on the autograd nodes of ``scaler.scale(...)``'s result which scaler made them."""
    if isinstance(outputs, torch.Tensor):
        if outputs.grad_fn is not None:
            _metadata(outputs.grad_fn)[_MARK] = scaler
    elif isinstance(outputs, (list, tuple)):
        for item in outputs:
            mark(item, scaler)


def losses(roots: Iterable[torch.Tensor]) -> tuple[tuple[bool | None, ...], int | None]:
    """Of the terms that are summed up in ``roots``: which kinds there are, and the scaler of the scaled ones.

    ``(True,)``: all carry the scale; ``(False,)``: none does; ``(True, False)``: some do; ``(None,)``: unknown.
    """
    found: set[str] = set()
    scalers: set[int] = set()
    for root in roots:
        found |= _terms(root.grad_fn, scalers)
    scaler = scalers.pop() if len(scalers) == 1 else None
    if _UNKNOWN in found or not found:
        return (None,), scaler
    return tuple(word == _SCALED for word in (_SCALED, _PLAIN) if word in found), scaler


def detached(roots: Iterable[torch.Tensor]) -> bool:
    """Whether only arithmetic lies between the roots and leaf tensors: no module, no loss function was recorded."""
    queue: list[Any] = [root.grad_fn for root in roots]
    seen = 0
    while queue:
        node = queue.pop()
        seen += 1
        if seen > _NODES:
            return False
        name = node.name() if node is not None else _LEAF
        if name in _SUMS or name in _PRODUCTS:
            queue.extend(child for child, _ in node.next_functions if child is not None)
        elif name != _LEAF:
            return False
    return True


def _terms(root: Any, scalers: set[int]) -> set[str]:
    """The kinds of the terms above ``root``; a product is scaled when one of its factors is."""
    found: set[str] = set()
    queue, seen = [root], 0
    while queue:
        node = queue.pop()
        seen += 1
        if seen > _NODES:
            return {_UNKNOWN}
        name = node.name() if node is not None else ""
        if name in _PRODUCTS:
            found.add(_product(node, scalers))
        elif name in _SUMS and _marked(node) is None:
            queue.extend(child for child, _ in node.next_functions if child is not None)
        else:
            found.add(_leaf(node, scalers))
    return found


def _product(node: Any, scalers: set[int]) -> str:
    """The kind of a product: a chain of products is one."""
    chain, seen = [node], 0
    kinds: set[str] = set()
    while chain:
        factor = chain.pop()
        seen += 1
        if seen > _NODES:
            return _UNKNOWN
        if factor.name() not in _PRODUCTS or _marked(factor) is not None:
            kinds |= {_leaf(factor, scalers)} if factor.name() not in _SUMS else _terms(factor, scalers)
            continue
        if _hand_made(factor):
            kinds.add(_UNKNOWN)
        chain.extend(child for child, _ in factor.next_functions if child is not None)
    for kind in (_SCALED, _UNKNOWN):
        if kind in kinds:
            return kind
    return _PLAIN


def _metadata(node: Any) -> dict[str, Any]:
    """A dictionary that lives as long as the node itself, whatever becomes of its Python wrapper."""
    found: dict[str, Any] = node.metadata
    return found


def _marked(node: Any) -> int | None:
    scaler = _metadata(node).get(_MARK)
    return scaler if isinstance(scaler, int) else None


def _leaf(node: Any, scalers: set[int]) -> str:
    scaler = _marked(node) if node is not None else None
    if scaler is None:
        return _PLAIN
    scalers.add(scaler)
    return _SCALED


def _hand_made(node: Any) -> bool:
    """Whether a factor looks like a loss scale kept by hand; a factor on a device would have to be waited for."""
    try:
        factor = getattr(node, "_saved_other", None)
    except RuntimeError:  # the graph was freed; backward itself will say so
        return False
    if not isinstance(factor, torch.Tensor) or factor.dim() != 0 or is_traceable_wrapper_subclass(factor):
        return False
    if factor.device.type != "cpu":
        return True
    value = abs(float(factor.detach()))
    return value >= _HAND_MADE if node.name() == "MulBackward0" else 0.0 < value <= 1 / _HAND_MADE
