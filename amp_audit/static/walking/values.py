"""What an expression can be, as far as mixed-precision training cares. All values are immutable and hashable."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Hashable
from dataclasses import field
from typing import TypeAlias

from amp_audit.records import record
from amp_audit.static.binding.project import ClassRef, External, ModuleRef
from amp_audit.static.source import ir
from amp_audit.static.source.layout import INSTALLED

Owners: TypeAlias = frozenset[Hashable]
_LONG = 240
_ROUND = re.compile(r"~(\d+):\(")
_SETTINGS = ("torch.backends.", "torch.version.", "torch.__version__")
_CLASS = re.compile(r".*\.[A-Z]\w*[a-z]\w*")
MOST_KEPT = 1 << 16
"""Answers of a function that are kept: a project asks for the same few thousand by the hundred thousand."""


@record(frozen=True, slots=True)
class Giver:
    """What gave a value: the id of an instance, the name of a symbol, None for a function; and what it was ``handed``
    before (optimizer | schedule | scaler).
    """

    id: Hashable
    handed: frozenset[str]


@record(frozen=True, slots=True)
class Symbol:
    """Something unknown that keeps its identity: a parameter, an attribute of one, the result of an unknown call.

    ``key`` names it across functions, ``text`` is the dotted name by which the code at hand calls it (``""``: none),
    by which it is recognised through the methods used on it. ``volatile``: it changes from iteration to iteration.
    ``param``: it came from outside the code that was followed. ``giver``: what gave it, or what it is a part of, in
    exchange for something of its kind.
    """

    key: str
    text: str = ""
    volatile: bool = False
    param: bool = False
    giver: Giver | None = None


@record(frozen=True, slots=True)
class Literal:
    value: object
    kind: str = ""  # the type's name, so that 1 and True and 1.0 stay apart

    @classmethod
    def of(cls, value: object) -> Literal:
        return cls(value, type(value).__name__)


@functools.lru_cache(maxsize=MOST_KEPT, typed=True)
def constant(value: Hashable) -> Literal:
    """A literal as the code has it: the same object each time, so that paths which hold it need not be compared."""
    return Literal.of(value)


NONE = Literal.of(None)


@record(frozen=True, slots=True)
class Condition:
    """A truth value that is not known: ``key`` identifies it, ``negated`` turns it round."""

    key: str
    negated: bool = False
    volatile: bool = False


@record(frozen=True, slots=True)
class Scaler:
    """A GradScaler. A disabled one does nothing: scale is the identity and step is the optimizer's own. ``sharded``: it
    tells the other ranks what it finds.
    """

    id: Hashable
    enabled: bool = True
    text: str = ""
    sharded: bool = False


@record(frozen=True, slots=True)
class Scale:
    """``scaler.get_scale()``, read at a place; ``inverse``: one over it."""

    scaler: Hashable
    read: Hashable
    inverse: bool = False


@record(frozen=True, slots=True)
class Optimizer:
    id: Hashable
    closure: bool = False  # LBFGS and its like need a closure


@record(frozen=True, slots=True)
class Scheduler:
    id: Hashable


@record(frozen=True, slots=True)
class Region:
    """An autocast object; ``dtype`` is None when it cannot be told."""

    device: str | None
    dtype: str | None
    enabled: bool
    cache: bool = True


@record(frozen=True, slots=True)
class NoGrad:
    """``torch.no_grad()`` or (``inference``) ``torch.inference_mode()``, whose tensors never require a gradient."""

    inference: bool = False


@record(frozen=True, slots=True)
class Instance:
    """An object of a class that is read, or of an nn.Module of a library (then ``cls`` is None)."""

    id: Hashable
    cls: ClassRef | None = None
    model: bool = False


@record(frozen=True, slots=True)
class Parameters:
    """Parameters, parameter groups or gradients of ``owners``; empty when nobody knows whose. ``part``: perhaps not all
    that they have. ``within``: the models that they are a part of, where the part is not seen. ``named``: each comes
    with its name.
    """

    owners: Owners = frozenset()
    part: bool = False
    within: Owners = frozenset()
    named: bool = False


@record(frozen=True, slots=True)
class Tensor:
    """A tensor on its way to a loss. ``scaled``: the id of the scaler whose scale it carries; ``doubt``: it may carry
    one that was not seen. ``dtype``: of the autocast region in which it was computed. ``leaf``: made anew from a
    number, so that no gradient gets past it. ``divided``: what it may have been divided by, or multiplied with.
    ``ran``: where the models it comes from ran: inside a region, outside of any, where autocast is off, unknown.
    ``cut``: it has been detached. ``plain``: a term that carries no scale was added to one that does. ``taken``: what
    ``autograd.grad`` gave of a scaled loss, the ``gradients`` or a ``penalty`` that is made of them, as long as nothing
    can have divided them by the scale.
    """

    owners: Owners = frozenset()
    dtype: str | None = None
    scaled: Hashable = None
    doubt: bool = False
    leaf: bool = False
    divided: frozenset[Hashable] = frozenset()
    ran: frozenset[str] = frozenset()
    plain: bool = False
    cut: bool = False
    taken: str = ""


GRADIENT = Tensor(doubt=True)
"""A gradient used as a value: it may carry the scale, and so may what is computed from it."""


@record(frozen=True, slots=True)
class StateDict:
    """The result of ``x.state_dict()``; ``of``: model | optimizer | scaler."""

    of: str


@record(frozen=True, slots=True)
class Items:
    """A tuple, list or set whose items are known."""

    items: tuple[Value, ...]


@record(frozen=True, slots=True)
class Table:
    """A dict whose string keys are known; ``open``: there may be more in it."""

    items: tuple[tuple[object, Value], ...] = ()
    open: bool = False

    def get(self, key: object) -> Value | None:
        return next((value for name, value in self.items if name == key), None)

    def put(self, key: object, value: Value) -> Table:
        return Table((*(pair for pair in self.items if pair[0] != key), (key, value)), self.open)


@record(frozen=True, slots=True, eq=False)
class Func:
    """A function of the project, perhaps bound to ``self``; ``env`` is the frame it was defined in."""

    module: ir.Module
    function: ir.Function
    bound: Value | None = None
    env: dict[str, Value] = field(default_factory=dict)
    cls: ClassRef | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Func) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return (self.module.path, self.function.at, self.bound)


@record(frozen=True, slots=True)
class Partial:
    """``functools.partial(func, *args, **named)``."""

    func: Value
    args: tuple[Value, ...] = ()
    named: tuple[tuple[str, Value], ...] = ()


@record(frozen=True, slots=True)
class Method:
    """A method of something that is not a class of the project."""

    base: Value
    name: str


@record(frozen=True, slots=True)
class Super:
    bound: Value
    cls: ClassRef


Value: TypeAlias = (
    Symbol
    | Literal
    | External
    | Condition
    | Scaler
    | Scale
    | Optimizer
    | Scheduler
    | Region
    | NoGrad
    | Instance
    | Parameters
    | Tensor
    | StateDict
    | Items
    | Table
    | Func
    | Partial
    | ClassRef
    | ModuleRef
    | Method
    | Super
)


def is_none(value: Value) -> bool:
    return isinstance(value, Literal) and value.value is None


def is_gradient(value: Value) -> bool:
    """Whether it is ``p.grad``, or a gradient whose owner is not known."""
    return value is GRADIENT or (isinstance(value, Method) and value.name == "grad")


def is_there(external: External) -> bool:
    """Whether something of a library is a module, class, function or dtype; else it may be a setting: of a
    configuration that was not found (``FLAGS.fp16``), or of torch itself (``torch.version.hip``).
    """
    top, dot, _ = external.dotted.partition(".")
    if external.dotted.startswith(_SETTINGS):
        return False
    return not dot or top in INSTALLED or _CLASS.fullmatch(external.dotted) is not None


def inside(*values: Value) -> list[Value]:
    """The values, and all that the containers in them hold."""
    found: list[Value] = []
    for value in values:
        found.append(value)
        if isinstance(value, Items):
            found += inside(*value.items)
        elif isinstance(value, Table):
            found += inside(*(item for _, item in value.items))
    return found


@functools.cache
def tag(path: str) -> str:
    """A file in a key: its path would make keys, and what becomes of long ones, depend on where a project lies."""
    return hashlib.blake2b(path.encode(errors="surrogateescape"), digest_size=6).hexdigest()


@functools.lru_cache(maxsize=MOST_KEPT)
def label(identity: Hashable) -> str:
    """The identity of something that was built at a place, in a key."""
    if isinstance(identity, tuple):
        return f"({','.join(tag(each) if isinstance(each, str) else label(each) for each in identity)})"
    return str(identity)


def key_of(value: Value) -> str:
    """A text that identifies a value for the sake of conditions."""
    if isinstance(value, Symbol):
        return value.key
    if isinstance(value, Literal):
        return repr(value.value)
    if isinstance(value, External):
        return value.dotted
    if isinstance(value, Condition):
        return f"not {value.key}" if value.negated else value.key
    if isinstance(value, (Scaler, Optimizer, Instance)):
        return f"{type(value).__name__}{label(value.id)}"
    if isinstance(value, Scale):
        return f"{label(value.scaler)}.get_scale() at {label(value.read)}"
    if isinstance(value, Func):
        return f"{tag(value.module.path)}:{value.function.qualname}"
    if isinstance(value, Method):
        return f"{key_of(value.base)}.{value.name}"
    if isinstance(value, Items):
        return short(f"({','.join(map(key_of, value.items))})")
    if isinstance(value, Table):
        return short(f"{{{','.join(f'{key}:{key_of(item)}' for key, item in value.items)}{'...' * value.open}}}")
    return type(value).__name__


def short(text: str) -> str:
    """A key of bounded length, equal for equal texts."""
    return text if len(text) <= _LONG else f"{text[:40]}…{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def of_round(key: str, stamp: tuple[int, ...]) -> str:
    """The key of what is made in a round of loops and stays as it is within that round."""
    return short(f"~{len(stamp)}:{stamp}:{key}")


def rounds_of(key: str) -> int:
    """In how many loops that was made of which a condition speaks."""
    return max(map(int, _ROUND.findall(key)), default=0) if "~" in key else 0


def extended(key: str, name: str) -> str:
    """The key of an attribute. It ends with the name, by which the key of what has it is found again, as long as chains
    of attributes are not endless.
    """
    return f"{key}.{name}" if len(key) < 2 * _LONG else short(f"{key}.{name}")


def indexed(key: str, index: str) -> str:
    """The key of an item, from which that of what holds it is read likewise."""
    return f"{key}[{index}]" if len(key) < 2 * _LONG else short(f"{key}[{index}]")


_AMONG = " in {"


def among(items: tuple[Value, ...]) -> str:
    """The test for being one of several constants, as part of a condition's key; their order does not matter."""
    return f"{_AMONG}{'|'.join(sorted(map(key_of, items)))}}}"


@functools.lru_cache(maxsize=MOST_KEPT)
def options(key: str) -> tuple[str, frozenset[str]]:
    """What a condition of equality, or of being among constants, speaks of, and the values it asks for; else empty."""
    subject, equals, value = key.rpartition(" == ")
    if equals:
        return subject, frozenset({value})
    subject, within, values = key.rpartition(_AMONG)
    return (subject, frozenset(values.rstrip("}").split("|"))) if within and "…" not in values else ("", frozenset())


def is_volatile(value: Value) -> bool:
    if isinstance(value, (Symbol, Condition)):
        return value.volatile
    return isinstance(value, (Tensor, Scale)) or (isinstance(value, Items) and any(map(is_volatile, value.items)))
