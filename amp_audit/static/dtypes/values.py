"""Abstract values: what an expression can be, as far as dtypes go. All are immutable and hashable.

The dtype of a tensor is the set of dtypes it may have. ``UNKNOWN`` in the set stands for any other; ``LOW`` for
float16 or bfloat16 where the code does not tell which. Values joined from two paths keep the dtypes of both.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Hashable, Iterable
from functools import reduce
from itertools import product
from typing import Literal, TypeAlias

from amp_audit import policy
from amp_audit.records import record, replace
from amp_audit.static.binding.project import ClassRef, External, ModuleRef
from amp_audit.static.source import ir
from amp_audit.static.source.conditions import NO_FACTS, Facts

UNKNOWN = "?"
LOW = "low"
HALVES = frozenset({"float16", "bfloat16", LOW})
Dtypes: TypeAlias = frozenset[str]
ANY: Dtypes = frozenset({UNKNOWN})
FLOAT32: Dtypes = frozenset({"float32"})

NAMES = {
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
    "double": "float64",
    "float64": "float64",
    "bool": "bool",
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "short", "int", "long"), "int"),
    **dict.fromkeys(("complex64", "complex128", "cfloat", "cdouble", "chalf"), UNKNOWN),
}
"""The dtypes of torch by their names, as this module calls them (integers are one)."""


Origin = Literal["", "region", "cast", "model", "weights", "loaded"]
"""Why a tensor has its dtype. ``region``: an op of a live region made it low. ``cast``: the code cast it; for float32
only as long as no op has used it but to move, centre or scale what was low. ``model``: a model out of sight made it in
a live region, and is taken to end in an op that the region lowers. ``weights``: it is a parameter of a model that was
cast. ``loaded``: a model that a library loaded in that dtype returned it. Empty: none of these."""
_OF_LOADED = frozenset(
    {"last_hidden_state", "hidden_states", "pooler_output", "logits", "image_embeds", "text_embeds", "sample"}
)
"""What of the output of a loaded model is in the dtype of its weights."""


@record(frozen=True, slots=True)
class Widened:
    """That a float32 table met a low-precision tensor at ``place`` of the function ``within``, so that the result is
    float32. ``op``: the op there; ``dtypes`` and ``by``: those of the tensor that was low.

    ``ran``: the first op that computed in float32 because of it, and where. ``spent``: an op that autocast runs in
    float32 anyway has taken it, so that what follows does not run in float32 because of the table.
    """

    place: tuple[str, int]
    within: tuple[str, int] | None
    op: str
    dtypes: Dtypes
    by: str
    assumed: bool = False
    ran: tuple[str, tuple[str, int]] | None = None
    spent: bool = False


@record(frozen=True, slots=True)
class Tensor:
    """``by``: the op that gave it its dtype, for messages. ``assumed``: its dtype rests on an assumption. ``scalar``:
    it is known to have no dimension, and so does not widen the dtype of tensors that have. ``last``: the op that
    computed it. ``filled``: a constant that some of its elements are. ``counted``: it was computed from ``arange``.
    ``table``: it was made of numbers alone, by no data and no weights, and surely has a dimension. ``widened``: the
    tables that made it float32. ``fitted``: it was just cast to the dtype that another tensor has. ``of``: the models
    of whose weights it is a combination.
    """

    dtypes: Dtypes = ANY
    by: str = ""
    assumed: bool = False
    scalar: bool = False
    origin: Origin = ""
    last: str = ""
    filled: Const | None = None
    counted: bool = False
    table: bool = False
    widened: frozenset[Widened] = frozenset()
    fitted: bool = False
    of: frozenset[Hashable] = frozenset()

    @property
    def low(self) -> bool:
        """Whether it can be in low precision."""
        return bool(self.dtypes & HALVES)


@record(frozen=True, slots=True)
class Const:
    """A Python number, text or None. ``assumed``: the default of a parameter, which a caller may replace."""

    value: object
    kind: str = ""
    assumed: bool = False

    @classmethod
    def of(cls, value: object, assumed: bool = False) -> Const:
        return cls(value, type(value).__name__, assumed)

    @property
    def number(self) -> float | None:
        """The value as a float; None for what is no number."""
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            return None
        try:
            return float(self.value)
        except OverflowError:
            return math.inf if self.value > 0 else -math.inf


@record(frozen=True, slots=True)
class DType:
    """A ``torch.dtype``. ``borrowed``: it is that of some tensor, not one that the code names."""

    dtypes: Dtypes
    assumed: bool = False
    borrowed: bool = False


@record(frozen=True, slots=True)
class Info:
    """``torch.finfo(dtype)``."""

    dtypes: Dtypes


@record(frozen=True, slots=True)
class Items:
    """A tuple or list whose items are known."""

    items: tuple[Value, ...]


@record(frozen=True, slots=True)
class Table:
    """A dict whose keys are constants, and perhaps ``REST``, which stands for those that the code does not tell."""

    items: tuple[tuple[object, Value], ...]

    def get(self, key: object) -> Value | None:
        found = next((value for name, value in self.items if name == key), None)
        return found if found is not None or key is REST else self.get(REST)

    def put(self, key: object, value: Value) -> Table:
        return Table((*(pair for pair in self.items if pair[0] != key), (key, value)))


REST = "<others>"
"""The key of what a dict holds under names that are not known."""


@record(frozen=True, slots=True)
class Many:
    """Any number of alike values: a list built in a loop, the chunks of a tensor, an ``nn.ModuleList``."""

    item: Value


@record(frozen=True, slots=True)
class Layer:
    """A module of ``torch.nn``: ``op`` is the function it applies, or ``sequential`` with its ``parts`` in order."""

    id: Hashable
    op: str
    parts: tuple[Value, ...] = ()


@record(frozen=True, slots=True)
class Object:
    """An instance of a class of the project."""

    id: Hashable
    cls: ClassRef


@record(frozen=True, slots=True)
class Opaque:
    """Something unknown that keeps its identity: a parameter, an attribute of one, the result of an unknown call.

    ``text``: the name by which the code calls it. ``number``: a size, a factor, an option: no tensor.
    ``dtypes``: what it was cast to, should it be a tensor, or what it is as the output of a model (``origin``).
    ``assumed``: to which dtype that was is an assumption. ``fitted``: it was the dtype that a tensor has.
    """

    id: Hashable
    text: str = ""
    number: bool = False
    dtypes: Dtypes = ANY
    origin: Origin = ""
    assumed: bool = False
    fitted: bool = False


@record(frozen=True, slots=True, eq=False)
class Func:
    """A function of the project, perhaps bound; ``env`` holds the names of the function around it."""

    module: ir.Module
    function: ir.Function
    bound: Value | None = None
    env: dict[str, Value] | None = None
    cls: ClassRef | None = None
    partial: tuple[tuple[str | None, Value], ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Func) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return (self.module.path, self.function.at, self.bound, self.partial)


@record(frozen=True, slots=True)
class Method:
    """A method of something that is no object of the project."""

    base: Value
    name: str


@record(frozen=True, slots=True)
class Super:
    bound: Value
    cls: ClassRef


@record(frozen=True, slots=True)
class Region:
    """An autocast object. ``enabled`` None: a flag says; such a region counts as live, that is when hazards are.

    ``assumed``: its device or dtype could not be read and CUDA was taken. ``facts``: what is known where it is on.
    """

    device: str
    dtypes: Dtypes
    enabled: bool | None = True
    assumed: bool = False
    facts: Facts = NO_FACTS

    @property
    def live(self) -> bool:
        return self.enabled is not False and bool(self.dtypes & (HALVES | ANY))


UNASKED = ("", True)
"""A choice of parameters by a condition around, which is not looked at."""


@record(frozen=True, slots=True)
class Params:
    """The parameters of models. ``partly``: some may be left out (a filter on requires_grad, a named subset).
    ``fresh``: it is seen where the models are made, and all of their parameters are trained as they come.
    ``choices``: by which tests on names or shapes those here were chosen, where nothing else leaves any out: what is
    asked, and whether that is to hold; no text for a choice of which the test is not known.
    """

    of: frozenset[Hashable]
    partly: bool = False
    fresh: bool = False
    choices: tuple[tuple[str, bool], ...] = ()


@record(frozen=True, slots=True)
class Optimizer:
    id: Hashable


@record(frozen=True, slots=True, eq=False)
class Either:
    """One of a few values, from different paths, in the order in which they were met; the order makes no difference."""

    options: tuple[Value, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Either) and {*self.options} == {*other.options}

    def __hash__(self) -> int:
        return hash(frozenset(self.options))


Value: TypeAlias = (
    Tensor
    | Const
    | DType
    | Info
    | Items
    | Table
    | Many
    | Layer
    | Object
    | Opaque
    | External
    | ModuleRef
    | ClassRef
    | Func
    | Method
    | Super
    | Region
    | Params
    | Optimizer
    | Either
)

NOTHING = Opaque("")
"""Unknown, and not worth telling apart."""
NUMBER = Opaque("number", number=True)
"""An unknown Python number."""
HALVED = Opaque("halved", number=True)
"""Half of an unknown number: of a width, whose halves are the pairs of a rotary or sinusoidal embedding."""
SIDE = Opaque("side", number=True)
"""The height or width of an image or a map of features, by the name that a shape is unpacked into."""
_MAX_OPTIONS = 6


def together(found: Collection[Params]) -> Params:
    """All of these parameters as one value."""
    partly = [one for one in found if one.partly]
    chosen = all(one.choices and one.of == partly[0].of for one in partly)
    return Params(
        frozenset().union(*(one.of for one in found)),
        bool(partly),
        all(one.fresh for one in found),
        tuple(choice for one in partly for choice in one.choices) if chosen else (),
    )


def tensor(*dtypes: str, by: str = "", assumed: bool = False) -> Tensor:
    return Tensor(frozenset(dtypes or ANY), by, assumed)


def options(value: Value) -> Iterable[Value]:
    """The values that it may be."""
    return value.options if isinstance(value, Either) else (value,)


def join(one: Value, two: Value) -> Value:
    """What holds after two paths meet."""
    if one is two or one == two:
        return one
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return _joined(one, two)
    if isinstance(one, Items) and isinstance(two, Items) and len(one.items) == len(two.items):
        return Items(tuple(map(join, one.items, two.items)))
    if isinstance(one, DType) and isinstance(two, DType):
        return DType(one.dtypes | two.dtypes, one.assumed or two.assumed, one.borrowed or two.borrowed)
    if isinstance(one, (Items, Many)) and isinstance(two, (Items, Many)):
        filled = [value for value in (one, two) if value != Items(())]  # what is empty adds no item
        return Many(reduce(join, map(element, filled)))
    if isinstance(one, Table) and isinstance(two, Table) and is_filled(one) and is_filled(two):
        return (
            Table(((REST, join(one.items[0][1], two.items[0][1])),)) if one.items and two.items else _longer(one, two)
        )
    if isinstance(one, Params) and isinstance(two, Params):
        both = together((one, two))
        return replace(both, choices=both.choices[:1])
    if is_none(one) or is_none(two):
        return two if is_none(one) else one
    return _either(one, two)


def is_filled(table: Table) -> bool:
    """Whether a dict is empty, or filled under names that are not known."""
    return all(key == REST for key, _ in table.items)


def _longer(one: Table, two: Table) -> Table:
    return max(one, two, key=lambda table: len(table.items))


def _joined(one: Tensor, two: Tensor) -> Tensor:
    return Tensor(
        one.dtypes | two.dtypes,
        one.by or two.by,
        one.assumed or two.assumed,
        one.scalar and two.scalar,
        one.origin or two.origin,
        one.last if one.last == two.last else "",
        one.filled or two.filled,
        one.counted or two.counted,
        one.table and two.table,
        one.widened | two.widened,
        one.fitted or two.fitted,
        one.of | two.of,
    )


def _either(one: Value, two: Value) -> Value:
    merged: list[Value] = []
    for value in (*options(one), *options(two)):
        if value not in merged:
            merged.append(value)
    tensors: list[Value] = [value for value in merged if isinstance(value, Tensor)]
    if len(tensors) > 1:
        whole = reduce(join, tensors)
        merged = [whole, *(value for value in merged if not isinstance(value, Tensor))]
    return merged[0] if len(merged) == 1 else Either(tuple(merged)) if len(merged) <= _MAX_OPTIONS else NOTHING


def element(value: Value) -> Value:
    """What iterating over a value gives."""
    if isinstance(value, Many):
        return value.item
    if isinstance(value, Items):
        return reduce(join, value.items) if value.items else NOTHING
    if isinstance(value, Tensor) and value.table:
        return replace(value, table=False)  # of a vector it gives numbers
    if isinstance(value, (Tensor, Params)):
        return value
    if isinstance(value, Layer) and value.parts:
        return reduce(join, value.parts)
    if isinstance(value, Either):
        return reduce(join, map(element, value.options))
    if isinstance(value, Opaque) and value.id:
        return Opaque((value, "[]"), dtypes=value.dtypes, origin=value.origin)
    return NOTHING


def by_name(pairs: Value) -> Value:
    """A dict of pairs, if they are the parameters of a model by their names."""
    pair = pairs.item if isinstance(pairs, Many) else NOTHING
    named = isinstance(pair, Items) and len(pair.items) == 2 and isinstance(pair.items[1], Params)
    return pair.items[1] if named and isinstance(pair, Items) else pairs


def part_of(output: Opaque, part: Opaque, name: str) -> Opaque:
    """``part`` as the part of that name of a model's output: in the region's dtype too, unless it is a loss; of a
    loaded model, in that of its weights if it is known to be.
    """
    if output.origin == "loaded" and name in _OF_LOADED:
        return replace(part, dtypes=output.dtypes, origin="loaded")
    if output.origin != "model" or part.number:
        return part
    if "loss" in name.lower():
        return replace(part, dtypes=ANY, origin="")
    return replace(part, dtypes=output.dtypes, origin="model")


def extended(before: Items | Many, added: Value) -> Value:
    if isinstance(before, Items) and isinstance(added, Items) and len(before.items) + len(added.items) <= 64:
        return Items((*before.items, *added.items))
    if isinstance(before, Items) and not before.items:
        return added if isinstance(added, (Items, Many)) else Many(element(added))
    return Many(join(element(before), element(added)))


def is_none(value: Value) -> bool:
    return isinstance(value, Const) and value.value is None


def _whole(parts: Iterable[Value]) -> Value | None:
    several = [*parts]
    return reduce(join, several) if several else None


def as_tensor(value: Value) -> Tensor | None:
    """A value taken as a tensor, its dtype unknown where the value is; None for what is a number or no tensor."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Opaque):
        return (
            None
            if value.number
            else Tensor(
                value.dtypes,
                value.text if value.origin in ("model", "loaded") else "",
                value.assumed,
                origin=value.origin,
                fitted=value.fitted,
            )
        )
    if isinstance(value, Either):
        parts = [part for part in map(as_tensor, value.options) if part is not None]
        whole = _whole(parts)
        return whole if isinstance(whole, Tensor) else None
    if isinstance(value, (Items, Many)):
        return as_tensor(element(value))
    return Tensor() if isinstance(value, Params) else None


def promote(several: Iterable[Dtypes]) -> Dtypes:
    """Elementwise type promotion over sets; what is unknown may be as wide as any."""
    sets = [*several]
    if not sets:
        return ANY
    if math.prod(map(len, sets)) > 256:
        return ANY
    return frozenset(_promote(combination) for combination in product(*sets))


def _promote(dtypes: tuple[str, ...]) -> str:
    known = {dtype for dtype in dtypes if dtype not in (UNKNOWN, LOW)}
    widest = policy.promote(known)
    if widest in ("float32", "float64"):
        return widest  # an unknown one is no wider, as a rule
    if UNKNOWN in dtypes:
        return UNKNOWN
    if LOW in dtypes:
        return LOW if widest is None else UNKNOWN
    return widest or ("int" if "int" in known else "bool")


def rounded(value: float, dtype: str) -> float:
    """``value`` in float16 or bfloat16, to nearest, ties to even; beyond the largest finite number: infinity."""
    if dtype == "float16":
        try:
            return float(struct.unpack("<e", struct.pack("<e", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    if dtype != "bfloat16":
        raise ValueError(f"not a low-precision dtype: {dtype!r}")
    if math.isinf(value) or math.isnan(value):
        return value
    try:
        bits = int.from_bytes(struct.pack("<f", value), "little")
    except OverflowError:
        return math.copysign(math.inf, value)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", bits.to_bytes(4, "little"))[0])
