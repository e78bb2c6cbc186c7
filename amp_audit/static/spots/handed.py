"""What functions and classes of a project are given: the prepared models of others, and values computed from them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from amp_audit.static.binding.origins import Where
from amp_audit.static.binding.project import ClassRef, FunctionRef, Project, Scope
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import statements
from amp_audit.static.spots.prepared import Keys, Prepared, depends, graph_names, is_prepared
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
    losses: frozenset[str] = frozenset()
    deep: int = 0

    @cached_property
    def graph(self) -> set[str]:
        """The names that carry the graph of what the first group puts out."""
        return graph_names(self.where, self.body, Prepared(set(self.groups[0])), self.losses)


def reached(start: Sequence[Space], project: Project, without: Container[tuple[str, int]]) -> Iterator[Space]:
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
            for other in _given(call, space, project):
                held = (other.where.module.path, other.body[0].at if other.body else 0, other.groups, other.losses)
                if held not in seen:
                    seen.add(held)
                    todo.append(other)


def _given(call: ir.Call, space: Space, project: Project) -> Iterator[Space]:
    """The bodies that a call runs, with what it hands them."""
    where, own = space.where, own_method(call, space.where)
    found = project.resolve(where.module, call.func, where.scope) if own is None else None
    if own is not None:
        yield from _inside(call, own, own.params[1:], Where(where.module, Scope(own), where.cls), space)
    elif isinstance(found, FunctionRef):
        params = found.function.params
        yield from _inside(call, found.function, params, Where(found.module, Scope(found.function)), space)
    elif isinstance(found, ClassRef):
        yield from _kept(call, found, space)


def _inside(
    call: ir.Call, function: ir.Function, params: Sequence[ir.Param], where: Where, space: Space
) -> Iterator[Space]:
    groups, losses = _arguments(call, params, space)
    if losses or any(groups):
        held = tuple(frozenset((function.at, name) for name in names) for names in groups)
        yield Space(where, function.body, held, losses, space.deep + 1)


def _kept(call: ir.Call, made: ClassRef, space: Space) -> Iterator[Space]:
    """The methods of a class whose constructor keeps what it is given."""
    init = next((n for n in made.cls.body if isinstance(n, ir.Function) and n.name == "__init__" and n.params), None)
    groups, _ = _arguments(call, init.params[1:], space) if init is not None else ((), frozenset())
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
            yield Space(where, body, held, deep=space.deep + 1)


def _arguments(
    call: ir.Call, params: Sequence[ir.Param], space: Space
) -> tuple[tuple[frozenset[str], ...], frozenset[str]]:
    """Which parameters get what the variables of each group hold, and which get something computed from the first."""
    names = [param.name for param in params if param.kind == "positional"]
    plain = [arg for arg in call.args if arg.keyword is None]
    if any(arg.star for arg in call.args):
        return tuple(frozenset[str]() for _ in space.groups), frozenset()
    bound = [*zip(names, plain), *((arg.keyword, arg) for arg in call.args if arg.keyword is not None)]
    graph, first = space.graph, Prepared(set(space.groups[0]))
    groups = tuple(
        frozenset(name for name, arg in bound if is_prepared(_whose(arg.value), space.where, Prepared(set(keys))))
        for keys in space.groups
    )
    losses = frozenset(name for name, arg in bound if depends(arg.value, space.where, first, graph))
    return groups, losses - frozenset().union(*groups)


def _whose(expr: ir.Expr) -> ir.Expr:
    """``model`` of ``model.parameters()``."""
    if (
        isinstance(expr, ir.Call)
        and isinstance(expr.func, ir.Attr)
        and method(expr) in ("parameters", "named_parameters")
    ):
        return expr.func.base
    return expr
