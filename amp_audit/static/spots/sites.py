"""Every call of a module with what stands around it: what happens to its result, what gates it, what it decorates."""

from __future__ import annotations

from collections.abc import Sequence

from amp_audit.records import record, replace
from amp_audit.static.binding.origins import Where
from amp_audit.static.binding.project import ClassRef, Scope
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, children, expressions
from amp_audit.static.spots.gates import Gate, gate_of, gates_the_rest


@record(frozen=True, slots=True)
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


@record(frozen=True, slots=True)
class _Around:
    """What surrounds a body."""

    where: Where
    gates: tuple[Gate, ...] = ()

    def gated(self, gate: Gate | None) -> _Around:
        return self if gate is None else replace(self, gates=(*self.gates, gate))


def sites(module: ir.Module) -> list[Site]:
    """The sites of a module in order, those in functions and classes included."""
    walk = _Walk()
    walk.body(module.body, _Around(Where(module)))
    return walk.found


class _Walk:
    def __init__(self) -> None:
        self.found: list[Site] = []

    def body(self, body: Sequence[ir.Stmt], around: _Around) -> None:
        for node in body:
            self._statement(node, around)
            if gates_the_rest(node):
                around = around.gated(gate_of(node))

    def _statement(self, node: ir.Stmt, around: _Around) -> None:
        if isinstance(node, (ir.Function, ir.Class)):
            self._definition(node, around)
            return
        around = around.gated(gate_of(node))
        for expression in expressions(node):
            self._expression(expression, node, around)
        for inner in bodies(node):
            self.body(inner, around)

    def _definition(self, node: ir.Function | ir.Class, around: _Around) -> None:
        for decorator in node.decorators:
            if isinstance(decorator, ir.Call):
                self.found.append(Site(around.where, decorator, decorated=node, gates=around.gates))
                for arg in decorator.args:
                    self._expression(arg.value, node, around)
            elif isinstance(decorator, (ir.Name, ir.Attr)):
                bare = ir.Call(decorator.at, decorator, ())
                self.found.append(Site(around.where, bare, True, node, around.gates))
        for expression in expressions(node):
            if not any(expression is decorator for decorator in node.decorators):
                self._expression(expression, node, around)
        self.body(node.body, replace(around, where=inside(around.where, node)))

    def _expression(self, root: ir.Expr, holder: ir.Stmt, around: _Around) -> None:
        whole = _whole(root, holder)
        stack: list[tuple[ir.Expr, _Around, tuple[ir.Arg, ...] | None]] = [(root, around, None)]
        while stack:
            node, near, applied = stack.pop()
            if isinstance(node, (ir.Name, ir.Const)):
                continue  # most are leaves
            if isinstance(node, ir.Call):
                entered = holder if isinstance(holder, ir.With) and any(node is c for c, _ in holder.items) else None
                own = holder if node is whole else None
                self.found.append(Site(near.where, node, False, None, near.gates, own, applied, entered))
                stack += [(arg.value, near, None) for arg in reversed(node.args)]
                stack.append((node.func, near, node.args))
                continue
            if isinstance(node, ir.Lambda):
                deeper = replace(near, where=inside(near.where, node.function))
                stack.extend(
                    (s.value, deeper, None) for s in node.function.body if isinstance(s, ir.Return) and s.value
                )
            elif isinstance(node, ir.IfExp):
                near = near.gated(node.test)
            stack += [(child, near, None) for child in reversed(children(node))]


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
