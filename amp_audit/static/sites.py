"""Every call of a module with what stands around it: what happens to its result, what gates it, what it decorates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from amp_audit.static import ir
from amp_audit.static.origins import Where
from amp_audit.static.project import ClassRef, External, Project, Scope, ValueRef
from amp_audit.static.traverse import bodies, children, expressions, statements, walk

_GATE_NAME = re.compile(
    r"version|hasattr|find_spec|torch_?(?:\d|has_|(?:ge|gt|lt|le|new|old)(?:_|\d|$))|(?:has|new|old|native)_?(?:torch|amp|grad_?scaler"
    r"|autocast)|(?:amp|scaler|autocast)_(?:is_)?available",
    re.I,
)
_NEW_NAMES = ("torch.amp.autocast", "torch.amp.GradScaler", "torch.amp.custom_fwd", "torch.amp.custom_bwd")


@dataclass(frozen=True, slots=True)
class Site:
    """One call, or a decorator without parentheses (then ``call`` is what it would be: no arguments).

    ``bare``: a decorator without parentheses. ``decorated``: the definition that the call decorates. ``gated``: only
    some versions of torch come here. ``holder``: the statement that the call's own value is the whole of.
    ``applied``: the arguments of a call of the result. ``attribute``: the attribute of the result that the statement
    evaluates and drops. ``entered``: the ``with`` whose context the call is.
    """

    where: Where
    call: ir.Call
    bare: bool = False
    decorated: ir.Function | ir.Class | None = None
    gated: bool = False
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
    gated: bool = False


def sites(module: ir.Module, project: Project) -> Iterator[Site]:
    """The sites of a module in order, those in functions and classes included."""
    yield from _Walk(module, project).body(module.body, _Around(Where(module)))


class _Walk:
    def __init__(self, module: ir.Module, project: Project) -> None:
        self.module = module
        self.project = project

    def body(self, body: Sequence[ir.Stmt], around: _Around) -> Iterator[Site]:
        for node in body:
            yield from self._statement(node, around)
            # `if <version>: return new(...)` and `try: return new(...)` gate what follows them
            if not around.gated and self._gates_the_rest(node, around.where):
                around = replace(around, gated=True)

    def _statement(self, node: ir.Stmt, around: _Around) -> Iterator[Site]:
        if isinstance(node, (ir.Function, ir.Class)):
            yield from self._definition(node, around)
            return
        gated = around.gated or self._is_gate(node, around.where)
        for expression in expressions(node):
            yield from self._expression(expression, node, replace(around, gated=gated))
        for inner in bodies(node):
            yield from self.body(inner, replace(around, gated=gated))

    def _definition(self, node: ir.Function | ir.Class, around: _Around) -> Iterator[Site]:
        for decorator in node.decorators:
            if isinstance(decorator, ir.Call):
                yield Site(around.where, decorator, decorated=node, gated=around.gated)
                yield from self._arguments(decorator, node, around)
            elif isinstance(decorator, (ir.Name, ir.Attr)):
                yield Site(around.where, ir.Call(decorator.at, decorator, ()), True, node, around.gated)
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
                yield Site(near.where, node, gated=near.gated, holder=own, applied=applied, entered=entered)
            elif isinstance(node, ir.Lambda):
                deeper = replace(near, where=inside(near.where, node.function))
                stack.extend(
                    (s.value, deeper, None) for s in node.function.body if isinstance(s, ir.Return) and s.value
                )
            elif isinstance(node, ir.IfExp) and self._is_gate_test(node.test, near.where):
                near = replace(near, gated=True)
            for child in reversed(children(node)):
                called = isinstance(node, ir.Call) and child is node.func
                stack.append((child, near, node.args if called and isinstance(node, ir.Call) else None))

    # Gates: code that only some versions of torch reach

    def _is_gate(self, node: ir.Stmt, where: Where) -> bool:
        if isinstance(node, (ir.If, ir.While)):
            return self._is_gate_test(node.test, where)
        return isinstance(node, ir.Try) and bool(node.handlers) and self._names_the_new(node, where)

    def _gates_the_rest(self, node: ir.Stmt, where: Where) -> bool:
        if not self._is_gate(node, where):
            return False
        return any(isinstance(body[-1], (ir.Return, ir.Raise, ir.Pass)) for body in bodies(node)[:1] if body)

    def _is_gate_test(self, test: ir.Expr, where: Where) -> bool:
        return any(self._names_a_version(part, where) for part in walk(test))

    def _names_a_version(self, node: ir.Expr, where: Where) -> bool:
        word = node.id if isinstance(node, ir.Name) else node.name if isinstance(node, ir.Attr) else ""
        if _GATE_NAME.search(word):
            return True
        if not isinstance(node, ir.Name):
            return False
        binding = self.project.resolve(where.module, node, where.scope)
        return isinstance(binding, ValueRef) and any(
            _GATE_NAME.search(part.id if isinstance(part, ir.Name) else part.name) is not None
            for part in walk(binding.expr)
            if isinstance(part, (ir.Name, ir.Attr))
        )

    def _names_the_new(self, node: ir.Try, where: Where) -> bool:
        """Whether some part of a ``try`` uses, or imports, what replaces the deprecated names."""
        for inner in statements([node]):
            if isinstance(inner, ir.Import) and any(_is_new(self.project, where, t) for _, t in inner.bindings):
                return True
            for expression in expressions(inner):
                for part in walk(expression):
                    if isinstance(part, (ir.Attr, ir.Name)) and (
                        self.project.qualified(where.module, part, where.scope) in _NEW_NAMES
                    ):
                        return True
        return False


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


def _is_new(project: Project, where: Where, target: str) -> bool:
    found = project.imported(where.module, target)
    return isinstance(found, External) and found.dotted in (*_NEW_NAMES, "torch.amp")
