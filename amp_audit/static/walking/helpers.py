"""Functions that make no event by the words in them, and are followed all the same where they are called.

What they are told by stands in a few words of a short body: a loss that is made anew, weights or gradients that are
written by hand, a model that is run. Code that calls them is not worth a path for that alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_audit.static.source import ir
from amp_audit.static.source.literals import is_literally
from amp_audit.static.source.traverse import parts, statements

_SHORT, _LONG = 24, 60
_WEIGHTS = frozenset({"parameters", "named_parameters", "buffers", "trainable_parameters"})
_WRITES = frozenset({"copy_", "mul_", "add_", "sub_", "div_", "lerp_", "fill_", "addcmul_", "data"})


def helps(function: ir.Function) -> bool:
    """Whether a short function gives a new leaf back, writes weights, or goes through gradients."""
    words = function.words
    writes = not words.isdisjoint(_WEIGHTS) and not words.isdisjoint(_WRITES)
    if not writes and words.isdisjoint(("grad", "tensor", "as_tensor", "Variable")):
        return False
    return _is_within(function, _SHORT) and (writes or "grad" in words or _gives_leaf(function))


def _is_within(function: ir.Function, most: int) -> bool:
    """Whether a function is a helper by its size."""
    return sum(1 for _ in statements(function.body)) <= most


def _gives_leaf(function: ir.Function) -> bool:
    """``torch.tensor(a + b, requires_grad=True)``."""
    calls = (part for part in parts(function.body) if isinstance(part, ir.Call))
    return any(arg.keyword == "requires_grad" and is_literally(arg.value, True) for call in calls for arg in call.args)


def called_names(function: ir.Function) -> frozenset[tuple[str, str]]:
    """What a function that gives something back calls, as (name, "") or (name, attribute); nothing of a long one."""
    returns = any(isinstance(node, ir.Return) and node.value is not None for node in statements(function.body))
    return frozenset(_called(function)) if returns and _is_within(function, _LONG) else frozenset()


def _called(function: ir.Function) -> Iterator[tuple[str, str]]:
    for part in parts(function.body):
        func = part.func if isinstance(part, ir.Call) else None
        if isinstance(func, ir.Name):
            yield func.id, ""
        elif isinstance(func, ir.Attr) and isinstance(func.base, ir.Name):
            yield func.base.id, func.name
