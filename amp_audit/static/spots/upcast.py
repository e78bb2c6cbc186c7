"""What is done to a model between its loading and its training: its weights are made float32, frozen, or adapted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from amp_audit.static.source import ir
from amp_audit.static.source.literals import is_literally
from amp_audit.static.source.traverse import dotted_text, last_word, parts, statements, walk
from amp_audit.static.spots.spaces import method

_CASTING = frozenset({"float", "add_adapter", "load_adapter", "enable_adapters"})
_FLOAT32 = frozenset({"float32", "float"})
_TREATING = re.compile(r"cast|fp32|float|freeze|frozen|kbit|int8|4bit|adapter|lora|trainable", re.IGNORECASE)
"""Functions that are given a model to change which of its weights are trained, or in which dtype, by their names."""
_LISTS = frozenset({"parameters", "named_parameters", "modules", "named_modules"})
_CHANGED = frozenset({"data", "requires_grad", "requires_grad_", "float", "to"})


def is_treated(model: ir.Expr, body: Sequence[ir.Stmt]) -> bool:
    """Whether code of ``body`` changes the dtype of this model's weights in place, or which of them are trained."""
    name = dotted_text(model)
    calls = [part for part in parts(body) if isinstance(part, ir.Call)]
    return bool(name) and (any(_treats(call, name) for call in calls) or any(_loops(body, name)))


def is_treated_where_made(made: ir.Expr, body: Sequence[ir.Stmt]) -> bool:
    """The same under the names that the function which loads the model gives it."""
    given = [node for node in statements(body) if isinstance(node, ir.Assign)]
    names = [target for node in given if any(part is made for part in walk(node.value)) for target in node.targets]
    return any(is_treated(name, body) for name in names)


def _treats(call: ir.Call, name: str) -> bool:
    if isinstance(call.func, ir.Attr) and dotted_text(call.func.base) == name:
        if method(call) == "requires_grad_":
            return any(is_literally(arg.value, False) for arg in call.args)
        widens = method(call) in ("to", "type") and any(last_word(arg.value) in _FLOAT32 for arg in call.args)
        return widens or method(call) in _CASTING
    return any(dotted_text(arg.value) == name for arg in call.args) and bool(_TREATING.search(last_word(call.func)))


def _loops(body: Sequence[ir.Stmt], name: str) -> Iterable[bool]:
    """For each loop over the parameters of the model: whether it writes to them, or to what they ask for."""
    for node in statements(body):
        if isinstance(node, ir.For) and any(_lists(part, name) for part in walk(node.iterable)):
            targets = [
                target for each in statements(node.body) if isinstance(each, ir.Assign) for target in each.targets
            ]
            called = [part.func for part in parts(node.body) if isinstance(part, ir.Call)]
            yield any(isinstance(each, ir.Attr) and each.name in _CHANGED for each in (*targets, *called))


def _lists(expr: ir.Expr, name: str) -> bool:
    base = expr.func.base if isinstance(expr, ir.Call) and isinstance(expr.func, ir.Attr) else None
    return isinstance(expr, ir.Call) and base is not None and method(expr) in _LISTS and dotted_text(base) == name
