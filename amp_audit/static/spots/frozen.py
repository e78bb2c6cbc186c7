"""Decorators that read a setting once, at import, although the program changes it afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_audit.static.binding.project import Project, Scope
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, expressions, last_word, walk
from amp_audit.static.spots.sites import Site

_CHANGING = frozenset(
    (
        "update",
        "merge",
        "merge_from_file",
        "merge_from_list",
        "merge_from_dict",
        "from_dict",
        "from_file",
        "from_yaml",
        "load",
        "load_from_file",
        "parse",
        "parse_args",
        "parse_known_args",
        "override",
        "set",
        "set_defaults",
        "read",
        "read_yaml",
        "unfreeze",
        "defrost",
        "__setattr__",
    )
)
"""Methods by which configuration objects take over what the command line or a file says."""


def is_frozen(site: Site, value: ir.Expr | None, project: Project) -> bool:
    """Whether ``value`` is read when the decorated definition is imported, and changed by code that runs later."""
    if site.decorated is None or site.where.scope is not None or value is None:
        return False
    module = site.where.module
    for part in walk(value):
        if isinstance(part, ir.Name) and _is_reassigned(module, part.id):
            return True
        if isinstance(part, ir.Attr):
            holder = last_word(part.base)
            changes = (each for other in project.modules.values() for each in _later(other, module, site.at))
            if holder and any(_changes(node, holder, part.name) for node in changes):
                return True
    return False


def _is_reassigned(module: ir.Module, name: str) -> bool:
    """Whether a function declares a module-level name global and assigns it."""
    return any(
        isinstance(node, ir.Assign)
        and function is not None
        and name in Scope(function).names.outer
        and any(isinstance(target, ir.Name) and target.id == name for target in node.targets)
        for node, function in _with_function(module.body, None)
    )


def _later(module: ir.Module, home: ir.Module, at: int) -> Iterator[ir.Stmt]:
    """The statements that may run after the definition at ``at`` of ``home`` was made: those of functions, of other
    modules' own code, and what follows the definition in its own."""
    for node, function in _with_function(module.body, None):
        if function is not None or module is not home or node.at > at:
            yield node


def _with_function(
    body: Sequence[ir.Stmt], function: ir.Function | None
) -> Iterator[tuple[ir.Stmt, ir.Function | None]]:
    for node in body:
        yield node, function
        if isinstance(node, (ir.Function, ir.Class)):
            yield from _with_function(node.body, node if isinstance(node, ir.Function) else function)
        for inner in bodies(node):
            yield from _with_function(inner, function)


def _changes(node: ir.Stmt, holder: str, attribute: str) -> bool:
    """Whether a statement assigns ``holder.attribute``, or has ``holder`` take over settings."""
    if isinstance(node, ir.Assign) and any(_is_attribute(target, holder, attribute) for target in node.targets):
        return True
    return any(
        isinstance(part, ir.Call) and _takes_over(part, holder)
        for expression in expressions(node)
        for part in walk(expression)
    )


def _is_attribute(expr: ir.Expr, holder: str, attribute: str) -> bool:
    return isinstance(expr, ir.Attr) and expr.name == attribute and last_word(expr.base) == holder


def _takes_over(call: ir.Call, holder: str) -> bool:
    if any(arg.keyword == "namespace" and last_word(arg.value) == holder for arg in call.args):
        return True
    if last_word(call.func) == "setattr" and call.args:
        return last_word(call.args[0].value) == holder
    base = call.func.base if isinstance(call.func, ir.Attr) and call.func.name in _CHANGING else None
    if isinstance(base, ir.Attr) and base.name == "__dict__":
        base = base.base
    return base is not None and last_word(base) == holder
