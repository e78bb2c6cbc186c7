"""Moving averages of weights, by whatever ops a program keeps them."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

from amp_audit.static.dtypes import surface
from amp_audit.static.dtypes.values import Const, Tensor, Value

_LINEAR = frozenset({"add", "sub", "rsub", "mul", "div", "neg", "lerp", "data", "float", "to"}) | surface.MOVES
"""Ops by which an average of two models is computed."""
_NAME = re.compile(r"(^|_|\b)(ema|swa|polyak|momentum|teacher|target|shadow|update)|averag", re.IGNORECASE)
_KEPT = "kept"
_MIXES = (0.1, 0.9)
"""Between these a factor mixes two models once, as a merge of checkpoints does; an average gives the past more."""


def weights_in(name: str, tensors: Sequence[Tensor]) -> frozenset[Hashable]:
    """The models of whose weights a result is a combination."""
    return frozenset().union(*(tensor.of for tensor in tensors)) if name in _LINEAR else frozenset()


def kept(of: frozenset[Hashable]) -> frozenset[Hashable]:
    """The models of whose weights it is a combination, for something that a container keeps: a copy is not them."""
    return frozenset(owner if _is_kept(owner) else (_KEPT, owner) for owner in of)


def _is_kept(owner: Hashable) -> bool:
    return isinstance(owner, tuple) and owner[:1] == (_KEPT,)


def shrinks(op: str, tensors: Sequence[Tensor], given: Sequence[Value]) -> bool:
    """Whether an op multiplies weights in place by a factor, as the first half of moving an average does."""
    alone = not any(tensor.of for tensor in tensors[1:])
    return op in ("mul_", "multiply_") and _are_low_weights(tensors) and alone and not _mixes(given)


def moves(op: str, tensors: Sequence[Tensor], given: Sequence[Value], shrunk: bool) -> bool:
    """Whether an op that tells by itself moves an average of low weights on: lerp, a sum with what was multiplied."""
    if not _are_low_weights(tensors) or _mixes(given):
        return False
    own, others = tensors[0].of, _others(tensors)
    if op == "add_" and shrunk:
        return bool(others) and others.isdisjoint(own)
    return op == "lerp_" or (op == "add_" and tensors[0].last == "mul")


def writes(op: str, tensors: Sequence[Tensor]) -> bool:
    """Whether an op writes a combination of low weights and those of another model into the former."""
    if op not in ("copy_", "add_", "sub_", "subtract_", "set_") or not _are_low_weights(tensors):
        return False
    own = tensors[0].of
    return bool(own) and own < _others(tensors)


def renews(value: Tensor) -> bool:
    """Whether it is a low combination of weights and of a copy that was kept of some."""
    return value.low and any(map(_is_kept, value.of)) and not all(map(_is_kept, value.of))


def _others(tensors: Sequence[Tensor]) -> frozenset[Hashable]:
    return frozenset[Hashable]().union(*(tensor.of for tensor in tensors[1:]))


def _mixes(given: Sequence[Value]) -> bool:
    factors = (value.number for value in given if isinstance(value, Const) and value.number is not None)
    return any(_MIXES[0] < abs(factor) < _MIXES[1] for factor in factors)


def is_average(name: str) -> bool:
    """Whether a function, or the class it belongs to, is called one that keeps an average of weights."""
    return _NAME.search(name) is not None


def _are_low_weights(tensors: Sequence[Tensor]) -> bool:
    own = tensors[0] if tensors else Tensor()
    return own.low and (own.origin == "weights" or (bool(own.of) and all(map(_is_kept, own.of))))
