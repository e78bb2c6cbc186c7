"""Which models and layers a value is or holds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from amp_audit.static.dtypes.arguments import flat
from amp_audit.static.dtypes.values import Items, Layer, Many, Object, Opaque, Params, Table, Value, element, options

MODEL_KINDS = (Layer, Object, Opaque)
"""What a model can be."""


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
