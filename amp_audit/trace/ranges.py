"""What the magnitudes of a run say: room before float16 overflows (AMP513), and what other loss scales would lose
(AMP516)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from amp_audit import policy
from amp_audit.model import Finding, Location, Related, Subject
from amp_audit.rulebook import Detector, Rule
from amp_audit.trace.measures import Measure, finding, limit, measured, numbers
from amp_audit.trace.replay import where
from amp_audit.trace.schema import Number, Place, Trace

_SHOWN = 8
_FLUSHED = -25
"""Below 2**-25 a value becomes zero in float16; 2**-25 itself, a tie, does too, and is one value among many here."""
_OVERFLOWED = 16
"""From 2**16 on a value becomes inf in float16 (from 65520 on, to be exact)."""

POWERS = range(-24, 49)
"""Loss scales that are looked at, as powers of two."""


@dataclass(slots=True)
class Magnitudes:
    """How many gradient elements had which exponent, the loss scale taken out. ``steps``: those that were counted.

    ``broken``: steps that were not, since what they hold of inf or NaN is there at any loss scale.

    ``corrections``: by power of two, how much smaller a share that loss scale lost where the backward pass was repeated
    at it, than exponents say.
    """

    counts: dict[int, int] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)
    corrections: dict[int, float] = field(default_factory=dict)
    broken: list[int] = field(default_factory=list)

    @property
    def nonzero(self) -> int:
        return sum(self.counts.values())

    def flushed(self, power: int) -> int:
        """Elements that a loss scale of 2**power leaves too small for float16.

        Exponents say so exactly for each op by itself. Over a whole backward pass they say too much where more than
        half a percent is lost, since what rounds up to the smallest float16 is lost by no later op; ``corrections``
        take that out.
        """
        by_exponent = sum(count for exponent, count in self.counts.items() if exponent + power < _FLUSHED)
        return max(0, by_exponent - round(self._correction(power) * self.nonzero))

    def _correction(self, power: int) -> float:
        """Between the scales at which the backward pass was repeated, in proportion; above them none is needed."""
        if not self.corrections:
            return 0.0
        known = {**self.corrections, max(self.corrections) + 1: 0.0}
        below = max((one for one in known if one <= power), default=min(known))
        above = min((one for one in known if one >= power), default=max(known))
        if below >= above:
            return known[above] if power <= max(known) else 0.0
        part = (power - below) / (above - below)
        return known[below] * (1 - part) + known[above] * part

    def overflowed(self, power: int) -> int:
        """Elements that a loss scale of 2**power makes too large for float16."""
        return sum(count for exponent, count in self.counts.items() if exponent + power >= _OVERFLOWED)

    def window(self, tolerated: float) -> tuple[int, int] | None:
        """The smallest and the largest power of two without overflow and with no more than that share flushed."""
        most = tolerated * self.nonzero
        fitting = [power for power in POWERS if not self.overflowed(power) and self.flushed(power) <= most]
        return (fitting[0], fitting[-1]) if fitting and self.counts else None


def magnitudes(trace: Trace, module: str | None = None, *, searching: bool = True) -> Magnitudes:
    """Of all that the backward pass computed in float16, by the ops of one module or of all.

    A scale that is no power of two is taken for the next one below. Without ``searching`` steps that were skipped are
    left out, unless all were: that is how a scaler looks for its scale. Steps that no scale would have saved are
    always left out.
    """
    found = Magnitudes()
    hopeless = _hopeless(trace)
    skipped = {step for step, number in numbers(trace, "scale") if number.values.get("skipped")}
    counted = {step for step, _ in _exponents(trace, "backward")}
    found.broken = sorted(counted & hopeless)
    left_out = skipped if not searching and counted - hopeless - skipped else frozenset()
    for step, number in _exponents(trace, "backward"):
        if step in left_out or step in hopeless:
            continue
        if module is not None and number.subject != module:
            continue
        shift = _power(number.values.get("scale"))
        if shift is None:
            continue
        for exponent, count in _counts(number):
            found.counts[exponent - shift] = found.counts.get(exponent - shift, 0) + count
        found.steps.append(step)
    found.corrections = _corrections(trace, module, hopeless)
    return found


def _hopeless(trace: Trace) -> set[int]:
    """Steps whose loss is inf or NaN, or whose gradients become so without being too large for their scale."""
    found = {step for step, number in numbers(trace, "loss") if number.values.get("value", 0.0) is None}
    for step, number in numbers(trace, "nonfinite"):
        if number.phase != "backward" or number.values.get("nan"):
            found.add(step)
    return found


def _corrections(trace: Trace, module: str | None, hopeless: Set[int]) -> dict[int, float]:
    """By power of two: the share that exponents say is lost, less that which was, of the same gradients."""
    exponents = {
        (step, number.subject): number for step, number in _exponents(trace, "backward") if step not in hopeless
    }
    excess: dict[int, int] = {}
    nonzero = 0
    for step, number in numbers(trace, "rescaled"):
        known = exponents.get((step, number.subject))
        shift = _power(known.values.get("scale")) if known is not None else None
        if known is None or shift is None or (module is not None and number.subject != module):
            continue
        nonzero += int(number.values["nonzero"] or 0)
        for power, lost in _counts(number):
            said = sum(count for exponent, count in _counts(known) if exponent - shift + power < _FLUSHED)
            excess[power] = excess.get(power, 0) + said - lost
    return {power: count / nonzero for power, count in sorted(excess.items())} if nonzero else {}


def _exponents(trace: Trace, phase: str) -> Iterator[tuple[int, Number]]:
    return ((step, number) for step, number in numbers(trace, "exponents") if number.phase == phase)


def _counts(number: Number) -> Iterator[tuple[int, int]]:
    for name, count in number.values.items():
        if name.removeprefix("-").isdigit():
            yield int(name), int(count or 0)


def _power(scale: float | int | None) -> int | None:
    return math.frexp(scale)[1] - 1 if scale is not None and scale > 0 else None


def loss_scale_window(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """A loss scale outside of those that lose nothing, as the gradients of the measured steps were."""
    found = magnitudes(trace, searching=False)
    scales = [
        (number.subject or "scaler", float(before))
        for step, number in numbers(trace, "scale")
        if step in found.steps and (before := number.values.get("before")) is not None
    ]
    if not scales or found.nonzero < limit(rule, "elements"):
        return
    name, last = scales[-1]
    power = _power(last)
    window = found.window(float(detector.options["over"]))
    if power is None or (window is not None and window[0] <= power <= window[1]):
        return
    lost, over, of = found.flushed(power), found.overflowed(power), f"of {found.nonzero:,} gradient elements"
    fits = in_words(window)
    evidence = [
        measured("window", window[0] if window else 0, fits, unit="log2", steps=found.steps),
        measured("flushed_share", lost / found.nonzero, f"{lost:,} {of} are too small at {last:g}"),
        measured("overflowed", over, f"{over:,} {of} are too large at {last:g}"),
    ]
    message = f"the loss scale was {last:g}; {fits}"
    yield replace(finding(rule, message, None, evidence), subject=Subject("scaler", name))


def in_words(window: tuple[int, int] | None) -> str:
    """Which loss scales lose nothing, as a sentence."""
    if window is None:
        return "no loss scale fits the gradients of this run into float16 (bfloat16 needs none)"
    return f"loss scales from {2.0 ** window[0]:g} to {2.0 ** window[1]:g} fit the gradients of this run into float16"


def activation_near_overflow(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """The op whose float16 result came nearest to 65504, when fewer bits than the limit were left."""
    under = float(detector.options["under"])
    nearest: dict[tuple[Location | None, str], tuple[float, int, Place]] = {}
    for step, number in numbers(trace, "range"):
        largest = number.values.get("max")
        place = number.place or Place()
        key = (where(place), number.op or "?")
        if number.dtype == "float16" and largest and largest > nearest.get(key, (0.0,))[0]:
            nearest[key] = (float(largest), step, place)
    bad = [(key, *value) for key, value in nearest.items() if headroom(value[0]) < under]
    if not bad:
        return
    bad.sort(key=lambda item: -item[1])
    ((spot, op), largest, step, inner), *others = bad
    name = op.removeprefix("aten.").partition(".")[0]
    inside = f" in {inner.module}" if inner.module else ""
    message = f"{name}{inside} reached {largest:g} in float16, {headroom(largest):.1f} bits below its end (65504)"
    related = tuple(
        Related(where_, f"{name_.removeprefix('aten.').partition('.')[0]}: {headroom(value):.1f} bits left")
        for (where_, name_), value, _, _ in others[:_SHOWN]
        if where_ is not None and where_ != spot
    )
    evidence = [measured("headroom", round(headroom(largest), 3), message, unit="bits", steps=[step], at=spot)]
    found = replace(finding(rule, message, spot, evidence), related=related)
    yield found if spot is not None else replace(found, subject=Subject("module", inner.module or "run"))


def headroom(largest: float) -> float:
    """Bits between a magnitude and the largest finite float16."""
    return math.log2(policy.MAX_FINITE["float16"] / largest)


def together(traces: Iterable[Trace]) -> Magnitudes:
    """The magnitudes of several processes together."""
    total = Magnitudes()
    for trace in traces:
        one = magnitudes(trace)
        total.corrections = total.corrections or one.corrections
        for exponent, count in one.counts.items():
            total.counts[exponent] = total.counts.get(exponent, 0) + count
        total.steps = sorted({*total.steps, *one.steps})
        total.broken = sorted({*total.broken, *one.broken})
    return total


_ACCUMULATE = frozenset(
    {
        *(
            "sum",
            "mean",
            "prod",
            "cumsum",
            "cumprod",
            "logcumsumexp",
            "norm",
            "linalg_vector_norm",
            "var",
            "std",
            "dot",
        ),
        *("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "convolution", "convolution_backward", "index_add"),
        *("scatter_add", "scatter_reduce", "index_reduce", "embedding_dense_backward", "embedding_bag"),
        *("_embedding_bag", "_embedding_bag_dense_backward", "segment_reduce"),
    }
)
"""Operators that add up or multiply many elements into one."""


_OF_THE_DTYPE = frozenset(
    {"nextafter", "finfo", "fmod", "remainder", "floor_divide", "round", "floor", "ceil", "trunc"}
)
"""Operators that are meant to differ between dtypes, or jump where two values are as good as equal."""


_SLOW_ON_CPU = frozenset({"convolution_backward"})
"""Operators that add up batches in float16 in their CPU kernels alone (torch 2.13): nothing that a program does wrong,
and float16 convolutions are not what a CPU trains with."""


def accumulation_error(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """Each line where a long sum or product is off by more than rounding its result once explains."""
    yield from _errors(trace, rule, detector, True)


def rounding_error(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """Each line where any other op is off by more than rounding its result once explains."""
    yield from _errors(trace, rule, detector, False)


def _errors(trace: Trace, rule: Rule, detector: Detector, accumulates: bool) -> Iterator[Finding]:
    lines: dict[Location | None, list[tuple[float, Number, int]]] = {}
    for step, number in numbers(trace, "rounding"):
        name = (number.op or "").removeprefix("aten.").partition(".")[0]
        values, eps = number.values, EPS.get(number.dtype or "")
        if (name in _ACCUMULATE) is not accumulates or eps is None or name in _OF_THE_DTYPE:
            continue
        if name in _SLOW_ON_CPU and number.dtype == "float16" and trace.header.policy == "cpu":
            continue
        if not values.get("squares") or (values.get("elements") or 0) < limit(rule, "elements"):
            continue
        times = math.sqrt(float(values["errors"] or 0.0) / float(values["squares"] or 1.0)) / eps
        if times > float(detector.options["over"]):
            lines.setdefault(where(number.place or Place()), []).append((times, number, step))
    for place, seen in lines.items():
        times, number, _ = max(seen, key=lambda item: item[0])
        name = (number.op or "").removeprefix("aten.").partition(".")[0]
        inside = " in the backward pass" if number.phase == "backward" else ""
        message = f"{name} in {number.dtype}{inside} is off by {times:.1f} eps; rounding its result takes 0.5 at most"
        steps = [step for _, _, step in seen]
        found = finding(
            rule, message, place, [measured("eps", round(times, 3), message, unit="eps", steps=steps, at=place)]
        )
        yield found if place is not None else replace(found, subject=Subject("run", "run"))


EPS: Mapping[str, float] = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""``torch.finfo(dtype).eps``."""


RANGES: Mapping[str, Measure] = {
    "loss_scale_window": loss_scale_window,
    "activation_near_overflow": activation_near_overflow,
    "accumulation_error": accumulation_error,
    "rounding_error": rounding_error,
}
