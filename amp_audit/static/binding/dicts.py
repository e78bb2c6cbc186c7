"""Dicts that the code spells out, and whether it changes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from amp_audit.static.source import ir
from amp_audit.static.source.traverse import last_word, parts, statements

_CHANGES = frozenset({"update", "setdefault", "pop", "popitem", "clear"})


def is_dict(expr: ir.Expr) -> bool:
    """A dict display, or a call of ``dict`` with keywords."""
    return isinstance(expr, ir.Mapping) or (
        isinstance(expr, ir.Call) and isinstance(expr.func, ir.Name) and expr.func.id == "dict"
    )


def entries(config: ir.Expr) -> Iterator[tuple[str, ir.Expr]]:
    """The values of a dict by their keys, those that are literal texts."""
    if isinstance(config, ir.Mapping):
        for key, value in config.items:
            if isinstance(key, ir.Const) and isinstance(key.value, str):
                yield key.value, value
    elif isinstance(config, ir.Call) and is_dict(config):
        yield from ((arg.keyword, arg.value) for arg in config.args if arg.keyword is not None)


def spelled_out(config: ir.Expr | None) -> Mapping[str, ir.Expr] | None:
    """The entries of a dict all of whose keys are literal texts; None for all else."""
    if config is None or not is_dict(config):
        return None
    found = dict(entries(config))
    size = (
        len(config.items) if isinstance(config, ir.Mapping) else len(config.args) if isinstance(config, ir.Call) else 0
    )
    return found if len(found) == size else None


def changed(module: ir.Module) -> frozenset[str]:
    """The names of the dicts that a module may write into, or take from."""
    return frozenset(_changed(module)) - {""}


def _changed(module: ir.Module) -> Iterator[str]:
    for node in statements(module.body, into=True):
        targets: Sequence[ir.Expr] = node.targets if isinstance(node, (ir.Assign, ir.Delete)) else ()
        yield from (last_word(target.base) for target in targets if isinstance(target, ir.Subscript))
        if isinstance(node, ir.Augment):
            yield last_word(_written(node.target))
    for part in parts(module.body, into=True) if not _CHANGES.isdisjoint(module.words) else ():
        if isinstance(part, ir.Call) and isinstance(part.func, ir.Attr) and part.func.name in _CHANGES:
            yield last_word(part.func.base)


def _written(target: ir.Expr) -> ir.Expr:
    return target.base if isinstance(target, ir.Subscript) else target
