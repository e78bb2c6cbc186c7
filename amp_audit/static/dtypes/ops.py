"""Ops under the region they run in: which dtype goes in, which comes out."""

from __future__ import annotations

import abc
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from amp_audit.records import record, replace
from amp_audit.static.dtypes import averages, surface, widening
from amp_audit.static.dtypes.arguments import (
    Named,
    cast_target,
    flat,
    is_device,
    is_dtype,
    numbers_of,
    only_multiplies,
    reinterpreted,
    told_dtype,
)
from amp_audit.static.dtypes.filling import filled, filling
from amp_audit.static.dtypes.holding import Heap
from amp_audit.static.dtypes.lasts import last_of
from amp_audit.static.dtypes.record import Cast, Place, Record, Training, Use
from amp_audit.static.dtypes.values import (
    ANY,
    FLOAT32,
    HALVES,
    NOTHING,
    NUMBER,
    Const,
    DType,
    Dtypes,
    Items,
    Layer,
    Many,
    Method,
    Opaque,
    Origin,
    Params,
    Region,
    Tensor,
    Value,
    Widened,
    as_tensor,
    join,
    options,
    promote,
)
from amp_audit.static.source.conditions import NO_FACTS, Facts
from amp_audit.static.source.names import is_of_tests

_ANY_TENSOR = Tensor()
_STATEFUL = frozenset({"lstm", "gru", "rnn", "lstm_cell", "gru_cell"})
"""Layers that take their state as the second argument."""
_CENTRING = frozenset({"add", "sub", "neg", "mean", "mul", "div"})
DEFAULT = "<default dtype>"
"""The key under which ``casts`` holds the default dtype, where it is low."""


@record(frozen=True, slots=True)
class Entry:
    """A region that is open: where it was entered, and under how many calls."""

    region: Region
    place: Place | None = None
    depth: int = 0


_WEIGHTS = "weights"
"""Where weights come from, and ``Tensor.last`` of what they are when they were cast to float32 by hand."""


@dataclass(slots=True)
class Loop:
    """A loop in progress: what names held before it, under how many calls and conditions, whether it runs or trains a
    model, whether it does so in low precision, and whether its rounds have a backward; which sums stood at 0 in one of
    its rounds, and which attributes its rounds set to 0, whenever it is walked. ``again``: the names of attributes
    and of what has entries that its body sets to 0.
    """

    start: Mapping[str, Value]
    depth: int
    guards: int = 0
    trains: bool = False
    low: bool = False
    steps: bool = False
    begun: set[Hashable] = field(default_factory=set)
    emptied: set[Hashable] = field(default_factory=set)
    again: frozenset[str] = frozenset()


class Operations(abc.ABC):
    """The state of the walk that ops depend on, and what ops do. ``region`` is the innermost autocast region.

    ``active`` are the functions in progress, ``sites`` the calls that led into them.
    """

    def __init__(self) -> None:
        self.record = Record()
        self.entries: list[Entry] = []
        self.active: list[Place] = []
        self.sites: list[Place | None] = []
        self.loops: list[Loop] = []
        self.emptied: dict[Place, set[Hashable]] = {}  # by loops
        self.zeros: list[Hashable] = []  # attributes that were set to 0, in the order of the walk
        self.guards = 0  # conditions that are not known, around what is run
        self.tested = False  # whether a test is where the walk began
        self.fitting = 0  # those of them by which something has a certain dtype
        self.weights: list[Dtypes] = []
        self.casts: dict[Hashable, frozenset[Cast]] = {}
        self.heap = Heap()
        self.optimizers: dict[Hashable, Params] = {}
        self.libraries: dict[Hashable, str] = {}  # what an object of unknown kind was made by
        self.pending: dict[Training, None] = {}
        self.shrunk: set[tuple[Place | None, frozenset[Hashable]]] = set()  # weights multiplied in place, where
        self.facts: Facts = NO_FACTS  # what is known here, by the conditions around
        self.muted = 0
        self.passed_by = 0  # arms around that are run in another precision than their other arm
        self.guessing = False  # whether models are run in a region that they are only taken to run in
        self.path = ""

    @property
    def region(self) -> Region | None:
        return self.entries[-1].region if self.entries else None

    @property
    def regions(self) -> tuple[Region, ...]:
        """The open regions, the innermost last."""
        return tuple(entry.region for entry in self.entries)

    @contextmanager
    def inside_of(self, region: Region | None, at: int) -> Iterator[None]:
        """Run something in a region entered at ``at`` of the module at hand (None: in no further one)."""
        if region is None:
            yield
            return
        self.entries.append(Entry(region, (self.path, at), len(self.active)))
        self.record.live_modules.setdefault(self.path, set()).add(region)
        if region.live and self.active:
            self.record.entering.add(self.active[-1])
        for loop in self.loops:
            loop.low = loop.low or region.live
        try:
            yield
        finally:
            self.entries.pop()

    @property
    def live(self) -> Region | None:
        region = self.region
        return region if region is not None and region.live else None

    @abc.abstractmethod
    def call_value(self, func: Value, args: Sequence[Value], named: Named, at: int) -> Value:
        """Call something; the walk says what of the project does."""

    def apply(self, op: str, args: Sequence[Value], named: Named, at: int) -> Value:
        """The result of an op of torch on these arguments, of which the first is the tensor if it is a method."""
        region = self.live
        device = region.device if region else "cuda"
        name = surface.canonical(op)
        effect = surface.effect_of(op, device)
        if effect == "number":
            if name == "item":
                self.synchronised(args[0] if args else NOTHING, at)
            return NUMBER
        if effect == "shape":
            return Many(NUMBER)
        read_as = reinterpreted(name, args, named)
        if read_as is not None:
            return Tensor(read_as.dtypes, assumed=read_as.assumed)
        parts = map(self.tensor_of, self._tensor_arguments(name, args, named))
        tensors = [part for part in parts if part is not None]
        uncast = device == "cpu" or any(tensor.dtypes == {"float64"} for tensor in tensors)
        if name == "einsum" and uncast and only_multiplies(args):
            return self.apply("mul", args[1:], named, at)
        out = self.tensor_of(named["out"]) if "out" in named and effect != "factory" else None
        if out is not None:
            if region is not None and surface.kind_of(name, device) == "lower":
                self.notice("out", out, at, name)
            return named["out"]
        numbers = (*numbers_of(name, args, named), *filling(op, name, tensors))
        result = self._result(op, name, effect, tensors, args, named, numbers)
        listed = region is not None and effect == "listed"
        lowered = listed and surface.kind_of(name, device) == "lower"
        origin = _origin(name, result, tensors, lowered)
        given = next((tensor.by for tensor in tensors if tensor.by), "")
        by = name if lowered else given or (name if effect == "listed" else "")
        if not result.low or effect in ("like", "factory"):
            by, origin = "", ""
        if _keeps_cast(name, result, tensors):
            by, origin = given, "cast"
        assumed = any(t.assumed for t in tensors) or bool(listed and region and region.assumed)
        result = Tensor(
            result.dtypes,
            by,
            assumed or result.assumed,
            _is_scalar(name, effect, tensors, args, named),
            origin,
            last_of(name, effect, tensors, numbers),
            filled(name, effect, tensors, numbers),
            name == "arange" or (effect != "bool" and name not in surface.BOUNDED and any(t.counted for t in tensors)),
            widening.is_table(name, effect, tensors, args, named, lowered) and not any(map(self._begins_loop, tensors)),
            of=averages.weights_in(name, tensors),
        )
        self.averaged(op, tensors, [*args[1:], *named.values()], at)
        result = self._widened(op, effect, result, tensors, at)
        self._use(op, result, numbers, tensors, at)
        return NOTHING if effect == "complex" else self._shaped(op, name, effect, result, named)

    def averaged(self, op: str, tensors: Sequence[Tensor], given: Sequence[Value], at: int) -> None:
        """Note that a moving average of weights is moved on in low precision."""
        if not tensors:
            return
        here = (self.active[-1] if self.active else None, tensors[0].of)
        if averages.shrinks(op, tensors, given):
            self.shrunk.add(here)
        moved = averages.moves(op, tensors, given, here in self.shrunk)
        if moved or (averages.writes(op, tensors) and self.repeats()):
            self.notice("average", tensors[0], at)

    def stored(self, value: Tensor, at: int) -> None:
        """Note that a container keeps a low combination of weights and of the copy of them that it had."""
        if averages.renews(value) and self.repeats():
            self.notice("average", value, at)

    @abc.abstractmethod
    def repeats(self) -> bool:
        """Whether the code at hand runs in every round of a training, as far as loops and names tell."""

    def _widened(self, op: str, effect: str | None, result: Tensor, tensors: Sequence[Tensor], at: int) -> Tensor:
        """A result with what tables have widened; what ends here is noted."""
        if not any(tensor.table or tensor.widened for tensor in tensors):
            return result
        live, name, place = self.live, surface.canonical(op), (self.path, at)
        kind = surface.kind_of(name, live.device if live is not None else "cuda")
        by_hand = self.region is None and bool(self.weights) and self.weights[-1] <= HALVES
        if live is None and not by_hand:
            return result
        if kind == "lower":
            self.narrowed(tensors, at, name)
        found = widening.carried(name, effect, kind, tensors, result, place)
        met = widening.widening(op, effect, kind, tensors, result)
        if met is not None and not self._begins_loop(met[1]):
            low, _ = met
            assumed = any(tensor.assumed for tensor in met)
            function = self.active[-1] if self.active else None
            found |= {Widened(place, function, name, low.dtypes, low.by or low.last, assumed)}
        return replace(result, widened=found) if found else result

    def _begins_loop(self, table: Tensor) -> bool:
        """Whether a table is zeros that a loop begins with: the state of a recurrence, low from the second round on."""
        return table.last in widening.BLANK and any(table in loop.start.values() for loop in self.loops)

    def narrowed(self, tensors: Sequence[Tensor], at: int, name: str) -> None:
        """Note that a matrix product takes what tables have widened, as the op ``widen`` at the place of each.

        In a region it lowers it, and that is noted where something has run in float32 before; where nothing casts, it
        is refused, or runs in float32 itself.
        """
        live = self.live
        end = f"{name} casts it back here" if live is not None else f"{name} is handed float32 here"
        for widened in sorted({one for tensor in tensors for one in tensor.widened}, key=lambda one: one.place):
            if self.muted or (live is not None and widened.ran is None):
                continue
            ran = ((f"{widened.ran[0]} runs in float32 here", widened.ran[1]),) if widened.ran else ()
            use = Use(
                "widen",
                widened.place,
                widened.dtypes,
                region=self.region,
                by=widened.by,
                assumed=widened.assumed or bool(live and live.assumed),
                within=widened.within,
                joins=widened.op,
                after=(*ran, (end, (self.path, at))),
            )
            self.record.uses[use] = None

    def into_transformer(self, args: Sequence[Value], at: int) -> None:
        """A transformer of torch takes these: its first residual addition runs in their dtype, its products lower."""
        given = [tensor for tensor in map(as_tensor, args) if tensor is not None]
        place = (self.path, at)
        ran = [replace(one, widened=widening.run_by("the first residual addition", one, place)) for one in given]
        self.narrowed(ran, at, "its attention")

    def _tensor_arguments(self, name: str, args: Sequence[Value], named: Named) -> list[Value]:
        """The arguments that can be tensors: those that are not known to be sizes and options."""
        parameters = ("input", *surface.PARAMETERS.get(name, ()))
        if name in surface.WITH_SOURCE:
            return [inner for value in (*args, *named.values()) for inner in flat(value)]
        if surface.EFFECTS.get(name) in ("same", "like", "pair", "many"):
            given = [*args[:1], *(named[key] for key in ("input", "self", "x") if key in named and not args)]
            return [inner for value in given for inner in flat(value)]
        if name == "multi_head_attention_forward":  # what it is not to use may be a tensor that stands for nothing
            args = args[:3]
        if name == "where":
            parameters = ("condition", "input", "other")
            args = args[1:]
        values = [
            *args,
            *(value for key, value in named.items() if key in (*parameters, "tensors", "weight", "target")),
        ]
        return [inner for value in values for inner in flat(value)]

    def _result(
        self,
        op: str,
        name: str,
        effect: str | None,
        tensors: list[Tensor],
        args: Sequence[Value],
        named: Named,
        numbers: tuple[tuple[str, Const], ...],
    ) -> Tensor:
        told = told_dtype(named)
        first = tensors[0] if tensors else _ANY_TENSOR
        if surface.in_place(op) and name != op:
            return first
        if effect is None:
            return _ANY_TENSOR
        if told is not None and effect in ("listed", "same", "factory", "like", "integers"):
            return Tensor(told.dtypes, assumed=told.assumed)
        if effect == "bool":
            return Tensor(frozenset({"bool"}))
        if effect == "complex":
            return Tensor(self._listed(name, tensors))
        if effect in ("int", "integers"):
            return Tensor(frozenset({"int"}))
        if effect == "factory":
            return Tensor(self.default_dtypes)
        if effect == "promote":
            return Tensor(_promoted(name, tensors, args, numbers))
        if effect == "listed":
            return Tensor(self._listed(name, tensors))
        return Tensor(first.dtypes)

    def _listed(self, name: str, tensors: list[Tensor]) -> Dtypes:
        counted = tensors[:1] if name in ("cross_entropy", "nll_loss", "ctc_loss") else tensors  # targets are classes
        sets = [tensor.dtypes for tensor in counted]
        own = promote(sets)
        region = self.live
        if region is None or own <= {"int", "bool"}:
            return _floating(name, own)
        kind = surface.kind_of(name, region.device)
        if own == {"float64"} or kind is None:
            return own
        if kind == "lower":
            return region.dtypes
        if kind == "promote":
            return own
        return ANY if kind == "banned" else FLOAT32

    def tensor_of(self, value: Value) -> Tensor | None:
        """A value as a tensor; parameters have the dtype that their models were cast to."""
        if not isinstance(value, Params):
            return as_tensor(value)
        casts = [self.casts.get(owner, frozenset()) for owner in value.of]
        if not casts or not all(casts):
            return Tensor(of=value.of)
        low = frozenset(name for cast in casts for one in cast for name in one.dtypes)
        return Tensor(low, origin="weights", of=value.of)

    def notice(self, op: str, tensor: Tensor, at: int, by: str = "") -> None:
        """Note something that the code does with a tensor and that is no op of torch, for detectors to look for."""
        self._use(op, Tensor(tensor.dtypes, by or tensor.by, tensor.assumed, origin=tensor.origin), (), [tensor], at)

    def note_emptied(self, attributes: Sequence[Hashable]) -> None:
        """Attributes are set to 0 in a round of the loops in progress."""
        self.zeros += attributes
        for loop in self.loops:
            loop.emptied.update(attributes)

    def synchronised(self, value: Value, at: int) -> None:
        """Note that the host waits for the device, in every round of a loop that trains in low precision."""
        loop = self.loops[-1] if self.loops else None
        if (
            loop is not None
            and loop.trains
            and loop.low
            and (loop.depth, loop.guards) == (len(self.active), self.guards)
        ):
            self.notice("synchronise", self.tensor_of(value) or _ANY_TENSOR, at)

    def _use(
        self, op: str, result: Tensor, numbers: tuple[tuple[str, Const], ...], tensors: Sequence[Tensor], at: int
    ) -> None:
        """Note that an op is applied, unless the code here is run in another precision only.

        In a program, what a test hands over is another thing: a stand-in for a model, under the settings that the test
        chooses.
        """
        assumed = result.assumed or bool(self.region and self.region.assumed)
        if self.muted or (assumed and self.tested and not is_of_tests(self.path)):
            return
        place = (self.path, at)
        entry = self.entries[-1] if self.entries else Entry(Region("", ANY))
        deeper = self.entries and len(self.sites) > entry.depth
        self.record.uses[
            Use(
                op,
                place,
                result.dtypes,
                numbers,
                tuple(tensors),
                self.region,
                entry.place,
                self.sites[entry.depth] if deeper else place,
                result.by,
                assumed,
                result.origin,
                result.scalar,
                self.active[-1] if self.active else None,
            )
        ] = None

    def foreign_call(self, op: str, args: Sequence[Value], named: Named, at: int) -> None:
        """Note a call of code out of sight: the op ``call``, or ``model``, on the tensors it is handed."""
        given = [inner for value in (*args, *named.values()) for inner in flat(value)]
        tensors = [tensor for tensor in map(as_tensor, given) if tensor is not None]
        first = next((tensor for tensor in tensors if tensor.low), None)
        if first is not None:
            self._use(op, Tensor(ANY, first.by, first.assumed), (), tensors, at)

    def _shaped(self, op: str, name: str, effect: str | None, result: Tensor, named: Named) -> Value:
        several = effect == "pair" or (name in ("max", "min", "median") and "dim" in named)
        if several or op in surface.PAIRS:
            return Items((result, Tensor(frozenset({"int"})) if several else result))
        if effect == "many":
            return Many(result)
        if effect is None and self.live is None:
            return NOTHING
        return result

    def layer(self, layer: Layer, args: Sequence[Value], at: int) -> Value:
        """The result of calling a module of ``torch.nn``."""
        own = self.weight_dtypes(layer)
        if layer.op == "sequential":
            self.weights.append(own)
            value: Value = args[0] if args else NOTHING
            for part in layer.parts:
                value = self._through(part, value, at)
            self.weights.pop()
            return value
        inputs = list(
            args[:2] if layer.op.endswith(("loss", "entropy", "logits")) or layer.op in _STATEFUL else args[:1]
        )
        if own == ANY and any(self._tells_weights(tensor, layer) for tensor in map(as_tensor, inputs) if tensor):
            own = FLOAT32
        weighted = [Tensor(own)] if layer.op in surface.WEIGHTED else []
        if layer.op == "embedding":
            return weighted[0]
        return self.apply(layer.op, [*inputs, *weighted], {}, at)

    def _tells_weights(self, tensor: Tensor, layer: Layer) -> bool:
        """Whether the weights of a layer that was not cast are float32: a program that uses autocast keeps them so, and
        a layer that the code at hand built and holds is as it was built. What a model does to its own layers, whoever
        calls it may have cast them.
        """
        return tensor.origin == "region" or (
            tensor.origin in ("cast", "weights", "loaded") and self.is_as_built(layer.id)
        )

    @abc.abstractmethod
    def is_as_built(self, model: Hashable) -> bool:
        """Whether the code at hand built a model, in float32, and did nothing since that may have changed it."""

    def _through(self, part: Value, value: Value, at: int) -> Value:
        if not isinstance(part, Many):
            return self.call_value(part, [value], {}, at)
        once = join(value, self.call_value(part.item, [value], {}, at))
        last = self.call_value(part.item, [once], {}, at)
        kinds = [option for option in options(part.item) if isinstance(option, Layer)]
        lowers = any(surface.kind_of(kind.op, "cuda") == "lower" for kind in kinds)
        keeps = all(surface.effect_of(kind.op) == "same" or kind.op in surface.WEIGHTED for kind in kinds)
        known = as_tensor(last)
        if lowers and keeps and self.live and known and len(kinds) == len([*options(part.item)]):
            return Tensor(self.live.dtypes, "linear" if not known.by else known.by, self.live.assumed)
        return join(last, value)

    @property
    def default_dtypes(self) -> Dtypes:
        """The dtype of what is built without one."""
        low = frozenset(dtype for cast in self.casts.get(DEFAULT, ()) for dtype in cast.dtypes)
        return low or FLOAT32

    def weight_dtypes(self, model: Value) -> Dtypes:
        """The dtype of the parameters of a model: what it or a model around it was cast to, else float32 or unknown."""
        found = self.casts.get(getattr(model, "id", None))
        if found:
            return frozenset(dtype for one in found for dtype in one.dtypes)
        if self.weights and self.weights[-1] != ANY:
            return self.weights[-1]
        return FLOAT32 if self.region is not None else ANY

    def _of_tensor(self, base: Value, name: str, args: Sequence[Value], named: Named, at: int) -> Value:
        target = cast_target(name, args, named)
        if target is not None:
            found = self.tensor_of(base)
            return self._cast_tensor(found, target, name, at) if found is not None else NOTHING
        if name in ("to", "type"):
            return self._to(base, args)
        if name == "type_as":
            like = as_tensor(args[0]) or _ANY_TENSOR if args else _ANY_TENSOR
            target = DType(like.dtypes, like.assumed, borrowed=True)
            return self._cast_tensor(as_tensor(base) or _ANY_TENSOR, target, name, at)
        if surface.effect_of(name) is None and name not in ("fill_", "zero_", "copy_"):
            return NOTHING
        return self.apply(name, [base, *args], named, at)

    def _to(self, base: Value, args: Sequence[Value]) -> Value:
        """``to`` with something that is a device, or a dtype that cannot be read."""
        own = as_tensor(base) or _ANY_TENSOR
        for arg in (option for given in args for option in options(given)):
            if isinstance(arg, Opaque) and not arg.number and not is_device(arg.text):
                return Tensor(own.dtypes | ANY if not is_dtype(arg.text) else ANY)
            if isinstance(arg, Method) and is_dtype(arg.name):
                return Tensor(ANY)
        return own

    def _cast_tensor(self, base: Tensor, target: DType, name: str, at: int) -> Tensor:
        """``base`` in another dtype. What it is filled with goes along, as ``value`` of the op ``to``.

        A cast to the dtype of another tensor is made to fit it, not to be more precise, unless it is one of positions.
        One of weights says which dtype they are meant to be used in, even if it is theirs.
        """
        low = bool(target.dtypes & HALVES)
        fitted = target.borrowed and not base.counted
        by = f".{name}()" if low else base.by if base.low else ""
        told = base.dtypes != target.dtypes or base.origin == _WEIGHTS
        origin: Origin = "cast" if low or (told and not fitted) else ""
        numbers = (("value", base.filled),) if base.filled is not None else ()
        result = Tensor(
            target.dtypes,
            by,
            target.assumed,
            base.scalar,
            origin,
            _WEIGHTS if base.origin == _WEIGHTS and not low else base.last,
            base.filled,
            base.counted,
            base.table and not target.borrowed,
            widening.spent(base.widened) if base.dtypes == target.dtypes == FLOAT32 else frozenset(),
            fitted or (low and self.fitting > 0),
            base.of,
        )
        self._use("to", result, numbers, [base], at)
        return result


def _widest(tensors: Sequence[Tensor]) -> Dtypes:
    """Type promotion, in which tensors without dimensions only count if none of the others is a float."""
    sized = [tensor.dtypes for tensor in tensors if not tensor.scalar]
    if sized and not promote(sized) <= {"int", "bool"}:
        return promote(sized)
    return promote(tensor.dtypes for tensor in tensors)


def _is_scalar(name: str, effect: str | None, tensors: Sequence[Tensor], args: Sequence[Value], named: Named) -> bool:
    """Whether an op surely returns a tensor without dimensions."""
    if name in surface.REDUCTIONS:
        return len(args) + len(named) == 1
    if name in surface.LOSSES:
        reduction = named.get("reduction", Const.of("mean"))
        return isinstance(reduction, Const) and reduction.value != "none"
    kept = effect in ("same", "promote", "listed", "bool") and name not in surface.RESHAPING
    return kept and bool(tensors) and all(tensor.scalar for tensor in tensors)


def _origin(name: str, result: Tensor, tensors: Sequence[Tensor], lowered: bool) -> Origin:
    """Why the result is low: a region's op list, or what its tensors have it from."""
    if not result.low or (name in (*surface.LOSSES, "log_softmax") and not lowered):
        return ""  # what is wrong with a loss is told where it is computed
    return "region" if lowered else next((tensor.origin for tensor in tensors if tensor.low and tensor.origin), "")


def _keeps_cast(name: str, result: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether a result is what was low and was cast to float32, moved about, centred or multiplied by a number, or such
    weights moved about: what it is cast for is yet to come.
    """
    if not tensors or result.dtypes != FLOAT32 or any(tensor.origin != "cast" for tensor in tensors):
        return False
    if name in surface.MOVES and all(tensor.last == _WEIGHTS for tensor in tensors):
        return True
    moves = name in surface.MOVES or (name in _CENTRING and _few(name, tensors))
    return moves and all(tensor.by for tensor in tensors)


def _few(name: str, tensors: Sequence[Tensor]) -> bool:
    """A product or quotient of two tensors may be all that a cast was made for."""
    return name not in ("mul", "div") or len(tensors) == 1


def _promoted(
    name: str, tensors: list[Tensor], args: Sequence[Value], numbers: tuple[tuple[str, Const], ...]
) -> Dtypes:
    own = _widest(tensors)
    if own <= {"int", "bool"}:
        floats = name == "div" or any(isinstance(arg, Const) and isinstance(arg.value, float) for arg in args)
        unknown = any(isinstance(arg, Opaque) and arg.number for arg in args)
        return FLOAT32 if floats or any(isinstance(n.value, float) for _, n in numbers) else ANY if unknown else own
    return own


def _floating(name: str, own: Dtypes) -> Dtypes:
    """What a listed op gives outside a region, and on integers."""
    if own <= {"int", "bool"} and name not in ("sum", "prod", "cumsum", "cumprod", "pow", "matmul", "mm", "bmm", "dot"):
        return FLOAT32
    return frozenset({"int"}) if own <= {"int", "bool"} else own
