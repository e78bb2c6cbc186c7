"""Dicts that the code spells out, and whether it changes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from amp_audit.records import replace
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


def filled(body: Sequence[ir.Stmt]) -> Iterator[ir.Mapping]:
    """The dicts that a body spells out and then fills, key by key or by ``update``, as they are in the end. None that
    it writes into under a condition.
    """
    found: dict[str, ir.Mapping] = {}
    grown: set[str] = set()
    for node in body:
        target = node.targets[0] if isinstance(node, ir.Assign) and len(node.targets) == 1 else None
        if isinstance(node, ir.Assign) and isinstance(target, ir.Name):
            grown.discard(target.id)
            found[target.id] = _as_mapping(node.value)
        elif isinstance(node, ir.Assign) and isinstance(target, ir.Subscript) and (path := _path(target)) is not None:
            name, keys = path
            found[name] = _put(found.get(name), keys, node.value)
            grown.add(name)
        elif isinstance(node, ir.Evaluate) and (more := _updated(node.value)) is not None:
            for key, value in entries(more[1]):
                found[more[0]] = _put(found.get(more[0]), (key,), value)
            grown.add(more[0])
        else:
            for name in _changed_in([node]):
                found.pop(name, None)
    yield from (config for name, config in found.items() if name in grown)


def _as_mapping(value: ir.Expr) -> ir.Mapping:
    items = entries(value) if is_dict(value) else ()
    return ir.Mapping(value.at, tuple((ir.Const(value.at, key), each) for key, each in items))


def _path(target: ir.Expr) -> tuple[str, tuple[str, ...]] | None:
    """The name and the keys of ``name["key"]["other"]``."""
    keys: tuple[str, ...] = ()
    while isinstance(target, ir.Subscript):
        if not isinstance(target.index, ir.Const) or not isinstance(target.index.value, str):
            return None
        keys, target = (target.index.value, *keys), target.base
    return (target.id, keys) if isinstance(target, ir.Name) and keys else None


def _put(config: ir.Expr | None, keys: Sequence[str], value: ir.Expr) -> ir.Mapping:
    held = _as_mapping(config) if config is not None else ir.Mapping(value.at, ())
    inner = dict(entries(held)).get(keys[0])
    new = _put(inner, keys[1:], value) if len(keys) > 1 else value
    others = tuple((key, each) for key, each in held.items if not (isinstance(key, ir.Const) and key.value == keys[0]))
    return replace(held, items=(*others, (ir.Const(value.at, keys[0]), new)))


def _updated(call: ir.Expr) -> tuple[str, ir.Expr] | None:
    """The name and the dict of ``name.update({...})``."""
    if not isinstance(call, ir.Call) or not isinstance(call.func, ir.Attr) or call.func.name != "update":
        return None
    base, given = call.func.base, call.args[0] if len(call.args) == 1 else None
    if not isinstance(base, ir.Name) or given is None or given.keyword is not None or not is_dict(given.value):
        return None
    return base.id, given.value


def changed(module: ir.Module) -> frozenset[str]:
    """The names of the dicts that a module may write into, or take from."""
    return frozenset(_changed_in(module.body, not _CHANGES.isdisjoint(module.words))) - {""}


def _changed_in(body: Sequence[ir.Stmt], calls: bool = True) -> Iterator[str]:
    for node in statements(body, into=True):
        targets: Sequence[ir.Expr] = node.targets if isinstance(node, (ir.Assign, ir.Delete)) else ()
        yield from (last_word(target.base) for target in targets if isinstance(target, ir.Subscript))
        if isinstance(node, ir.Augment):
            yield last_word(_written(node.target))
    for part in parts(body, into=True) if calls else ():
        if isinstance(part, ir.Call) and isinstance(part.func, ir.Attr) and part.func.name in _CHANGES:
            yield last_word(part.func.base)


def _written(target: ir.Expr) -> ir.Expr:
    return target.base if isinstance(target, ir.Subscript) else target
