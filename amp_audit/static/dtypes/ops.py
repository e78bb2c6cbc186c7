"""Ops under the region they run in: which dtype goes in, which comes out."""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence

from amp_audit.static.dtypes import surface
from amp_audit.static.dtypes.arguments import Named, cast_target, flat, is_device, is_dtype, numbers_of, told_dtype
from amp_audit.static.dtypes.record import Cast, Record, Training, Use
from amp_audit.static.dtypes.values import (
    ANY,
    FLOAT32,
    HALVES,
    NOTHING,
    NUMBER,
    Const,
    Dtypes,
    Items,
    Layer,
    Many,
    Opaque,
    Params,
    Region,
    Tensor,
    Value,
    as_tensor,
    join,
    options,
    promote,
)

_ANY_TENSOR = Tensor()


class Operations(abc.ABC):
    """The state of the walk that ops depend on, and what ops do. ``region`` is the innermost autocast region."""

    def __init__(self) -> None:
        self.record = Record()
        self.regions: list[Region] = []
        self.weights: list[Dtypes] = []
        self.casts: dict[Hashable, frozenset[Cast]] = {}
        self.heap: dict[Hashable, dict[str, Value]] = {}
        self.optimizers: dict[Hashable, Params] = {}
        self.libraries: dict[Hashable, str] = {}  # what an object of unknown kind was made by
        self.pending: dict[Training, None] = {}
        self.muted = 0
        self.path = ""

    @property
    def region(self) -> Region | None:
        return self.regions[-1] if self.regions else None

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
            return NUMBER
        if effect == "shape":
            return Many(NUMBER)
        tensors = [part for part in map(as_tensor, self._tensor_arguments(name, args, named)) if part is not None]
        numbers = numbers_of(name, args, named)
        result = self._result(op, name, effect, tensors, args, named, numbers)
        by = name if result.dtypes & HALVES and effect == "listed" else next((t.by for t in tensors if t.by), "")
        if not result.dtypes & HALVES or effect in ("like", "factory"):
            by = ""
        assumed = any(t.assumed for t in tensors) or bool(region and region.assumed and effect == "listed")
        scalar = _is_scalar(name, effect, tensors, args, named)
        result = Tensor(result.dtypes, by, assumed or result.assumed, scalar)
        self._use(op, result, numbers, at)
        return self._shaped(op, name, effect, result, named)

    def _tensor_arguments(self, name: str, args: Sequence[Value], named: Named) -> list[Value]:
        """The arguments that can be tensors: those that are not known to be sizes and options."""
        parameters = ("input", *surface.PARAMETERS.get(name, ()))
        if surface.EFFECTS.get(name) in ("same", "like", "pair", "many"):
            given = [*args[:1], *(named[key] for key in ("input", "self", "x") if key in named and not args)]
            return [inner for value in given for inner in flat(value)]
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
        if effect in ("int", "integers"):
            return Tensor(frozenset({"int"}))
        if effect == "factory":
            return Tensor(FLOAT32)
        if effect == "promote":
            return Tensor(_promoted(name, tensors, args, numbers))
        if effect == "listed":
            return Tensor(self._listed(name, tensors))
        return Tensor(first.dtypes)

    def _listed(self, name: str, tensors: list[Tensor]) -> Dtypes:
        sets = [tensor.dtypes for tensor in tensors]
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

    def _use(self, op: str, result: Tensor, numbers: tuple[tuple[str, Const], ...], at: int) -> None:
        if self.muted:
            return
        computes = result.dtypes
        assumed = result.assumed or bool(self.region and self.region.assumed)
        use = Use(op, (self.path, at), computes, numbers, self.region, result.by, assumed)
        self.record.uses[use] = None

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
        weighted = [Tensor(own)] if layer.op in surface.WEIGHTED else []
        if layer.op == "embedding":
            return weighted[0]
        inputs = list(args[:2] if layer.op.endswith(("loss", "entropy", "logits")) else args[:1])
        return self.apply(layer.op, [*inputs, *weighted], {}, at)

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
            found = as_tensor(base)
            by = f".{name}()" if target.dtypes & HALVES else ""
            return Tensor(target.dtypes, by, target.assumed) if found is not None else NOTHING
        if name in ("to", "type"):
            return self._to(base, args)
        if name == "type_as":
            return as_tensor(args[0]) or _ANY_TENSOR if args else _ANY_TENSOR
        if surface.effect_of(name) is None and name not in ("fill_", "zero_", "copy_"):
            return NOTHING
        return self.apply(name, [base, *args], named, at)

    def _to(self, base: Value, args: Sequence[Value]) -> Value:
        """``to`` with something that is a device, or a dtype that cannot be read."""
        own = as_tensor(base) or _ANY_TENSOR
        for arg in args:
            if isinstance(arg, Opaque) and not arg.number and not is_device(arg.text):
                return Tensor(own.dtypes | ANY if not is_dtype(arg.text) else ANY)
        return own

    def entered(self, region: Region) -> None:
        """Note that a region is entered in the module at hand."""
        self.record.live_modules.setdefault(self.path, set()).add(region)


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
