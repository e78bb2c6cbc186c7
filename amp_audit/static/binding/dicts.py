"""Dicts that the code spells out, and the calls that unpack them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from amp_audit.static.binding.origins import Origins, Where
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


def unpacked(call: ir.Call, where: Where, origins: Origins) -> ir.Call:
    """A call with the keywords of the dicts in place of ``**name``, where each is one dict that nothing changes."""
    if not any(arg.star == "**" for arg in call.args):
        return call
    args: list[ir.Arg] = []
    for arg in call.args:
        found = _keywords(arg.value, where, origins) if arg.star == "**" else None
        args += [arg] if found is None else found
    return replace(call, args=tuple(args))


def _keywords(expr: ir.Expr, where: Where, origins: Origins) -> list[ir.Arg] | None:
    made = origins.of(expr, where)
    config = made[0].expr if len(made) == 1 else None
    if config is None or not is_dict(config) or not _is_closed(config):
        return None
    if config is not expr and not _stays((where.module, made[0].where.module), last_word(expr)):
        return None
    return [ir.Arg(value, keyword=key) for key, value in entries(config)]


def _is_closed(config: ir.Expr) -> bool:
    """Whether all keys of a dict are literal texts."""
    if isinstance(config, ir.Mapping):
        return all(isinstance(key, ir.Const) and isinstance(key.value, str) for key, _ in config.items)
    return isinstance(config, ir.Call) and all(arg.keyword is not None for arg in config.args)


def _stays(modules: Sequence[ir.Module], word: str) -> bool:
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
