"""Which names can choose a path that matters, so that paths which differ only in other switches become one.

A name decides when a test that forks speaks of it, when it switches a region or a scaler, or when the value of a name
that decides is made from it: by assignments, arguments, defaults and returns. Local names are kept apart by function,
attributes and module-level names are taken by their spelling; so are functions. What calls of libraries give is no
switch, whatever they are given: it has no truth that is known before the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from amp_audit.records import record
from amp_audit.static.binding.names import collect
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, expressions, walk
from amp_audit.static.walking.hot import MENTIONED, Heat

_SWITCHED = MENTIONED | {"set_grad_enabled", "inference_mode", "requires_grad_", "scale_loss"}
"""What a switch among its arguments turns on or off."""

_TRANSPARENT = frozenset({"bool", "int", "float", "str", "any", "all", "not_", "isinstance"})
"""Calls whose result is as known as what they are given."""

_ATTRIBUTE, _GLOBAL, _RETURNED, _KEYWORD = -1, -2, -3, -4
Key = tuple[int, str]
"""A local name with the ``id`` of its function; or what kind of other name it is, with its spelling."""


@record(frozen=True, slots=True)
class Deciding:
    """The names in whose truth, None-ness or equality two paths must agree to be one.

    ``branches``: the ``id`` of each ``if`` that sets one of them to a constant.
    """

    locals: Mapping[int, frozenset[str]] = field(default_factory=dict)
    attributes: frozenset[str] = frozenset()
    globals: frozenset[str] = frozenset()
    branches: frozenset[int] = frozenset()

    def chosen_by(self, statement: ir.If) -> bool:
        """Whether an ``if`` sets a deciding name to one constant or another."""
        return id(statement) in self.branches

    def local(self, function: ir.Function | None) -> frozenset[str] | None:
        """Those of a function; None, which stands for all, where it was not read."""
        return None if function is None else self.locals.get(id(function))


def deciding(modules: Iterable[ir.Module], heat: Heat) -> Deciding:
    """The deciding names of a project."""
    found = _Names(heat)
    for module in modules:
        found.block(module.body, ())
    return found.closed()


@record(frozen=True, slots=True)
class _Scope:
    function: ir.Function
    bound: frozenset[str]


_Scopes = tuple[_Scope, ...]


@record(frozen=True, slots=True)
class _Passed:
    """The names whose known truth arguments may have theirs from."""

    by_position: list[set[Key]] = field(default_factory=list)
    anyhow: set[Key] = field(default_factory=set)

    def add(self, arguments: Iterable[tuple[str | None, Iterator[Key]]]) -> None:
        """Add those of one call, each with its keyword."""
        position = 0
        for keyword, sources in arguments:
            found = set(sources)
            self.anyhow.update(found)
            if keyword is None:
                if position == len(self.by_position):
                    self.by_position.append(set())
                self.by_position[position].update(found)
                position += 1


class _Names:
    def __init__(self, heat: Heat) -> None:
        self.heat = heat
        self.seeds: set[Key] = set()
        self.flows: dict[Key, set[Key]] = {}
        self.functions: dict[str, list[ir.Function]] = {}
        self.calls: list[tuple[ir.Call, _Scopes]] = []
        self.read: set[int] = set()
        self.constants: list[tuple[Key, tuple[ir.If, ...]]] = []
        self._ifs: tuple[ir.If, ...] = ()

    def closed(self) -> Deciding:
        """All names that the seeds are made from."""
        for name, passed in self._passed().items():
            for function in self.functions[name]:
                self._pass(passed, function)
        found, queue = set(self.seeds), list(self.seeds)
        while queue:
            for source in self.flows.get(queue.pop(), ()):
                if source not in found:
                    found.add(source)
                    queue.append(source)
        names: dict[int, set[str]] = {number: set() for number in self.read}
        for kind, name in found:
            names.setdefault(kind, set()).add(name)
        frozen = {kind: frozenset(each) for kind, each in names.items()}
        branches = frozenset(id(node) for key, ifs in self.constants if key in found for node in ifs)
        return Deciding(frozen, frozen.get(_ATTRIBUTE, frozenset()), frozen.get(_GLOBAL, frozenset()), branches)

    # Statements

    def block(self, body: Iterable[ir.Stmt], scopes: _Scopes, cls: ir.Class | None = None) -> None:
        """Read statements; those of a class body bind attributes."""
        for node in body:
            for expression in expressions(node):
                for part in walk(expression):
                    self._expression(part, scopes)
            if isinstance(node, ir.Function):
                self._function(node, scopes)
            elif isinstance(node, ir.Class):
                self._class(node, scopes)
            else:
                self._statement(node, scopes, cls)
                outer = self._ifs
                self._ifs = (*outer, node) if isinstance(node, ir.If) else outer
                for inner in bodies(node):
                    self.block(inner, scopes, cls)
                self._ifs = outer

    def _statement(self, node: ir.Stmt, scopes: _Scopes, cls: ir.Class | None) -> None:
        if isinstance(node, ir.Assign):
            for target in node.targets:
                keys = self._targets(target, scopes, cls)
                self._flow(keys, node.value, scopes)
                if self._ifs and _is_constant(node.value):
                    self.constants += [(key, self._ifs) for key in keys]
        elif isinstance(node, ir.Augment):
            self._flow(self._targets(node.target, scopes, cls), node.value, scopes)
        elif isinstance(node, ir.For):
            self._flow(self._targets(node.target, scopes, cls), node.iterable, scopes)
        elif isinstance(node, ir.Return) and node.value is not None and scopes:
            self._flow([(_RETURNED, scopes[-1].function.name)], node.value, scopes)
        else:
            for test in self._choices(node):
                self.seeds.update(self._tested(test, scopes))

    def _choices(self, node: ir.Stmt) -> Iterator[ir.Expr]:
        """The tests by which a statement chooses a path that matters."""
        if isinstance(node, ir.If):
            yield from (node.test,) if self.heat.forks((*node.body, *node.orelse)) else ()
        elif isinstance(node, ir.While):
            yield from (node.test,) if self.heat.matters(node.body) else ()
        elif isinstance(node, ir.Match) and any(self.heat.matters(case.body) for case in node.cases):
            yield node.subject

    def _function(self, node: ir.Function, scopes: _Scopes) -> None:
        self.functions.setdefault(node.name, []).append(node)
        self.read.add(id(node))
        names = collect(node.body, node.params, node.words)
        inner = (*scopes, _Scope(node, frozenset(names.bound) - frozenset(names.outer)))
        for param in node.params:
            self.flows.setdefault((id(node), param.name), set()).add((_KEYWORD, param.name))
            if param.default is not None:
                self._flow([(id(node), param.name)], param.default, scopes)
        outer, self._ifs = self._ifs, ()
        self.block(node.body, inner)
        self._ifs = outer

    def _class(self, node: ir.Class, scopes: _Scopes) -> None:
        for inner in node.body:
            if isinstance(inner, ir.Function) and inner.name == "__init__":
                self.functions.setdefault(node.name, []).append(inner)
            elif isinstance(inner, ir.Declare) and isinstance(inner.target, ir.Name):
                self.flows.setdefault((_ATTRIBUTE, inner.target.id), set()).add((_KEYWORD, inner.target.id))
        self.block(node.body, scopes, node)

    def _targets(self, target: ir.Expr, scopes: _Scopes, cls: ir.Class | None) -> list[Key]:
        if isinstance(target, ir.Name):
            return [(_ATTRIBUTE, target.id) if cls is not None else self._name(target.id, scopes)]
        if isinstance(target, ir.Attr):
            return [(_ATTRIBUTE, target.name)]
        if isinstance(target, ir.Sequence):
            return [key for item in target.items for key in self._targets(item, scopes, cls)]
        if isinstance(target, (ir.Starred, ir.Subscript)):
            return self._targets(target.value if isinstance(target, ir.Starred) else target.base, scopes, cls)
        return []

    # Expressions

    def _expression(self, node: ir.Expr, scopes: _Scopes) -> None:
        if isinstance(node, ir.Call):
            self.calls.append((node, scopes))
            for arg in node.args:
                if arg.keyword is not None:
                    self._flow([(_KEYWORD, arg.keyword)], arg.value, scopes)
            if _called(node) in _SWITCHED:
                self.seeds.update(key for arg in node.args for key in self._tested(arg.value, scopes))
        elif isinstance(node, ir.IfExp) and (self.heat.counts(node.body) or self.heat.counts(node.orelse)):
            self.seeds.update(self._tested(node.test, scopes))
        elif isinstance(node, ir.BoolOp) and self.heat.counts(node.right):
            self.seeds.update(self._tested(node.left, scopes))
        elif isinstance(node, ir.Walrus):
            self._flow(self._targets(node.target, scopes, None), node.value, scopes)
        elif isinstance(node, ir.Lambda):
            self._function(node.function, scopes)

    def _passed(self) -> dict[str, _Passed]:
        """What all calls of functions by a name pass."""
        found: dict[str, _Passed] = {}
        for call, scopes in self.calls:
            name = _called(call)
            if name in self.functions:
                found.setdefault(name, _Passed()).add(
                    (arg.keyword, self._sources(arg.value, scopes)) for arg in call.args
                )
        return found

    def _pass(self, passed: _Passed, function: ir.Function) -> None:
        """What is passed by position, to a method with or without its ``self``."""
        params = [param.name for param in function.params if param.kind == "positional"]
        skip = 1 if params[:1] in (["self"], ["cls"]) else 0
        for name, sources in zip(params[skip:], passed.by_position):
            self._add(name, function, sources)
        for param in function.params:
            if param.kind in ("args", "kwargs"):
                self._add(param.name, function, passed.anyhow)

    def _add(self, name: str, function: ir.Function, sources: set[Key]) -> None:
        if sources:
            self.flows.setdefault((id(function), name), set()).update(sources)

    def _flow(self, targets: list[Key], value: ir.Expr, scopes: _Scopes) -> None:
        sources = set(self._sources(value, scopes))
        for target in targets if sources else ():
            self.flows.setdefault(target, set()).update(sources)

    def _tested(self, node: ir.Expr, scopes: _Scopes) -> Iterator[Key]:
        """All names in a test."""
        for part in walk(node):
            yield from self._own(part, scopes)

    def _sources(self, node: ir.Expr, scopes: _Scopes) -> Iterator[Key]:
        """The names whose known truth a value may have its own from."""
        yield from self._own(node, scopes)
        if isinstance(node, ir.IfExp):
            parts: tuple[ir.Expr, ...] = (node.test, node.body, node.orelse)
        elif isinstance(node, (ir.BoolOp, ir.Binary)):
            parts = (node.left, node.right)
        elif isinstance(node, ir.Compare):
            parts = (node.left, *(right for _, right in node.rest))
        elif isinstance(node, ir.Unary):
            parts = (node.operand,)
        elif isinstance(node, ir.Sequence):
            parts = node.items
        elif isinstance(node, ir.Mapping):
            parts = tuple(value for _, value in node.items)
        elif isinstance(node, ir.Subscript):
            parts = (node.base,)
        elif isinstance(node, ir.Call) and _called(node) in _TRANSPARENT:
            parts = tuple(arg.value for arg in node.args)
        elif isinstance(node, (ir.Walrus, ir.Starred)):
            parts = (node.value,)
        else:
            return
        for part in parts:
            yield from self._sources(part, scopes)

    def _own(self, node: ir.Expr, scopes: _Scopes) -> Iterator[Key]:
        if isinstance(node, ir.Name):
            yield self._name(node.id, scopes)
        elif isinstance(node, ir.Attr):
            yield (_ATTRIBUTE, node.name)
            yield (_GLOBAL, node.name)
            yield (_RETURNED, node.name)  # a property
        elif isinstance(node, ir.Call):
            yield (_RETURNED, _called(node))
            if _called(node) in ("getattr", "get", "hasattr"):
                yield from ((_ATTRIBUTE, text) for arg in node.args if (text := _text(arg.value)))

    def _name(self, name: str, scopes: _Scopes) -> Key:
        for scope in reversed(scopes):
            if name in scope.bound:
                return id(scope.function), name
        return _GLOBAL, name


def _is_constant(node: ir.Expr) -> bool:
    """Whether a value may be a switch or a dtype, known as it stands."""
    if isinstance(node, ir.Sequence):
        return any(map(_is_constant, node.items))
    return isinstance(node, ir.Attr) or (isinstance(node, ir.Const) and not isinstance(node.value, (float, bytes)))


def _called(call: ir.Call) -> str:
    return call.func.name if isinstance(call.func, ir.Attr) else call.func.id if isinstance(call.func, ir.Name) else ""


def _text(node: ir.Expr) -> str:
    return node.value if isinstance(node, ir.Const) and isinstance(node.value, str) else ""
