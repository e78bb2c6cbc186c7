"""Which methods a loop calls again and again on one and the same object, whoever that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from amp_audit.records import record
from amp_audit.static.binding.names import collect
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, dotted_text, expressions, walk

Companions: TypeAlias = frozenset[str]
"""What else a loop calls on the object of a method that it calls."""


def repeated(module: ir.Module) -> Iterator[tuple[str, Companions]]:
    """The methods that loops call with nothing but what was there before: the same model, the same optimizer in each
    round. What a loop makes anew for each round, as for the folds of a cross-validation, is another.
    """
    calls: dict[tuple[int, str], set[str]] = {}
    for loop, base, name in _in(module.body, None):
        calls.setdefault((loop, base), set()).add(name)
    for names in calls.values():
        for name in names:
            yield name, frozenset(names - {name})


@record(frozen=True, slots=True)
class _Loop:
    """Where the innermost loop stands, and the names that it binds, its own variables apart."""

    at: int
    made: frozenset[str]


def _in(body: Sequence[ir.Stmt], loop: _Loop | None) -> Iterator[tuple[int, str, str]]:
    """``loop`` is None outside of loops."""
    for node in body:
        if isinstance(node, (ir.Function, ir.Class)):
            yield from _in(node.body, None)
            continue
        inner = loop
        if isinstance(node, (ir.For, ir.While)):
            counted = walk(node.target) if isinstance(node, ir.For) else ()
            own = {part.id for part in counted if isinstance(part, ir.Name)}
            inner = _Loop(node.at, frozenset(collect(node.body).bound) - own)
        elif loop is not None:
            yield from _called(node, loop)
        for block in bodies(node):
            yield from _in(block, inner)


def _called(node: ir.Stmt, loop: _Loop) -> Iterator[tuple[int, str, str]]:
    for expression in expressions(node):
        for call in walk(expression):
            if isinstance(call, ir.Call) and isinstance(call.func, ir.Attr) and not _sets_mode(call, call.func.name):
                used = {part.id for part in walk(call) if isinstance(part, ir.Name)}
                if used.isdisjoint(loop.made):
                    yield loop.at, dotted_text(call.func.base) or call.func.name, call.func.name


def _sets_mode(call: ir.Call, name: str) -> bool:
    """``model.train()`` and ``model.eval()``, which every torch module has: they speak of no method of the project."""
    return name in ("train", "eval") and all(isinstance(arg.value, ir.Const) for arg in call.args)
