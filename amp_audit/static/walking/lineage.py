"""Whose parameters, which dtype and which scale a value leads back to."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from amp_audit.records import replace
from amp_audit.state import region_dtype
from amp_audit.static.binding.project import External
from amp_audit.static.source import ir
from amp_audit.static.walking.values import (
    Instance,
    Items,
    Literal,
    Method,
    Parameters,
    Tensor,
    Value,
    inside,
)
from amp_audit.static.walking.world import World

if TYPE_CHECKING:
    pass

DTYPES = {
    "torch.float16": "float16",
    "torch.half": "float16",
    "torch.bfloat16": "bfloat16",
    "torch.float32": "float32",
    "torch.float": "float32",
}

UNSEEN: frozenset[Hashable] = frozenset({"?"})
"""What a loss was divided by whose origin was not seen."""

FROZEN, UNCACHED, SHARDED, REPLICATED = "#frozen", "#uncached", "#sharded", "#replicated"
REPLICATED_UNDER = "#replicated_under"
"""The key under which a world keeps the conditions around the place that makes a model one of DDP."""
LOWERED = "#lowered"
"""The dtype in which FSDP runs a model that it holds in float32."""


def thaw(world: World, owners: Iterable[Hashable]) -> None:
    """Forget of models that they are frozen."""
    for owner in owners:
        if world.heap.get((owner, FROZEN)) == Literal.of(True):
            world.put(owner, FROZEN, Literal.of(False))


def computed_in(world: World) -> str | None:
    """The dtype of the region in force; float32 where a region is there but off."""
    regions = world.state.regions
    return region_dtype(world.state) or ("float32" if regions and regions[-1].enabled is False else None)


def with_children(owner: Hashable, world: World) -> set[Hashable]:
    """A model and the models that it holds as attributes, as far as they were seen."""
    found, waiting = set(), [owner]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            held = [value for (holder, _), value in world.heap.items() if holder == each]
            waiting += [v.id for value in held for v in inside(value) if isinstance(v, Instance) and v.model]
    return found


def owners_of(value: Value) -> frozenset[Hashable]:
    """Whose parameters a value holds: a model's, a list of groups, a comprehension over them. Empty: unknown."""
    found: set[Hashable] = set()
    for item in inside(value):
        if isinstance(item, Parameters):
            if not item.owners:
                return frozenset()
            found |= item.owners
        elif isinstance(item, Instance) and item.model:
            found.add(item.id)
    return frozenset(found)


def are_sharded(owners: Iterable[Hashable] | None, world: World) -> bool:
    """Whether these owners' parameters are shards of FSDP."""
    return any(world.heap.get((owner, SHARDED)) == Literal.of(True) for owner in owners or ())


def own_body(world: World) -> tuple[ir.Stmt, ...]:
    """The body of the function at hand, or of the module."""
    function = world.frame.function
    return world.frame.module.body if function is None else function.body


def known(owners: Iterable[Hashable]) -> tuple[Hashable, ...] | None:
    return tuple(sorted(owners, key=repr)) or None


def together(tensors: list[Tensor], dtype: str | None) -> Tensor:
    """What is computed from some tensors, in this dtype or in theirs."""
    if len(tensors) == 1:  # most often
        (only,) = tensors
        carried, leaf, cut = None if only.doubt else only.scaled, only.leaf and not only.cut, only.doubt and only.cut
        return replace(only, dtype=dtype or only.dtype, scaled=carried, leaf=leaf, cut=cut)
    owners: frozenset[Hashable] = frozenset().union(*(t.owners for t in tensors))
    scaled = {t.scaled for t in tensors}
    dtypes = {t.dtype for t in tensors if t.dtype}
    doubt = any(t.doubt for t in tensors) or len(scaled) > 1
    word = dtype or (dtypes.pop() if len(dtypes) == 1 else None)
    divided: frozenset[Hashable] = frozenset().union(*(t.divided for t in tensors))
    ran: frozenset[str] = frozenset().union(*(t.ran for t in tensors))
    carried, leaf, plain = (
        None if doubt else scaled.pop(),
        all(t.leaf and not t.cut for t in tensors),
        any(t.plain for t in tensors),
    )
    cut = doubt and all(t.cut for t in tensors)
    taken = max((t.taken for t in tensors), default="")  # a penalty among gradients is one
    return Tensor(owners, word, carried, doubt, leaf, divided, ran, plain, cut, taken)


def written(values: Iterable[Value], world: World) -> None:
    """Gradients that carry the scale are written in place: under all names that they have here, it may be off."""
    if not any(isinstance(item, Tensor) and item.taken == "gradients" for item in inside(*values)):
        return
    world.env.update({name: _untaken(value) for name, value in world.env.items()})
    for (path, name), value in list(world.globals.items()):
        if _untaken(value) is not value:
            world.put_global(path, name, _untaken(value))


def _untaken(value: Value) -> Value:
    if isinstance(value, Items) and any(isinstance(item, Tensor) and item.taken for item in inside(value)):
        return Items(tuple(map(_untaken, value.items)))
    return replace(value, taken="") if isinstance(value, Tensor) and value.taken else value


def scaled(value: Value, scaler: Hashable) -> Value:
    if isinstance(value, Tensor):
        return replace(value, scaled=scaler, doubt=False, plain=False, taken="")
    return Tensor(scaled=scaler, divided=UNSEEN)


def argument(args: list[Value], named: dict[str, Value], name: str, index: int | None) -> Value | None:
    if name in named:
        return named[name]
    if index is not None and index < len(args) and not any(isinstance(a, Method) for a in args[: index + 1]):
        return args[index]
    return None


def dtype_of(value: Value | None) -> str | None:
    return DTYPES.get(value.dotted) if isinstance(value, External) else None
