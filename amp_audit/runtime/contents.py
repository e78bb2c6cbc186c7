"""Which kinds of training state an object to be saved holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

_SCALER_KEYS = frozenset({"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"})
_DEPTH = 5
_ITEMS = 200


def held_states(thing: Any, depth: int = 0) -> frozenset[str]:
    """Of ``model``, ``optimizer``, ``scaler``: those whose state ``thing`` holds, told by type and by shape.

    What a framework keeps deeper than five levels is not looked for.
    """
    if isinstance(thing, torch.nn.Module):
        return frozenset({"model"})
    if isinstance(thing, torch.optim.Optimizer):
        return frozenset({"optimizer"})
    if isinstance(thing, torch.amp.GradScaler):
        return frozenset({"scaler"})
    if isinstance(thing, Mapping):
        own = _own_kind(thing)
        return frozenset({own}) if own else _inside(thing.values(), depth)
    if isinstance(thing, (list, tuple, set)):
        return _inside(thing, depth)
    inner = getattr(thing, "__dict__", None)
    return _inside(inner.values(), depth) if isinstance(inner, dict) and not isinstance(thing, type) else frozenset()


def _own_kind(state: Mapping[Any, Any]) -> str | None:
    keys = set(state)
    if {"state", "param_groups"} <= keys:
        return "optimizer"
    if keys >= _SCALER_KEYS:
        return "scaler"
    if hasattr(state, "_metadata"):
        return "model"
    tensors = [isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in state.items()]
    return "model" if tensors and all(tensors) and any("." in key for key in keys) else None


def _inside(things: Iterable[Any], depth: int) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    if depth < _DEPTH:
        for number, thing in enumerate(things):
            if number >= _ITEMS:
                break
            if not isinstance(thing, (str, bytes, int, float, bool, type(None), torch.Tensor)):
                found |= held_states(thing, depth + 1)
    return found
