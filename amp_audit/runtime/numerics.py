"""What rounding to low precision destroyed, exactly: at every cast of recorded steps, at every operator of deep ones.

Definitions: ``flushed`` counts elements that were not zero before rounding and are zero after it; ``subnormal`` those
that lost bits; ``zero`` those that were zero already and prove nothing. Counts stay on the device until the step ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch

from amp_audit.runtime.counts import Counts, compare, compare_cast, rounding, together
from amp_audit.runtime.dtypes import LOW, short
from amp_audit.runtime.exponents import Exponents, Histogram, flushed_shares, named, total
from amp_audit.runtime.frames import is_thrown_in
from amp_audit.runtime.origins import Origin, Origins, Result, measurable, plain
from amp_audit.runtime.parts import CastCounts, CastKey, Host, Scene
from amp_audit.runtime.queue import finite
from amp_audit.runtime.rescale import Rescale, choose
from amp_audit.runtime.shadow import CARRIERS, FACTORS, MOVES, base_name, in_float32, part, repeatable, tensors
from amp_audit.runtime.spreads import live_scale
from amp_audit.runtime.widened import widenings
from amp_audit.trace.schema import Number

_COPIES = frozenset({"copy_", "_foreach_copy_"})
_WRITTEN = frozenset({"full", "fill", "fill_", "new_full", "scalar_tensor", "arange", "clamp", "clamp_", "clamp_min"})
"""Operators that write constants of the program."""

_ROUNDED = (torch.float16,)
"""Types whose underflow is counted at every operator. bfloat16 has the range of float32: it flushes below 2**-134."""

OpKey = tuple[str, str, str, int]  # op, phase, dtype, site


class Numerics:
    """An ``Observer``. Adds Numbers ``underflow``, ``gradient``, ``nonfinite`` and others; counts the values of casts.

    ``hidden``: whether code ran in this step whose operators are not seen. What follows a value from operator to
    operator does not hold then, and is not told. ``tables``: the tensors that modules hold beside their parameters,
    with their names.
    """

    def __init__(
        self,
        host: Host,
        scene: Scene,
        hidden: Callable[[], bool] = lambda: False,
        tables: Callable[[], Iterable[tuple[torch.Tensor, str]]] = tuple,
    ) -> None:
        self._hidden = hidden
        self._tables = tables
        self._held: dict[int, str] = {}  # what modules held when the step began
        self.cast_targets = frozenset(_ROUNDED)
        self._host = host
        self._scene = scene
        self._deep = self.follows = False
        self._casts: dict[CastKey, list[Counts]] = {}
        self._ops: dict[OpKey, list[Counts]] = {}
        self._errors: dict[OpKey, list[Counts]] = {}
        self._lost: dict[int, Counts] = {}  # by number of a result: what rounding its values lost
        self._gradients: dict[int, tuple[torch.Tensor, Counts]] = {}  # parameter -> (parameter, counts)
        self._exponents: Exponents[tuple[str, int]] = Exponents()  # by phase and site
        self._origins = Origins()
        self._sinks: dict[int, list[torch.Tensor]] = {}  # by result: the parameters whose gradient it became
        self._counts: dict[CastKey, CastCounts] = {}
        self._powers: tuple[int, ...] = ()  # loss scales at which the next deep step's backward is repeated
        self._rescale: Rescale[tuple[str, int]] | None = None
        self._rescaled = False
        scene.probes.append(self)

    def step_begin(self, *, deep: bool) -> None:
        """A recorded step begins."""
        self._deep = deep
        self._forget()
        self._held = self._holding() if deep else {}
        scale = self._scene.current_scale
        if deep and self._powers and scale is not None:
            self._rescale = Rescale(self._powers, scale)

    def step_end(self) -> None:
        """Read what was counted. Waits for the device once per kind of number."""
        self._counts = {key: CastCounts(*counts) for key, counts in _totals(self._casts).items()}
        if self._deep:
            self._tell_operators()
            self._tell_errors()
            self._tell_ranges()
            if self._hidden():
                self._host.unobserved("where gradients were lost, on steps that ran compiled code")
            else:
                self._tell_gradients()
                self._tell_starved()
                self._tell_exponents()
                self._tell_origin()
                self._tell_rescaled()
                self._tell_widened()
        elif self.follows and not self._hidden():
            self._tell_origin()
        self._forget()

    def cast_counts(self) -> Mapping[CastKey, CastCounts]:
        """The counts of the step that ended last."""
        return self._counts

    def _forget(self) -> None:
        self._casts, self._ops, self._lost, self._gradients = {}, {}, {}, {}
        self._errors, self._exponents = {}, Exponents()
        self._origins, self._sinks = Origins(), {}
        self._rescale = None

    # Seeing operators

    def before(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], phase: str, site: int) -> Any:
        """The inputs of an operator, looked at before it may overwrite them."""
        if phase == "optimizer":
            return self._origins, ()
        if self._rescale is not None and phase == "backward" and hasattr(func, "_schema"):
            self._rescale.before(func, args, kwargs)
        return self._origins, self._origins.inputs((*args, *kwargs.values()) if kwargs else args)

    def after(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, phase: str, site: int, kept: Any
    ) -> None:
        """Count what the operator's rounding lost."""
        if kept is not None and kept[0] is not self._origins:  # the step ended while it ran in another thread
            return
        if self._rescale is not None and phase == "backward" and kept is not None and hasattr(func, "_schema"):
            self._rescale.after(func, args, kwargs, [item for item in tensors(out) if item is not None])
        copies = base_name(func) in _COPIES
        pairs = _cast_pairs(func, args, out)
        if kept is None or phase == "optimizer":
            for source, result in pairs:
                self._count_cast(source, result, phase, site)
            return
        sources = kept[1]
        results = [item for item in tensors(args[0] if copies else out) if measurable(item)]
        given = _infinite(args) or _infinite(kwargs.values())
        op, moves, factors = _traits(func)
        made = [
            self._origins.add(item, Result(op, phase, site, item.dtype, item.numel(), sources, given, moves, factors))
            for item in results
        ]
        if not self._deep:
            for source, result in pairs:
                self._count_cast(source, result, phase, site)
        elif pairs:
            for source, result in pairs:
                counts = self._count_cast(source, result, phase, site)
                self._lose(result, counts[:4] if counts is not None else self._lost_by(source))
        elif copies:
            for read, written in zip(tensors(args[1]), tensors(args[0])):
                if read is not None and written is not None and read.numel() == written.numel():
                    self._lose(written, self._lost_by(read))
        else:
            self._underflow(func, args, kwargs, results, made, phase, site)

    def _lost_by(self, tensor: torch.Tensor) -> Counts | None:
        index = self._origins.of(tensor) if plain(tensor) else None
        return None if index is None else self._lost.get(index)

    def _lose(self, result: torch.Tensor, counts: Counts | None) -> None:
        index = self._origins.of(result) if plain(result) else None
        if index is not None and counts is not None:
            self._lost[index] = counts

    def _count_cast(self, source: torch.Tensor, result: torch.Tensor, phase: str, site: int) -> Counts | None:
        """What a cast lost; None where its target loses nothing that is told."""
        if result.dtype not in LOW or not (result.dtype in _ROUNDED or self._deep):
            return None
        counts = compare_cast(source, result)
        key = CastKey(phase, short(source.dtype), short(result.dtype), site)
        self._casts.setdefault(key, []).append(counts)
        if self._deep and result.dtype in _ROUNDED:
            self._magnitudes(phase, site, source, result)
        return counts

    def _underflow(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        results: list[torch.Tensor],
        made: Sequence[int],
        phase: str,
        site: int,
    ) -> None:
        """Count by re-execution; where that cannot be, what is known of what was read is handed on."""
        rounded = [result for result in results if result.dtype in _ROUNDED]
        again = repeatable(func) if any(result.dtype in LOW for result in results) else None
        if again is None:
            self._inherit(func, made)
            return
        references: list[torch.Tensor] | None = None
        if again:
            if not rounded:
                args, kwargs, results = part(func, args, kwargs, results)
            try:
                references = [item for item in in_float32(func, args, kwargs) if measurable(item)]
            except Exception as error:  # whatever an operator says when it has no float32 form
                if is_thrown_in(error):
                    raise
                again = False
        if references is None or len(references) != len(results):
            if rounded:
                self._host.unobserved(_name(func))
            self._inherit(func, made)
            for result in rounded:
                self._magnitudes(phase, site, result, result)
            return
        for reference, result, index in zip(references, results, made, strict=True):
            if result.dtype not in LOW or reference.shape != result.shape:
                continue
            key = (_name(func), phase, short(result.dtype), site)
            self._errors.setdefault(key, []).append(rounding(reference, result))
            if result.dtype in _ROUNDED:
                self._magnitudes(phase, site, reference, result)
                self._lost[index] = compare(reference, result)
                self._ops.setdefault(key, []).append(self._lost[index])

    def _magnitudes(self, phase: str, site: int, reference: torch.Tensor, result: torch.Tensor) -> None:
        self._exponents.add((phase, site), reference)
        if self._rescale is not None and phase == "backward":
            self._rescale.count((phase, site), reference, result)

    def _inherit(self, func: Any, made: Sequence[int]) -> None:
        """Moved, added and multiplied values carry what their making lost; anything else is new and unknown."""
        if base_name(func) not in CARRIERS:
            return
        results = self._origins.results
        for index in made:
            sources = [
                known
                for source in results[index].inputs
                if results[source].elements == results[index].elements and (known := self._lost.get(source)) is not None
            ]
            if sources:
                self._lost[index] = together(sources)

    # Telling

    def gradients_ready(self, optimizer: Any) -> None:
        """Take note of the gradients while they are there; many programs clear them before the step is over."""
        if not (self._deep or self.follows):
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._collect(parameter)

    def before_step(self, optimizer: Any, *, closure: bool) -> None:
        """Nothing is left to do."""

    def after_step(self, optimizer: Any) -> None:
        """Nothing is left to do."""

    def _collect(self, parameter: torch.Tensor) -> None:
        """Connect a gradient with what its making lost, and with where it came from."""
        grad = parameter.grad
        if grad is None or not plain(grad):
            return
        sink = self._origins.of(grad)
        if sink is not None:
            self._sinks.setdefault(sink, []).append(parameter)
            if sink in self._lost:
                self._gradients[id(parameter)] = (parameter, self._lost[sink])

    def _tell_operators(self) -> None:
        for (op, phase, dtype, site), counts in _totals(self._ops).items():
            self._host.number(
                Number(
                    "underflow",
                    place=self._host.places.place(site),
                    op=op,
                    phase=phase,
                    dtype=dtype,
                    values=_named(counts),
                )
            )

    def _tell_errors(self) -> None:
        """Only of operators that are off by more than rounding explains: of the others nothing would be said."""
        for (op, phase, dtype, site), (errors, squares, elements) in _totals(self._errors).items():
            half = torch.finfo(getattr(torch, dtype)).eps / 2
            if not errors > squares * half * half:
                continue
            values: dict[str, float | int | None] = {
                "errors": finite(errors), "squares": finite(squares), "elements": int(elements)
            }  # fmt: skip
            self._host.number(Number("rounding", self._host.places.place(site), None, op, phase, dtype, values))

    def _tell_exponents(self) -> None:
        modules: dict[tuple[str, str], list[Histogram]] = {}
        for (phase, site), counts in self._exponents.read().items():
            modules.setdefault((phase, self._host.places.place(site).module or ""), []).append(counts)
        live = live_scale(self._scene)
        for (phase, module), found in modules.items():
            values = {**named(total(found)), "scale": live if phase == "backward" else 1.0}
            self._host.number(Number("exponents", subject=module, phase=phase, dtype="float16", values=values))
        backward = [counts for (phase, _), found in modules.items() if phase == "backward" for counts in found]
        if live and backward and not self._rescaled:
            self._powers = choose(flushed_shares(total(backward), live), math.frexp(live)[1] - 1)

    def _tell_rescaled(self) -> None:
        """What the backward pass gave at other loss scales, once a run."""
        rescale = self._rescale
        if rescale is None or not (rescale.counts or rescale.broken):
            return
        self._powers, self._rescaled = (), True
        if rescale.broken is not None:
            self._host.unobserved(f"the backward pass at other loss scales ({rescale.broken})")
        modules: dict[str, list[int]] = {}
        for (_, site), counts in _totals({key: [counts] for key, counts in rescale.counts.items()}).items():
            module = self._host.places.place(site).module or ""
            known = modules.get(module)
            modules[module] = counts if known is None else [a + b for a, b in zip(known, counts, strict=True)]
        for module, (nonzero, *left) in modules.items():
            values = {str(power): nonzero - count for power, count in zip(rescale.powers, left, strict=True)}
            self._host.number(
                Number(
                    "rescaled", subject=module, phase="backward", dtype="float16", values={**values, "nonzero": nonzero}
                )
            )

    def _tell_ranges(self) -> None:
        for largest, result in self._origins.ranges():
            values: dict[str, float | int | None] = {"max": largest, "elements": result.elements}
            place = self._host.places.place(result.site)
            self._host.number(Number("range", place, None, result.op, result.phase, short(result.dtype), values))

    def _tell_gradients(self) -> None:
        if not self._gradients:
            return
        live = live_scale(self._scene)
        parameters = [parameter for parameter, _ in self._gradients.values()]
        totals = _totals({number: [counts] for number, (_, counts) in enumerate(self._gradients.values())})
        for number, parameter in enumerate(parameters):
            values = {**_named(totals[number]), "scale": live}
            self._host.number(Number("gradient", subject=self._scene.name(parameter), values=values))

    def _tell_starved(self) -> None:
        """Parameters whose gradient is wholly zero since all of it was lost before it came to them."""
        first = self._origins.starved(self._sinks)
        counts = _totals({index: [self._lost[index]] for index in set(first.values()) if index in self._lost})
        for sink, index in first.items():
            nonzero, flushed = counts.get(index, (0, 0))[:2]
            result = self._origins.results[index]
            if not nonzero or flushed < nonzero:
                continue
            for parameter in self._sinks[sink]:
                self._host.number(
                    Number(
                        "starved",
                        place=self._host.places.place(result.site),
                        subject=self._scene.name(parameter),
                        op=result.op,
                        phase=result.phase,
                        dtype=short(result.dtype),
                        values={"elements": parameter.numel()},
                    )
                )

    def _holding(self) -> dict[int, str]:
        """What modules hold beside their parameters: names by address of the memory."""
        return {int(tensor.untyped_storage()._cdata): name for tensor, name in self._tables() if plain(tensor)}

    def _tell_widened(self) -> None:
        """Lines at which float32 tables have made float32 of low-precision activations."""
        kept = dict(self._held.items() & self._holding().items())  # what a module came to hold in this step may be data
        outside = {index: kept[memory] for index, memory in self._origins.outside.items() if memory in kept}
        found, written = widenings(self._origins.results, outside)
        for one in found:
            values: dict[str, float | int | None] = {"bytes": one.bytes, "ops": one.ops, "together": written}
            place = self._host.places.place(one.site)
            self._host.number(Number("widened", place, one.table, one.op, "forward", one.dtype, values))

    def _tell_origin(self) -> None:
        trained = (one for each in self._scene.optimizers() for group in each.param_groups for one in group["params"])
        weights = {int(one.untyped_storage()._cdata): one for one in trained if plain(one)}
        origin = self._origins.trace(self._sinks, weights)
        if origin is None:
            return
        result = origin.result
        known = result.op is not None and not _came_from_elsewhere(origin)
        weight = None if origin.address is None else weights.get(origin.address)
        self._host.number(
            Number(
                "nonfinite",
                place=self._host.places.place(result.site) if known else None,
                subject=None if weight is None else self._scene.name(weight),
                op=result.op if known else None,
                phase=result.phase,
                dtype=short(result.dtype),
                values={
                    "inf": origin.inf,
                    "nan": origin.nan,
                    "elements": result.elements,
                    "input_max": origin.input_max,
                },
            )
        )


@cache
def _name(func: Any) -> str:
    return str(func)


@cache
def _traits(func: Any) -> tuple[str, bool, bool]:
    """An operator's name, whether it only moves values or writes constants, and whether it multiplies."""
    base = base_name(func)
    return _name(func), base.removesuffix("_") in MOVES or base in _WRITTEN, base in FACTORS


def _came_from_elsewhere(origin: Origin) -> bool:
    """Whether inf or NaN is in what was only moved: another rank's, that a collective brought in unseen."""
    name = (origin.result.op or "").partition(".")[2].partition(".")[0]
    return name in MOVES | _COPIES and (origin.input_max or 0.0) <= torch.finfo(origin.result.dtype).max


def _infinite(items: Iterable[Any]) -> bool:
    """Whether the program itself gave inf or NaN: as a number, or in a list of numbers."""
    for item in items:
        if item.__class__ is float and not math.isfinite(item):
            return True
        if item.__class__ is list and item and _infinite(item):
            return True
    return False


def _cast_pairs(func: Any, args: tuple[Any, ...], out: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(source, result) of an operator that changes the floating type of tensors, and nothing else."""
    name = base_name(func)
    if name in _COPIES:
        sources, results = tensors(args[1]), tensors(args[0])
    elif name in ("_to_copy", "to"):
        sources, results = tensors(args[0]), tensors(out)
    else:
        return []
    return [
        (source.expand_as(result) if source.shape != result.shape else source, result)
        for source, result in zip(sources, results)
        if source is not None and result is not None and _changes_type(source, result)
    ]


def _changes_type(source: torch.Tensor, result: torch.Tensor) -> bool:
    floating = source.is_floating_point() and result.is_floating_point()
    return floating and source.dtype != result.dtype and plain(source) and plain(result) and result.numel() > 0


Key = Any


def _totals(counted: Mapping[Key, Sequence[Counts]]) -> dict[Key, list[Any]]:
    """The sums of the counts of each key, read together from each device."""
    found: dict[Key, list[Any]] = {}
    by_device: dict[torch.device, dict[Key, torch.Tensor]] = {}
    for key, parts in counted.items():
        counts = together(parts)
        if isinstance(counts, list):
            found[key] = counts
        else:
            by_device.setdefault(counts.device, {})[key] = counts
    for sums in by_device.values():
        found.update(zip(sums, torch.stack(list(sums.values())).tolist(), strict=True))
    return found


def _named(counts: list[int]) -> dict[str, float | int | None]:
    nonzero, flushed, subnormal, zero = counts[:4]
    return {
        "elements": nonzero + zero,
        "nonzero": nonzero,
        "flushed": flushed,
        "subnormal": subnormal,
        "zero": zero,
    }
