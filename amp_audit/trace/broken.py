"""A loss or a gradient that is inf or NaN although no operator was seen to make it: AMP512 of steps that are not deep.

Where an inf or a NaN began is known of the first step and of deep ones. Of the others this tells which step, and as far
as what modules returned was counted, which module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from amp_audit.events import Kind
from amp_audit.model import Confidence, Finding, Location, Subject
from amp_audit.rulebook import Detector, Rule
from amp_audit.trace.measures import Measure, finding, measured, nonfinite_origin, numbers
from amp_audit.trace.replay import where
from amp_audit.trace.schema import Number, StepRecord, Trace

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Break:
    """The first step that went wrong. ``forward``: its loss already; ``place``: where its backward was called."""

    record: StepRecord
    forward: bool
    place: Location | None


def nonfinite_step(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """The first step whose loss, or gradients without a scaler, are inf or NaN, if no operator is known to blame."""
    if any(nonfinite_origin(trace, rule, detector)):
        return
    broken = _first(trace)
    if broken is None:
        return
    record = broken.record
    bad = _steps(trace, "loss", "value") if broken.forward else _steps(trace, "grad_norm", "norm")
    many = f"{len(bad)} steps, first in step {bad[0]}" if len(bad) > 1 else f"step {bad[0]}"
    what = "the loss is inf or NaN" if broken.forward else "gradients are inf or NaN where the loss is finite"
    known, module = _forward(record) if broken.forward else (_backward(record), None)
    held = _held(trace)
    if held is not None:
        known += f"; {held[1] or 'what came in from outside (data, another rank)'} held some when step {held[0]} began"
    place = (_line(record, module) if module is not None else None) or broken.place
    found = finding(
        rule, f"{what}, in {many}{known}", place, [measured("nonfinite_steps", len(bad), what, steps=bad, at=place)]
    )
    found = replace(found, confidence=Confidence.MEDIUM, note=_why(record, held))
    yield found if place is not None else replace(found, subject=Subject("run", "run"))


def _why(record: StepRecord, held: tuple[int, str | None] | None) -> str:
    if held is not None and held[0] == record.step:
        return f"no operator made it{': it is what the optimizer has left in the step before' if held[1] else ''}"
    if record.deep:
        return "which operator made it could not be followed"
    return (
        "operators are followed on deep steps and the first one, and the first of these was none: --deep all names it"
    )


def _held(trace: Trace) -> tuple[int, str | None] | None:
    """The first step in which inf or NaN was followed to where no operator made it, and the parameter if it is one."""
    found = ((step, number.subject) for step, number in numbers(trace, "nonfinite") if number.op is None)
    return next(found, None)


def _first(trace: Trace) -> _Break | None:
    """Under a scaler gradients overflow while it looks for its scale; a loss that does is wrong with it, too, unless
    scaled gradients are a part of it.
    """
    for record in trace.steps:
        if _is_search(record):
            continue
        losses = [number for number in record.numbers if number.name == "loss"]
        gone = next((number for number in losses if _is_gone(number, "value")), None)
        if gone is not None:
            return _Break(record, True, where(gone.place) if gone.place else None)
        norms = [number for number in record.numbers if number.name == "grad_norm"]
        if losses and not _is_scaled(record) and any(_is_gone(number, "norm") for number in norms):
            return _Break(record, False, where(losses[0].place) if losses[0].place else None)
    return None


def _is_search(record: StepRecord) -> bool:
    """Whether what broke may be no more than gradients with too large a loss scale in them: a gradient penalty's."""
    known = any(number.name == "nonfinite" and number.op is not None for number in record.numbers)
    penalty = any(row.kind == Kind.AUTOGRAD_GRAD.value and row.scaled is not False for row in record.events)
    return _is_scaled(record) and (known or penalty)


def _is_scaled(record: StepRecord) -> bool:
    """Whether an enabled scaler has a part in the step, be it never updated."""
    updated = any(number.name == "scale" for number in record.numbers)
    return updated or any(row.kind == Kind.SCALE.value for row in record.events)


def _is_gone(number: Number, key: str) -> bool:
    return key in number.values and number.values[key] is None


def _steps(trace: Trace, name: str, key: str) -> Sequence[int]:
    return list(dict.fromkeys(step for step, number in numbers(trace, name) if _is_gone(number, key)))


def _forward(record: StepRecord) -> tuple[str, str | None]:
    """What is known of where it began, between two modules that returned; the later one."""
    returned = _counted(record, "output")
    first = next((at for at, (_, bad) in enumerate(returned) if bad), None)
    if first is None:
        return "", None
    module = returned[first][0]
    since = f", after {_named(returned[first - 1][0])}" if first else ""
    return f"; the first module to return some was {_named(module)}{since}", module


def _backward(record: StepRecord) -> str:
    bad = [name for name, bad in _counted(record, "gradient") if bad]
    more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return f": those of {', '.join(bad[:_SHOWN])}{more}" if bad else ""


def _counted(record: StepRecord, phase: str) -> list[tuple[str, bool]]:
    """The modules whose outputs, or the parameters whose gradients, were counted, in order; whether some held inf or
    NaN."""
    counted = (number for number in record.numbers if number.name == "exponents" and number.phase == phase)
    return [(number.subject or "", bool(number.values.get("nonfinite"))) for number in counted]


def _named(module: str) -> str:
    return module or "the outermost"


def _line(record: StepRecord, module: str) -> Location | None:
    """The line on which a module computes, when there is only one."""
    lines = {where(row.place) for row in record.ops if row.phase == "forward" and row.place.module == module}
    return lines.pop() if len(lines) == 1 else None


BROKEN: Mapping[str, Measure] = {"nonfinite_step": nonfinite_step}
