"""What functions and classes of a project are given: the prepared models of others, and values computed from them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from amp_audit.static.binding.origins import Where
from amp_audit.static.binding.project import ClassRef, FunctionRef, Project, Scope
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import statements
from amp_audit.static.spots.prepared import (
    Answers,
    Keys,
    Prepared,
    cuts_graph,
    depends,
    graph_names,
    is_prepared,
    without_graph,
)
from amp_audit.static.spots.spaces import calls, method, own_method, spaces

_DEEPEST = 3
"""How many calls deep what is prepared is followed."""


@dataclass(frozen=True)  # without slots: what is computed once needs a place
class Space:
    """A body and what is prepared in it. ``groups``: the variables that hold it, by what they hold (models, engines,
    optimizers). ``losses``: the parameters that hold what is computed from it. ``deep``: how many calls led there.
    """

    where: Where
    body: Sequence[ir.Stmt]
    groups: tuple[Keys, ...]
    project: Project
    losses: frozenset[str] = frozenset()
    deep: int = 0
    known: dict[tuple[object, ...], bool] = field(default_factory=dict, compare=False)
    """What functions were found to return, by what they hold: shared with the spaces that calls lead to."""

    @cached_property
    def graph(self) -> set[str]:
        """The names that carry the graph of what the first group puts out."""
        return graph_names(self.where, self.body, self.models, self.losses, self.answers)

    @cached_property
    def answers(self) -> Answers:
        """The calls of functions that run what the first group holds, and return what is computed from it."""
        if self.deep >= _DEEPEST or not self.groups[0]:
            return frozenset()
        return frozenset(call.at for call in calls(self.body) if _answers(call, self))

    @property
    def models(self) -> Prepared:
        return Prepared(set(self.groups[0]))

    def carries(self, expr: ir.Expr) -> bool:
        """Whether an expression carries that graph."""
        return depends(expr, self.where, self.models, self.graph, self.answers)


def _answers(call: ir.Call, space: Space) -> bool:
    """Whether the function that is called runs what the first group holds, as an argument or as what both can see, and
    returns what is computed from it.
    """
    target = _function(call, space)
    if target is None:
        return False
    function, params, where = target
    if any(map(cuts_graph, function.decorators)):
        return False
    given, *_ = _held(_bound(call, params), space)
    seen = {
        key for key in space.groups[0] if key[0] == where.cls or (key[0] is None and where.module is space.where.module)
    }
    keys = frozenset(seen | {(function.at, name) for name in given})
    asked = (where.module.path, function.at, keys, space.deep)
    if asked not in space.known:
        inner = Space(where, function.body, (keys,), space.project, deep=space.deep + 1, known=space.known)
        cut = without_graph(function.body)
        returned = (node for node in statements(function.body) if isinstance(node, ir.Return) and node.at not in cut)
        space.known[asked] = bool(keys) and any(
            node.value is not None and inner.carries(node.value) for node in returned
        )
    return space.known[asked]


def reached(start: Sequence[Space], without: Container[tuple[str, int]]) -> Iterator[Space]:
    """These spaces, and those of the functions, methods and classes that they hand on what they hold. ``without``: the
    calls, by file and position, that are not followed.
    """
    todo, seen = [*start], set[tuple[object, ...]]()
    while todo:
        space = todo.pop(0)
        yield space
        for call in calls(space.body) if space.deep < _DEEPEST else ():
            if (space.where.module.path, call.at) in without:
                continue
            for other in _given(call, space):
                held = (other.where.module.path, other.body[0].at if other.body else 0, other.groups, other.losses)
                if held not in seen:
                    seen.add(held)
                    todo.append(other)


def _given(call: ir.Call, space: Space) -> Iterator[Space]:
    """The bodies that a call runs, with what it hands them."""
    target = _function(call, space)
    if target is not None:
        function, params, where = target
        bound = _bound(call, params)
        groups = _held(bound, space)
        losses = frozenset(name for name, arg in bound if space.carries(arg.value)) - frozenset().union(*groups)
        if losses or any(groups):
            held = tuple(frozenset((function.at, name) for name in names) for names in groups)
            yield Space(where, function.body, held, space.project, losses, space.deep + 1, space.known)
        return
    found = space.project.resolve(space.where.module, call.func, space.where.scope)
    if isinstance(found, ClassRef):
        yield from _kept(call, found, space)


def _function(call: ir.Call, space: Space) -> tuple[ir.Function, Sequence[ir.Param], Where] | None:
    """The function or the method of the own class that is called, and the parameters that take the arguments."""
    where, own = space.where, own_method(call, space.where)
    if own is not None:
        return own, own.params[1:], Where(where.module, Scope(own), where.cls)
    found = space.project.resolve(where.module, call.func, where.scope)
    if isinstance(found, FunctionRef):
        return found.function, found.function.params, Where(found.module, Scope(found.function))
    return None


def _kept(call: ir.Call, made: ClassRef, space: Space) -> Iterator[Space]:
    """The methods of a class whose constructor keeps what it is given."""
    init = next((n for n in made.cls.body if isinstance(n, ir.Function) and n.name == "__init__" and n.params), None)
    groups = _held(_bound(call, init.params[1:]), space) if init is not None else ()
    if init is None or not any(groups):
        return
    kept = [
        (node.value.id, target.name)
        for node in statements(init.body)
        if isinstance(node, ir.Assign) and isinstance(node.value, ir.Name)
        for target in node.targets
        if isinstance(target, ir.Attr) and isinstance(target.base, ir.Name) and target.base.id == init.params[0].name
    ]
    held = tuple(frozenset((made, f"self.{name}") for given, name in kept if given in names) for names in groups)
    for where, body in spaces(made.module) if any(held) else ():
        if where.cls == made:
            yield Space(where, body, held, space.project, deep=space.deep + 1, known=space.known)


def _bound(call: ir.Call, params: Sequence[ir.Param]) -> list[tuple[str, ir.Arg]]:
    """The parameters and what they are given, where that can be told."""
    if any(arg.star for arg in call.args):
        return []
    names = [param.name for param in params if param.kind == "positional"]
    plain = [arg for arg in call.args if arg.keyword is None]
    return [*zip(names, plain), *((arg.keyword, arg) for arg in call.args if arg.keyword is not None)]


def _held(bound: Sequence[tuple[str, ir.Arg]], space: Space) -> tuple[frozenset[str], ...]:
    """Which parameters get what the variables of each group hold."""
    return tuple(
        frozenset(name for name, arg in bound if is_prepared(_whose(arg.value), space.where, Prepared(set(keys))))
        for keys in space.groups
    )


def _whose(expr: ir.Expr) -> ir.Expr:
    """``model`` of ``model.parameters()``."""
    if (
        isinstance(expr, ir.Call)
        and isinstance(expr.func, ir.Attr)
        and method(expr) in ("parameters", "named_parameters")
    ):
        return expr.func.base
    return expr
