"""What a framework prepares for training (models, engines, optimizers), and which values are computed from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from amp_audit.static.binding.origins import Origins, Where
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import last_word, statements, walk

_CUTS = frozenset(
    ("detach", "item", "tolist", "numpy", "argmax", "size", "dim", "numel", "data", "device", "dtype", "shape", "ndim")
)
"""Methods and attributes of a tensor whose result has no graph."""


Keys: TypeAlias = frozenset[tuple[object, str]]
"""Variables, as ``identities`` tells them apart."""

Answers: TypeAlias = frozenset[int]
"""Where the calls stand whose functions return what is computed from a prepared model."""


@dataclass(slots=True)
class Prepared:
    """What accelerators of a module prepare: the names, and attributes of ``self``, that hold it.

    ``sure`` says whether loss scaling is on by a literal; otherwise it may be. ``switches``: the flags under which it
    is prepared, and whether they are on then; None where there is none. ``sometimes``: all of it stands under a test.
    """

    keys: set[tuple[object, str]] = field(default_factory=set)
    sure: bool = True
    steps: bool = False
    at: int = 0
    switches: set[tuple[str, bool] | None] = field(default_factory=set)
    sometimes: bool = True


def identities(target: ir.Expr, where: Where) -> Iterator[tuple[object, str]]:
    """What identifies a variable: the function (or module) that owns a name, the class that owns an attribute."""
    if isinstance(target, (ir.Sequence)):
        for item in target.items:
            yield from identities(item, where)
    elif isinstance(target, ir.Name):
        yield _owner(target.id, where), target.id
    elif isinstance(target, ir.Attr) and Origins.is_self(target.base, where) and where.cls is not None:
        yield where.cls, f"self.{target.name}"


def _owner(name: str, where: Where) -> object:
    scope = where.scope
    while scope is not None and name not in scope.names.bound:
        scope = scope.outer
    return scope.function.at if scope is not None else None


def graph_names(
    where: Where, body: Sequence[ir.Stmt], prepared: Prepared, given: Iterable[str] = (), answers: Answers = frozenset()
) -> set[str]:
    """The names in a body that carry the graph of a prepared model's output, as the ``given`` ones do; two rounds, for
    loops.
    """
    found = set(given)
    cut = without_graph(body)
    for _ in range(2):
        for node in statements(body):
            if node.at in cut:
                continue
            if isinstance(node, (ir.Assign, ir.Augment)) and depends(node.value, where, prepared, found, answers):
                targets = node.targets if isinstance(node, ir.Assign) else (node.target,)
                found |= {name for target in targets for name in _plain_names(target)}
    return found


def without_graph(body: Sequence[ir.Stmt]) -> frozenset[int]:
    """Where the statements stand that ``with torch.no_grad()`` keeps out of the graph."""
    withs = (node for node in statements(body) if isinstance(node, ir.With))
    off = (node for node in withs if any(cuts_graph(context) for context, _ in node.items))
    return frozenset(inner.at for node in off for inner in statements(node.body))


def cuts_graph(expr: ir.Expr) -> bool:
    """Whether a context, or a decorator, is one that records no gradients."""
    return last_word(expr.func if isinstance(expr, ir.Call) else expr) in ("no_grad", "inference_mode")


def _plain_names(target: ir.Expr) -> Iterator[str]:
    if isinstance(target, ir.Name):
        yield target.id
    elif isinstance(target, ir.Sequence):
        for item in target.items:
            yield from _plain_names(item)


def depends(expr: ir.Expr, where: Where, prepared: Prepared, losses: set[str], answers: Answers = frozenset()) -> bool:
    """Whether an expression is computed from the output of a prepared model, with its graph."""
    if isinstance(expr, ir.Name):
        return expr.id in losses
    if isinstance(expr, ir.Call):
        if isinstance(expr.func, ir.Attr) and expr.func.name in _CUTS:
            return False
        if expr.at in answers or is_prepared(expr.func, where, prepared):
            return True
    if isinstance(expr, ir.Attr) and expr.name in _CUTS:
        return False
    return any(depends(part, where, prepared, losses, answers) for part in _inner(expr))


def _inner(expr: ir.Expr) -> Sequence[ir.Expr]:
    if isinstance(expr, ir.Call):
        base = [expr.func.base] if isinstance(expr.func, ir.Attr) else []
        return [*base, *(arg.value for arg in expr.args)]
    if isinstance(expr, (ir.Attr, ir.Subscript)):
        return [expr.base]
    if isinstance(expr, ir.Binary):
        return [expr.left, expr.right]
    if isinstance(expr, ir.Unary):
        return [expr.operand]
    if isinstance(expr, ir.IfExp):
        return [expr.body, expr.orelse]
    return expr.items if isinstance(expr, ir.Sequence) else ()


def has_prepared(expr: ir.Expr, where: Where, prepared: Prepared) -> bool:
    return any(is_prepared(part, where, prepared) for part in walk(expr))


def is_prepared(expr: ir.Expr, where: Where, prepared: Prepared) -> bool:
    return any(key in prepared.keys for key in identities(expr, where))
