"""Reads of what an object keeps for itself, and whether a test around them asks for it first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_audit.static.binding.origins import Where
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, children, expressions, words_in
from amp_audit.static.spots.sites import inside

_GUARD_WORDS = ("enabled", "amp", "fp16", "float16", "half", "precision", "scaler", "dtype", "hasattr")


def unguarded(body: Sequence[ir.Stmt], where: Where, names: frozenset[str]) -> Iterator[tuple[ir.Attr, Where]]:
    """The attributes of these names in a body, outside any test that speaks of mixed precision and any ``try``."""
    for node in body:
        if isinstance(node, ir.Try) and node.handlers:
            continue
        if isinstance(node, ir.If) and _guards(node.test):
            if _ends(node.body):
                return
            continue
        for expression in expressions(node):
            yield from ((found, where) for found in _reads(expression, names))
        if isinstance(node, (ir.Function, ir.Class)):
            yield from unguarded(node.body, inside(where, node), names)
        for inner in bodies(node):
            yield from unguarded(inner, where, names)


def _ends(body: Sequence[ir.Stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ir.Return, ir.Raise, ir.Continue, ir.Break))


def _reads(expr: ir.Expr, names: frozenset[str]) -> Iterator[ir.Attr]:
    stack = [expr]
    while stack:
        part = stack.pop()
        if isinstance(part, ir.IfExp) and _guards(part.test):
            continue
        if isinstance(part, ir.BoolOp) and _guards(part.left):
            continue
        if isinstance(part, ir.Attr) and part.name in names:
            yield part
        stack.extend(children(part))


def _guards(test: ir.Expr) -> bool:
    """Whether a test has a word of mixed precision: the flag that made the scaler, or the scaler itself."""
    return any(guard in word.lower() for word in words_in(test) for guard in _GUARD_WORDS)
