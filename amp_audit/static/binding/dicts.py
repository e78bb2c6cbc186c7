"""Dicts that the code spells out, and whether it changes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from amp_audit.static.source import ir
from amp_audit.static.source.traverse import last_word, parts, statements, walk

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
    found: dict[str, _Filled] = {}
    grown: set[str] = set()
    for node in body:
        target = node.targets[0] if isinstance(node, ir.Assign) and len(node.targets) == 1 else None
        path = _path(target) if isinstance(target, ir.Subscript) else None
        more = _updated(node.value) if isinstance(node, ir.Evaluate) else None
        if more is not None:
            held = found.setdefault(more[0], _Filled(node.at))
            for key, value in entries(more[1]):
                held.put((key,), value)
            grown.add(more[0])
            continue
        plain = isinstance(node, ir.Assign) and (isinstance(target, ir.Name) or path is not None)
        for name in _called_on([node]) if plain else {*_changed_in([node]), *_bound_in(node)}:
            found.pop(name, None)
        if isinstance(node, ir.Assign) and isinstance(target, ir.Name):
            grown.discard(target.id)
            found[target.id] = _Filled.of(node.value)
        elif isinstance(node, ir.Assign) and path is not None:
            found.setdefault(path[0], _Filled(node.at)).put(path[1], node.value)
            grown.add(path[0])
    yield from (config.mapping() for name, config in found.items() if name in grown)


@dataclass(slots=True)
class _Filled:
    """A dict while it is filled."""

    at: int
    items: dict[str, ir.Expr | _Filled] = field(default_factory=dict)

    @classmethod
    def of(cls, value: ir.Expr) -> _Filled:
        return cls(value.at, {**dict(entries(value))} if is_dict(value) else {})

    def put(self, keys: Sequence[str], value: ir.Expr) -> None:
        held = self
        for key in keys[:-1]:
            inner = held.items.get(key)
            if not isinstance(inner, _Filled):
                inner = held.items[key] = _Filled.of(inner) if inner is not None else _Filled(value.at)
            held = inner
        held.items[keys[-1]] = value

    def mapping(self) -> ir.Mapping:
        items = ((key, each.mapping() if isinstance(each, _Filled) else each) for key, each in self.items.items())
        return ir.Mapping(self.at, tuple((ir.Const(each.at, key), each) for key, each in items))


def _bound_in(node: ir.Stmt) -> Iterator[str]:
    """The names that a statement binds or deletes, and those within it."""
    for inner in statements([node]):
        targets: Sequence[ir.Expr | None] = ()
        if isinstance(inner, (ir.Assign, ir.Delete)):
            targets = inner.targets
        elif isinstance(inner, (ir.For, ir.Declare)):
            targets = (inner.target,)
        elif isinstance(inner, ir.With):
            targets = [target for _, target in inner.items]
        yield from (part.id for each in targets if each is not None for part in walk(each) if isinstance(part, ir.Name))


def _path(target: ir.Expr) -> tuple[str, tuple[str, ...]] | None:
    """The name and the keys of ``name["key"]["other"]``."""
    keys: tuple[str, ...] = ()
    while isinstance(target, ir.Subscript):
        if not isinstance(target.index, ir.Const) or not isinstance(target.index.value, str):
            return None
        keys, target = (target.index.value, *keys), target.base
    return (target.id, keys) if isinstance(target, ir.Name) and keys else None


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
    if calls:
        yield from _called_on(body)


def _called_on(body: Sequence[ir.Stmt]) -> Iterator[str]:
    """What is changed by a method of its own."""
    for part in parts(body, into=True):
        if isinstance(part, ir.Call) and isinstance(part.func, ir.Attr) and part.func.name in _CHANGES:
            yield last_word(part.func.base)


def _written(target: ir.Expr) -> ir.Expr:
    return target.base if isinstance(target, ir.Subscript) else target
