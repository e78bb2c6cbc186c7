"""What was measured, held against the thresholds of the rules: AMP501, AMP511, AMP512, AMP514, AMP515.

A rule's ``runtime: {measure: NAME, over: X}`` names a function of this module; ``thresholds`` holds its other limits,
and says where they come from.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from amp_audit import policy
from amp_audit.model import Confidence, Evidence, Finding, Location, Related, Subject, Verdict
from amp_audit.rulebook import Detector, Rule
from amp_audit.state import LOW_PRECISION
from amp_audit.trace.replay import where
from amp_audit.trace.schema import Number, Place, Trace

_SHOWN = 8
_CASTS = frozenset({"_to_copy", "to", "copy_"})
Measure = Callable[[Trace, Rule, Detector], Iterator[Finding]]


def limit(rule: Rule, name: str) -> float:
    """A threshold of a rule file. Raises ``KeyError`` when the file does not have it."""
    return float(rule.thresholds[name])


def numbers(trace: Trace, name: str) -> Iterator[tuple[int, Number]]:
    """All numbers of one name, each with its step."""
    for record in trace.steps:
        for number in record.numbers:
            if number.name == name:
                yield record.step, number


def measured(
    name: str,
    value: float | int,
    text: str,
    *,
    unit: str | None = None,
    steps: Iterable[int] = (),
    at: Location | None = None,
) -> Evidence:
    """A number of a run as evidence."""
    return Evidence(
        "runtime",
        "number",
        text,
        path=at.path if at else None,
        line=at.line if at else None,
        name=name,
        value=value,
        unit=unit,
        steps=tuple(dict.fromkeys(steps)),
    )


def finding(rule: Rule, message: str, location: Location | None, evidence: Iterable[Evidence]) -> Finding:
    """A finding that only a run makes."""
    return Finding(
        rule=rule.id,
        name=rule.name,
        severity=rule.severity,
        confidence=Confidence.HIGH,
        message=message,
        location=location,
        verdict=Verdict.RUNTIME,
        evidence=tuple(evidence),
    )


# AMP511


@dataclass(slots=True)
class Flush:
    """What was lost at one line: sums over the steps in which it was counted. ``starved``: elements of the gradients
    that are zero for it.
    """

    nonzero: int = 0
    flushed: int = 0
    starved: int = 0
    ops: dict[str, int] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)

    def add(self, op: str, step: int, nonzero: int, flushed: int) -> None:
        self.nonzero += nonzero
        self.flushed += flushed
        self.ops[op] = self.ops.get(op, 0) + flushed
        self.steps.append(step)

    @property
    def share(self) -> float:
        return self.flushed / self.nonzero if self.nonzero else 0.0

    @property
    def lost(self) -> int:
        return max(self.flushed, self.starved)

    def is_worse(self, over: float, least: float) -> bool:
        """Whether so many elements were lost, and a larger share; a scalar may take all gradients behind it with it."""
        return self.starved >= least or (self.share > over and self.flushed >= least)

    @property
    def worst(self) -> str:
        return max(self.ops, key=lambda op: self.ops[op])


def gradient_underflow(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """The line where most nonzero gradient elements became zero, when their share there is over the limit."""
    lines = flushes(trace)
    over, least = float(detector.options["over"]), limit(rule, "elements")
    bad = [item for item in lines.items() if item[1].is_worse(over, least)]
    if not bad:
        return
    bad.sort(key=lambda item: -item[1].lost)
    (place, worst), *others = bad
    scale = _scale_in(trace, worst.steps)
    message = (
        f"{worst.share:.1%} of the nonzero gradient elements became zero in {_short(worst.worst)} "
        f"({worst.flushed:,} of {worst.nonzero:,}), with a loss scale of {scale:g}"
    )
    if worst.starved:
        message += f"; gradients of {worst.starved:,} elements are zero for it"
    text = f"{worst.flushed:,} of {worst.nonzero:,} nonzero elements flushed by {_short(worst.worst)}"
    evidence = [measured("flushed_share", worst.share, text, steps=worst.steps, at=place), *_parameters(trace)]
    related = tuple(
        Related(at, f"{flush.share:.1%} flushed in {_short(flush.worst)}")
        for at, flush in others[:_SHOWN]
        if at is not None
    )
    note = _policy_note(trace, [op for _, flush in bad for op in flush.ops])
    yield replace(finding(rule, message, place, evidence), related=related, note=note)


def flushes(trace: Trace) -> dict[Location | None, Flush]:
    """What rounding to float16 took from gradients, by line: at casts and at operators of the backward pass."""
    lines: dict[Location | None, Flush] = defaultdict(Flush)
    for record in trace.steps:
        for cast in record.casts:
            if cast.phase == "backward" and cast.target == "float16" and cast.nonzero is not None:
                name = f"the cast to {cast.target}"
                lines[where(cast.place)].add(name, record.step, cast.nonzero, cast.flushed or 0)
        for number in record.numbers:
            if number.name == "underflow" and number.phase == "backward" and number.dtype == "float16":
                at = where(number.place or Place())
                nonzero, flushed = int(number.values["nonzero"] or 0), int(number.values["flushed"] or 0)
                lines[at].add(number.op or "?", record.step, nonzero, flushed)
            elif number.name == "starved" and number.dtype == "float16":
                lines[where(number.place or Place())].starved += int(number.values["elements"] or 0)
    return lines


def _parameters(trace: Trace) -> list[Evidence]:
    """The parameters whose gradients lost most: all of it before it came to them, or where they were rounded."""
    return [*_starved(trace), *_rounded(trace)]


def _starved(trace: Trace) -> Iterator[Evidence]:
    seen: dict[str, tuple[Number, list[int]]] = {}
    for step, number in numbers(trace, "starved"):
        seen.setdefault(number.subject or "?", (number, []))[1].append(step)
    for name, (number, steps) in list(seen.items())[:_SHOWN]:
        place = number.place or Place()
        text = f"{name}: its gradient is zero, all of it was lost upstream by {loser(number)}"
        if place.module:
            text += f" in {place.module}"
        yield measured("starved", int(number.values["elements"] or 0), text, steps=steps, at=where(place))
    if len(seen) > _SHOWN:
        yield measured("starved_parameters", len(seen), f"{len(seen)} parameters have lost all of their gradient so")


def loser(number: Number) -> str:
    """What a person calls the op that lost values: its short name, or what a cast makes of them."""
    name = _short(number.op or "?")
    return f"the cast to {number.dtype}" if name in _CASTS else name


def _rounded(trace: Trace) -> list[Evidence]:
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for _, number in numbers(trace, "gradient"):
        total = totals[number.subject or "?"]
        total[0] += int(number.values["nonzero"] or 0)
        total[1] += int(number.values["flushed"] or 0)
    worst = sorted(((lost / seen, name) for name, (seen, lost) in totals.items() if lost), reverse=True)[:5]
    return [measured("flushed_share", share, f"{name}: {share:.1%} of its gradient flushed") for share, name in worst]


def _scale_in(trace: Trace, steps: Iterable[int]) -> float:
    wanted = set(steps)
    for step, number in numbers(trace, "scale"):
        before = number.values.get("before")
        if step in wanted and before is not None:
            return float(before)
    return 1.0


def _short(op: str) -> str:
    """An operator without namespace and overload."""
    return op if " " in op else op.removeprefix("aten.").partition(".")[0]


def _forward_name(op: str) -> str:
    """The name in the autocast lists of an operator, or of the one whose gradient it computes."""
    return policy.listed_name(op).removesuffix("_data").removesuffix("_backward")


def _policy_note(trace: Trace, ops: Iterable[str]) -> str:
    """Which of the operators CUDA's autocast would have computed in another dtype than the lists that were in force."""
    here = trace.header.policy
    release = trace.header.torch.partition("+")[0]
    if here == "cuda":
        return ""
    differing = sorted(
        {
            name
            for name in (_forward_name(op) for op in ops if " " not in op)
            if policy.lists(here, release).kind(name) != policy.lists("cuda", release).kind(name)
        }
    )
    if not differing:
        return ""
    return f"counted under the autocast lists of {here}; CUDA's treat {', '.join(differing)} otherwise"


# AMP512


def nonfinite_origin(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """Each line whose finite inputs gave inf or NaN that reached a gradient.

    An overflow of a gradient under a live loss scale is how GradScaler looks for its scale, and no finding.
    """
    seen: dict[Location | None, tuple[Number, list[int]]] = {}
    for step, number in numbers(trace, "nonfinite"):
        if number.op is None or _is_search(trace, step, number):
            continue
        seen.setdefault(where(number.place or Place()), (number, []))[1].append(step)
    for place, (number, steps) in seen.items():
        values = number.values
        made = " and ".join(
            f"{values[kind]:,} {word}" for kind, word in (("inf", "inf"), ("nan", "NaN")) if values[kind]
        )
        largest = values.get("input_max")
        inputs = f"finite inputs (largest {largest:.3g})" if largest is not None else "finite inputs"
        phase = " in the backward pass" if number.phase == "backward" else ""
        message = f"{_short(number.op or '?')} made {made} of {values['elements']:,} elements out of {inputs}{phase}"
        evidence = [
            measured("nonfinite", int(values["inf"] or 0) + int(values["nan"] or 0), message, steps=steps, at=place)
        ]
        found = replace(finding(rule, message, place, evidence), note=_policy_note(trace, [number.op or ""]))
        yield found if place is not None else replace(found, subject=Subject("run", "run"))


def _is_search(trace: Trace, step: int, number: Number) -> bool:
    """Whether an inf is no more than a scaled gradient that is too large; AMP515 says when that never ends."""
    if number.phase != "backward" or number.values.get("nan"):
        return False
    return any(at == step for at, _ in numbers(trace, "scale"))


# AMP501

_NO_ROOM = re.compile(r"value cannot be converted to type \S+ without overflow")


def scalar_overflow(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """Each line where an op raised because its scalar does not fit the low-precision dtype of its tensor."""
    seen: dict[Location | None, tuple[Number, list[int]]] = {}
    for step, number in numbers(trace, "raised"):
        if number.dtype in LOW_PRECISION and _NO_ROOM.search(number.subject or ""):
            seen.setdefault(where(number.place or Place()), (number, []))[1].append(step)
    for place, (number, steps) in seen.items():
        message = f"{_short(number.op or '?')} on {number.dtype} raised: {number.subject}"
        found = finding(rule, message, place, [measured("raised", len(steps), message, steps=steps, at=place)])
        yield found if place is not None else replace(found, subject=Subject("run", "run"))


# AMP514


def lost_updates(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """The parameter that lost most updates, when their share is over the limit; the others are its evidence."""
    totals: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    steps: list[int] = []
    guessed = False
    for step, number in numbers(trace, "lost_updates"):
        total = totals[number.subject or "?", number.dtype or "?"]
        total[0] += int(number.values["updates"] or 0)
        total[1] += int(number.values["lost"] or 0)
        guessed |= bool(number.values.get("by_gradient"))
        steps.append(step)
    over = float(detector.options["over"])
    bad = [(name, dtype, updates, lost) for (name, dtype), (updates, lost) in totals.items() if updates]
    bad = [one for one in bad if one[3] / one[2] > over and one[2] >= limit(rule, "updates")]
    if not bad:
        return
    bad.sort(key=lambda one: (-one[3], one[0]))
    name, dtype, updates, lost = bad[0]
    message = f"{lost / updates:.1%} of the nonzero updates of {name} ({dtype}) left the weight unchanged"
    if len(bad) > 1:
        message += f"; {len(bad)} of {len(totals)} {dtype} parameters lose more than {over:.0%}"
    evidence = [
        measured("lost_share", lost / updates, f"{name}: {lost:,} of {updates:,} updates lost", steps=steps)
        for name, _, updates, lost in bad[:_SHOWN]
    ]
    found = replace(finding(rule, message, None, evidence), subject=Subject("parameter", name))
    if guessed:
        found = replace(
            found,
            confidence=Confidence.MEDIUM,
            note="the optimizer is not one of torch's own: an update is taken for nonzero where the gradient is",
        )
    yield found


# AMP515


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """One update of a loss scale. ``probed``: the scale had just grown, so that a skip was to be expected."""

    step: int
    before: float
    after: float
    skipped: bool
    probed: bool


def unstable_scale(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """Scales that fall below the floor, that stay where every step is skipped, or that skip too often."""
    for name, points in _timelines(trace).items():
        message = _trouble(points, rule, float(detector.options["over"]))
        if message is None:
            continue
        skipped = [point.step for point in points if point.skipped]
        evidence = [
            measured("skipped_steps", len(skipped), f"{len(skipped)} of {len(points)} steps skipped", steps=skipped),
            measured("scale", points[-1].after, f"loss scale {points[0].before:g} -> {points[-1].after:g}"),
        ]
        built = [
            Related(place, "the scaler is built here")
            for record in trace.steps
            for row in record.events
            if row.kind == "scaler_new" and name in row.names and (place := where(row.place)) is not None
        ]
        found = finding(rule, f"{name}: {message}", None, evidence)
        yield replace(found, subject=Subject("scaler", name), related=tuple(built))


def _timelines(trace: Trace) -> dict[str, list[ScalePoint]]:
    lines: dict[str, list[ScalePoint]] = defaultdict(list)
    grown: dict[str, bool] = {}
    for step, number in numbers(trace, "scale"):
        before, after = number.values.get("before"), number.values.get("after")
        if before is None or after is None:
            continue
        name = number.subject or "scaler"
        skipped = bool(number.values.get("skipped"))
        lines[name].append(ScalePoint(step, float(before), float(after), skipped, skipped and grown.get(name, False)))
        if before != after:
            grown[name] = after > before
    return lines


def _trouble(points: list[ScalePoint], rule: Rule, over: float) -> str | None:
    stuck = falling = 0
    in_place = below = 0
    for point in points:
        in_place = in_place + 1 if point.skipped and point.after >= point.before else 0
        below = below + 1 if point.skipped and point.after < point.before else 0
        stuck = max(stuck, in_place)
        falling = max(falling, below if point.after < limit(rule, "floor") else 0)
    if falling >= limit(rule, "falling"):
        return f"the loss scale fell to {points[-1].after:g}: the gradients hold inf or NaN at any scale"
    if stuck >= limit(rule, "stuck"):
        return f"{stuck} steps in a row were skipped and the loss scale stayed at {points[-1].after:g}"
    first_good = next((index for index, point in enumerate(points) if not point.skipped), len(points))
    later = points[first_good:]
    skips = sum(point.skipped and not point.probed for point in later)
    if len(later) >= limit(rule, "steps") and skips / len(later) > over:
        return f"{skips} of {len(later)} steps after the first good one were skipped ({skips / len(later):.0%})"
    return None


MEASURES: Mapping[str, Measure] = {
    "gradient_underflow": gradient_underflow,
    "nonfinite_origin": nonfinite_origin,
    "scalar_overflow": scalar_overflow,
    "lost_updates": lost_updates,
    "unstable_scale": unstable_scale,
}
