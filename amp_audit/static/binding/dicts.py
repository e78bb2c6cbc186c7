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


def stays(modules: Sequence[ir.Module], word: str) -> bool:
    """Whether a dict of this name is as it was made, as far as these modules show."""
    return bool(word) and not any(_changes(module, word) for module in modules)


def _changes(module: ir.Module, word: str) -> bool:
    """Whether a module writes into, or takes from, a dict of this name."""
    for node in statements(module.body, into=True):
        targets: Sequence[ir.Expr] = node.targets if isinstance(node, (ir.Assign, ir.Delete)) else ()
        if any(isinstance(target, ir.Subscript) and last_word(target.base) == word for target in targets):
            return True
        if isinstance(node, ir.Augment) and last_word(_written(node.target)) == word:
            return True
    calls = (part.func for part in parts(module.body, into=True) if isinstance(part, ir.Call))
    return any(isinstance(func, ir.Attr) and func.name in _CHANGES and last_word(func.base) == word for func in calls)


def _written(target: ir.Expr) -> ir.Expr:
    return target.base if isinstance(target, ir.Subscript) else target
