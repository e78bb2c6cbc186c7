"""Questions whether the scaler has skipped a step: its scale before the step, compared with the one after it."""

from __future__ import annotations

from collections.abc import Iterator

from amp_audit.static.source import ir
from amp_audit.static.source.traverse import dotted_text, parts, statements


def skip_guards(module: ir.Module) -> frozenset[int]:
    """The calls of ``get_scale`` in a module whose results are compared with one another."""
    kept: dict[str, set[int]] = {}
    for node in statements(module.body, into=True):
        if isinstance(node, ir.Assign) and _asks(node.value):
            for text in map(dotted_text, node.targets):
                if text and not text.startswith("."):  # a subscript has none
                    kept.setdefault(text, set()).add(node.value.at)
    return frozenset(
        at
        for part in parts(module.body, into=True)
        if isinstance(part, ir.Compare)
        for at in _compared([part.left, *(right for _, right in part.rest)], kept)
    )


def _compared(sides: list[ir.Expr], kept: dict[str, set[int]]) -> Iterator[int]:
    asked = [{side.at} if _asks(side) else kept.get(dotted_text(side), set()) for side in sides]
    if len(asked) > 1 and all(asked):
        for calls in asked:
            yield from calls


def _asks(expr: ir.Expr) -> bool:
    return isinstance(expr, ir.Call) and isinstance(expr.func, ir.Attr) and expr.func.name == "get_scale"
