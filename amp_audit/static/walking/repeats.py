"""Which methods a loop calls again and again on one and the same object, whoever that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_audit.static.binding.names import collect
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, expressions, walk


def repeated(module: ir.Module) -> frozenset[str]:
    """The names of the methods that loops call with nothing but what was there before: the same model, the same
    optimizer in each round. What a loop makes anew for each round, as for the folds of a cross-validation, is another.
    """
    return frozenset(_in(module.body, None))


def _in(body: Sequence[ir.Stmt], made: frozenset[str] | None) -> Iterator[str]:
    """``made`` are the names that the innermost loop binds, its own variables apart; None outside of loops."""
    for node in body:
        if isinstance(node, (ir.Function, ir.Class)):
            yield from _in(node.body, None)
            continue
        inner = made
        if isinstance(node, (ir.For, ir.While)):
            counted = walk(node.target) if isinstance(node, ir.For) else ()
            inner = frozenset(collect(node.body).bound) - {part.id for part in counted if isinstance(part, ir.Name)}
        elif made is not None:
            yield from _called(node, made)
        for block in bodies(node):
            yield from _in(block, inner)


def _called(node: ir.Stmt, made: frozenset[str]) -> Iterator[str]:
    for expression in expressions(node):
        for call in walk(expression):
            if isinstance(call, ir.Call) and isinstance(call.func, ir.Attr) and not _sets_mode(call, call.func.name):
                used = {part.id for part in walk(call) if isinstance(part, ir.Name)}
                if used.isdisjoint(made):
                    yield call.func.name


def _sets_mode(call: ir.Call, name: str) -> bool:
    """``model.train()`` and ``model.eval()``, which every torch module has: they speak of no method of the project."""
    return name in ("train", "eval") and all(isinstance(arg.value, ir.Const) for arg in call.args)
