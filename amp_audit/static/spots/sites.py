"""Every call of a module with what stands around it: what happens to its result, what gates it, what it decorates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from amp_audit.static.binding.origins import Where
from amp_audit.static.binding.project import ClassRef, Scope
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, children, expressions
from amp_audit.static.spots.gates import Gate, gate_of, gates_the_rest


@dataclass(frozen=True, slots=True)
class Site:
    """One call, or a decorator without parentheses (then ``call`` is what it would be: no arguments).

    ``bare``: a decorator without parentheses. ``decorated``: the definition that the call decorates. ``gates``: what
    may gate it (``gates.is_gated``). ``holder``: the statement that the call's own value is the whole of.
    ``applied``: the arguments of a call of the result. ``entered``: the ``with`` whose context the call is.
    """

    where: Where
    call: ir.Call
    bare: bool = False
    decorated: ir.Function | ir.Class | None = None
    gates: tuple[Gate, ...] = ()
    holder: ir.Stmt | None = None
    applied: tuple[ir.Arg, ...] | None = None
    entered: ir.With | None = None

    @property
    def at(self) -> int:
        """Where a finding about the call stands; a bare decorator's own place."""
        return self.call.func.at if self.bare else self.call.at


@dataclass(frozen=True, slots=True)
class _Around:
    """What surrounds a body."""

    where: Where
    gates: tuple[Gate, ...] = ()

    def gated(self, gate: Gate | None) -> _Around:
        return self if gate is None else replace(self, gates=(*self.gates, gate))


def sites(module: ir.Module) -> Iterator[Site]:
    """The sites of a module in order, those in functions and classes included."""
    yield from _Walk().body(module.body, _Around(Where(module)))


class _Walk:
    def body(self, body: Sequence[ir.Stmt], around: _Around) -> Iterator[Site]:
        for node in body:
            yield from self._statement(node, around)
            if gates_the_rest(node):
                around = around.gated(gate_of(node))

    def _statement(self, node: ir.Stmt, around: _Around) -> Iterator[Site]:
        if isinstance(node, (ir.Function, ir.Class)):
            yield from self._definition(node, around)
            return
        around = around.gated(gate_of(node))
        for expression in expressions(node):
            yield from self._expression(expression, node, around)
        for inner in bodies(node):
            yield from self.body(inner, around)

    def _definition(self, node: ir.Function | ir.Class, around: _Around) -> Iterator[Site]:
        for decorator in node.decorators:
            if isinstance(decorator, ir.Call):
                yield Site(around.where, decorator, decorated=node, gates=around.gates)
                yield from self._arguments(decorator, node, around)
            elif isinstance(decorator, (ir.Name, ir.Attr)):
                yield Site(around.where, ir.Call(decorator.at, decorator, ()), True, node, around.gates)
        for expression in expressions(node):
            if not any(expression is decorator for decorator in node.decorators):
                yield from self._expression(expression, node, around)
        yield from self.body(node.body, replace(around, where=inside(around.where, node)))

    def _arguments(self, call: ir.Call, holder: ir.Stmt, around: _Around) -> Iterator[Site]:
        for arg in call.args:
            yield from self._expression(arg.value, holder, around)

    def _expression(self, root: ir.Expr, holder: ir.Stmt, around: _Around) -> Iterator[Site]:
        whole = _whole(root, holder)
        stack: list[tuple[ir.Expr, _Around, tuple[ir.Arg, ...] | None]] = [(root, around, None)]
        while stack:
            node, near, applied = stack.pop()
            if isinstance(node, ir.Call):
                entered = holder if isinstance(holder, ir.With) and any(node is c for c, _ in holder.items) else None
                own = holder if node is whole else None
                yield Site(near.where, node, gates=near.gates, holder=own, applied=applied, entered=entered)
            elif isinstance(node, ir.Lambda):
                deeper = replace(near, where=inside(near.where, node.function))
                stack.extend(
                    (s.value, deeper, None) for s in node.function.body if isinstance(s, ir.Return) and s.value
                )
            elif isinstance(node, ir.IfExp):
                near = near.gated(node.test)
            for child in reversed(children(node)):
                called = isinstance(node, ir.Call) and child is node.func
                stack.append((child, near, node.args if called and isinstance(node, ir.Call) else None))


def inside(where: Where, node: ir.Function | ir.Class) -> Where:
    """The view from inside a definition that stands at ``where``."""
    if isinstance(node, ir.Class):
        return Where(where.module, where.scope, ClassRef(where.module, node))
    return Where(where.module, Scope(node, where.scope), where.cls)


def _whole(root: ir.Expr, holder: ir.Stmt) -> ir.Expr | None:
    """The expression whose value is all that a statement is about: evaluated and dropped, assigned, returned."""
    if isinstance(holder, ir.Evaluate) and isinstance(root, ir.Attr):
        return root.base  # `scaler.scale(loss).backward`: the attribute is looked up and dropped
    if isinstance(holder, (ir.Evaluate, ir.Assign, ir.Return)) and holder.value is root:
        return root
    return None
