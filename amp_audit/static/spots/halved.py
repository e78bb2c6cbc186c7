"""Models that are loaded in full precision and made float16 by hand before they are trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from amp_audit.static.source import ir
from amp_audit.static.source.traverse import dotted_text, last_word, parts, walk
from amp_audit.static.spots.spaces import method

_UNCHANGED = frozenset({"cuda", "cpu", "to", "train", "eval", "requires_grad_"})
"""Methods of a model that return it, in its dtype unless ``to`` is told one."""


def halves(call: ir.Call) -> bool:
    """Whether a call is ``x.half()`` or ``x.to(torch.float16)``."""
    if method(call) == "half":
        return not call.args
    given = (last_word(arg.value) for arg in call.args if arg.keyword in (None, "dtype"))
    return method(call) == "to" and any(word in ("float16", "half") for word in given)


def unwrapped(expr: ir.Expr) -> ir.Expr:
    """What is left of ``load().train().cuda()`` without the methods that return the model as it is."""
    while isinstance(expr, ir.Call) and isinstance(expr.func, ir.Attr) and expr.func.name in _UNCHANGED:
        if halves(expr):
            break
        expr = expr.func.base
    return expr


def halving(load: ir.Expr, body: Sequence[ir.Stmt], until: int | None = None) -> ir.Call | None:
    """The call of ``body`` that makes float16 of the model that ``load``, an expression of it, made: ``load.half()``
    itself, or a cast of the name it is given, under no condition, for good, and before the ordinal ``until``.
    """
    own = [node for node in body if isinstance(node, (ir.Assign, ir.Evaluate, ir.Return)) and not _chooses(node)]
    names = set(_names_of(load, own))
    calls = [part for part in parts(own) if isinstance(part, ir.Call) and isinstance(part.func, ir.Attr)]
    of_it = [call for call in calls if any(part is load for part in walk(call.func)) or _called_on(call) in names]
    if any(method(call) == "float" for call in of_it):
        return None
    return next((call for call in of_it if halves(call) and (until is None or call.at < until)), None)


def _chooses(node: ir.Stmt) -> bool:
    return any(isinstance(part, (ir.IfExp, ir.BoolOp)) for part in parts([node]))


def _called_on(call: ir.Call) -> str:
    """The name of what a method is called on, as a text."""
    return dotted_text(unwrapped(call.func.base)) if isinstance(call.func, ir.Attr) else ""


def _names_of(made: ir.Expr, body: Iterable[ir.Stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ir.Assign) and any(part is made for part in walk(node.value)):
            yield from (text for target in node.targets if (text := dotted_text(target)))
