"""What objects keep, and which models and layers a value is or holds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from types import MappingProxyType

from amp_audit.static.dtypes.arguments import flat
from amp_audit.static.dtypes.values import Items, Layer, Many, Object, Opaque, Params, Table, Value, element, options

MODEL_KINDS = (Layer, Object, Opaque)
"""What a model can be."""

_NOTHING_KEPT: Mapping[str, Value] = MappingProxyType({})


class Heap:
    """What objects and models keep, by their identities and the names of attributes."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, dict[str, Value]] = {}
        self._holders: dict[Hashable, dict[Hashable, int]] = {}  # of models -> by how many attributes

    def of(self, owner: Hashable) -> Mapping[str, Value]:
        """What an object keeps."""
        return self._kept.get(owner, _NOTHING_KEPT)

    def keep(self, owner: Hashable, name: str, value: Value) -> None:
        """An object keeps a value under a name, in place of what it had there."""
        kept = self._kept.setdefault(owner, {})
        before = kept.get(name)
        kept[name] = value
        if value is before:
            return
        for model in models_held(value):
            holders = self._holders.setdefault(model, {})
            holders[owner] = holders.get(owner, 0) + 1
        for model in models_held(before) if before is not None else ():
            holders = self._holders[model]
            holders[owner] -= 1
            if not holders[owner]:
                del holders[owner]

    def around(self, model: Hashable) -> set[Hashable]:
        """The models that a model is a part of, itself included."""
        todo, found = [model], {model}
        while todo:
            for holder in self._holders.get(todo.pop(), ()):
                if holder not in found:
                    found.add(holder)
                    todo.append(holder)
        while isinstance(model, tuple) and len(model) == 2 and not isinstance(model[1], int):
            model = model[0]
            found.add(model)
        return found


def models_held(value: Value) -> Iterator[Hashable]:
    """The models that an attribute holds."""
    for option in options(value):
        if isinstance(option, (Items, Many, Table)):
            held = [element(option)] if isinstance(option, Many) else _held(option)
            for inner in held:
                yield from models_held(inner)
        elif isinstance(option, MODEL_KINDS) and option.id:
            yield option.id
            if isinstance(option, Layer):
                for part in option.parts:
                    yield from models_held(part)


def layers_held(value: Value) -> Iterator[Layer]:
    """The layers that an attribute holds."""
    for option in options(value):
        if isinstance(option, Layer):
            yield option
            for part in option.parts:
                yield from layers_held(part)
        elif isinstance(option, (Items, Many, Table)):
            for inner in [element(option)] if isinstance(option, Many) else _held(option):
                yield from layers_held(inner)


def _held(value: Items | Table) -> Iterable[Value]:
    return value.items if isinstance(value, Items) else [inner for _, inner in value.items]


def models_in(value: Value) -> Iterable[Hashable]:
    """The models that an argument is, or whose parameters it is."""
    for one in flat(value):
        for option in options(one):
            if isinstance(option, MODEL_KINDS) and option.id:
                yield option.id
            elif isinstance(option, Params):
                yield from option.of
