"""Which names a body of statements binds, and to what: the raw material of name resolution.

One collector serves module bodies, class bodies and function bodies. It looks at statements and at the walrus
operators in their expressions, never into nested definitions.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TypeAlias

from amp_audit.records import record
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import expressions, walk


@record(frozen=True, slots=True)
class Imported:
    """``target`` as in ``ir.Import.bindings``: dotted, relative ones with their leading dots."""

    target: str


@record(frozen=True, slots=True)
class Assigned:
    """``name = expr``; None where the value is not an expression of the source (a parameter, an unpacked item)."""

    expr: ir.Expr | None


Source: TypeAlias = Imported | Assigned | ir.Function | ir.Class


@record(frozen=True, slots=True)
class Bound:
    """One place that binds a name. ``branch`` is the chain of (statement, arm) it lies in; empty: always executed."""

    source: Source
    branch: tuple[tuple[int, int], ...]


@record(frozen=True, slots=True)
class Names:
    """What a body binds, in order. ``stars`` are the targets of star imports, ``outer`` the names it declares
    global or nonlocal and so does not bind itself."""

    bound: dict[str, list[Bound]]
    stars: tuple[str, ...]
    outer: frozenset[str]

    def candidates(self, name: str) -> list[Bound]:
        """The bindings of ``name`` that can be in force at the end of the body, in order.

        A later binding replaces an earlier one when it is executed whenever the earlier one was; those in different
        arms stand side by side.
        """
        alive: list[Bound] = []
        for later in self.bound.get(name, ()):
            alive = [earlier for earlier in alive if not _replaces(later, earlier)]
            alive.append(later)
        return alive


def _replaces(later: Bound, earlier: Bound) -> bool:
    return later.branch == earlier.branch[: len(later.branch)]


def collect(body: Sequence[ir.Stmt], params: Iterable[ir.Param] = (), words: Container[str] = (ir.WALRUS,)) -> Names:
    """The names that ``body`` binds, parameters included. ``words``: those of the definition, as far as they are known
    (assignments inside expressions are looked for where they say that there are some)."""
    collector = _Collector(ir.WALRUS in words)
    for param in params:
        collector.bind(param.name, Assigned(None))
    collector.block(body)
    bound = {name: places for name, places in collector.bound.items() if name not in collector.outer}
    return Names(bound, tuple(collector.stars), frozenset(collector.outer))


class _Collector:
    def __init__(self, has_walrus: bool) -> None:
        self.has_walrus = has_walrus
        self.bound: dict[str, list[Bound]] = {}
        self.stars: list[str] = []
        self.outer: set[str] = set()
        self.branch: tuple[tuple[int, int], ...] = ()

    def bind(self, name: str, source: Source) -> None:
        self.bound.setdefault(name, []).append(Bound(source, self.branch))

    def block(self, body: Sequence[ir.Stmt]) -> None:
        for statement in body:
            self.statement(statement)

    def arm(self, statement: int, arm: int, body: Sequence[ir.Stmt]) -> None:
        outside = self.branch
        self.branch = (*outside, (statement, arm))
        self.block(body)
        self.branch = outside

    def statement(self, node: ir.Stmt) -> None:
        if isinstance(node, (ir.Function, ir.Class)):
            self.bind(node.name, node)
        elif isinstance(node, ir.Import):
            self._import(node)
        elif isinstance(node, ir.Assign):
            for target in node.targets:
                self.target(target, node.value)
        elif isinstance(node, ir.Augment):
            self.target(node.target, None)
        elif isinstance(node, ir.Delete):
            for target in node.targets:
                self.target(target, None)
        elif isinstance(node, ir.Scope):
            self.outer.update(node.names)
        else:
            self._compound(node)
        for name, value in _walrus_targets(node) if self.has_walrus else ():
            self.bind(name, Assigned(value))

    def _import(self, node: ir.Import) -> None:
        for name, target in node.bindings:
            if name == "*":
                self.stars.append(target)
            else:
                self.bind(name, Imported(target))

    def _compound(self, node: ir.Stmt) -> None:
        if isinstance(node, (ir.If, ir.While, ir.For)):
            if isinstance(node, ir.For):
                self.target(node.target, None)
            self.arm(node.at, 0, node.body)
            self.arm(node.at, 1, node.orelse)
        elif isinstance(node, ir.With):
            for context, target in node.items:
                if target is not None:
                    self.target(target, context if isinstance(target, ir.Name) else None)
            self.block(node.body)
        elif isinstance(node, ir.Try):
            self._try(node)
        elif isinstance(node, ir.Match):
            for number, case in enumerate(node.cases):
                for name in case.names:
                    self.bind(name, Assigned(None))
                self.arm(node.at, number, case.body)

    def _try(self, node: ir.Try) -> None:
        self.arm(node.at, 0, node.body)
        for number, handler in enumerate(node.handlers, 1):
            if handler.name:
                self.bind(handler.name, Assigned(None))
            self.arm(node.at, number, handler.body)
        self.arm(node.at, 0, node.orelse)
        self.block(node.final)

    def target(self, target: ir.Expr, value: ir.Expr | None) -> None:
        if isinstance(target, ir.Name):
            self.bind(target.id, Assigned(value))
        elif isinstance(target, ir.Starred):
            self.target(target.value, None)
        elif isinstance(target, ir.Sequence):
            values: Sequence[ir.Expr | None] = [None] * len(target.items)
            starred = any(isinstance(item, ir.Starred) for item in target.items)
            if isinstance(value, ir.Sequence) and len(value.items) == len(target.items) and not starred:
                values = value.items
            for item, each in zip(target.items, values):
                self.target(item, each)


def _walrus_targets(node: ir.Stmt) -> Iterator[tuple[str, ir.Expr]]:
    for expression in expressions(node):
        for found in walk(expression):
            if isinstance(found, ir.Walrus) and isinstance(found.target, ir.Name):
                yield found.target.id, found.value
