"""Where a run spends work that low precision was meant to save: AMP601, AMP602 and AMP607."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from amp_audit.model import Finding, Location, Related, Subject
from amp_audit.rulebook import Detector, Rule
from amp_audit.state import LOW_PRECISION
from amp_audit.trace.measures import Measure, finding, limit, measured, numbers
from amp_audit.trace.replay import where
from amp_audit.trace.schema import Number, OpRow, Place, Trace

HOT_PHASES = frozenset({"forward", "recompute", "backward"})
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"})
_SHOWN = 8


def computed_in(row: OpRow) -> str:
    """The dtype an op computed in: that of its first float input, or of its output when it has none."""
    return next((dtype for dtype in row.inputs if dtype in _FLOATS), row.output or "unknown")


@dataclass(frozen=True, slots=True)
class _Work:
    """Matmul and convolution work of the hot path, by dtype; that outside of low precision by reason and line."""

    dtypes: Counter[str]
    reasons: Mapping[str, Counter[Location | None]]
    asked: bool


_HERE = ""
"""No reason is known why this is not in low precision."""


def float32_work(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """The line with most matmul and convolution work outside of low precision, when the share of all is over the limit.

    Only of programs whose backward pass computes in low precision somewhere: others have not asked for it. Nor does
    what is so on purpose count, as far as that shows; with ``kept`` that is what counts.
    """
    kept = bool(detector.options.get("kept"))
    work = _work(trace)
    reasons = {reason: found for reason, found in work.reasons.items() if (reason != _HERE) is kept}
    lines: Counter[Location | None] = sum(reasons.values(), Counter())
    total, slow = sum(work.dtypes.values()), sum(lines.values())
    if not work.asked or slow / total <= float(detector.options["over"]) or total < limit(rule, "flops"):
        return
    ((place, most), *others) = lines.most_common()
    message = f"{slow / total:.1%} of the matmul and convolution work ran outside of low precision"
    message += f", on purpose as it seems ({', '.join(reasons)})" if kept else ""
    if len(lines) > 1:
        message += f", most of it ({most / slow:.0%}) here"
    shares = ", ".join(f"{dtype} {count / total:.1%}" for dtype, count in work.dtypes.most_common())
    evidence = [measured("float32_share", slow / total, f"work by dtype: {shares}", at=place)]
    related = tuple(Related(at, f"{count / total:.1%} of the work") for at, count in others[:_SHOWN] if at is not None)
    severity = detector.severity or rule.severity
    found = replace(finding(rule, message, place, evidence), related=related, severity=severity)
    yield found if place is not None else replace(found, subject=Subject("run", "run"))


def _work(trace: Trace) -> _Work:
    rows = [row for record in trace.steps for row in record.ops if row.flops and row.phase in HOT_PHASES]
    low = [row for row in rows if computed_in(row) in LOW_PRECISION]
    purpose = _Purpose(trace, rows, low)
    dtypes: Counter[str] = Counter()
    reasons: defaultdict[str, Counter[Location | None]] = defaultdict(Counter)
    for row in rows:
        dtype = computed_in(row)
        dtypes[dtype] += row.flops or 0
        if dtype in ("float32", "float64"):
            reasons[purpose.of(row)][where(row.place)] += row.flops or 0
    return _Work(dtypes, reasons, any(row.phase == "backward" for row in low))


class _Purpose:
    """Why work is in float32, as far as a program shows that it means it.

    A region within another one turns autocast off. A module that low precision runs elsewhere is called outside of
    regions for what needs the precision (a gradient penalty, an evaluation): the same line of it, or a layer with no
    lines of its own. A model with an optimizer of its own that low precision never touches is trained in float32.
    """

    def __init__(self, trace: Trace, rows: Iterable[OpRow], low: Iterable[OpRow]) -> None:
        modules = {row.place.module for row in rows if row.place.module}
        around = {one[:at] for one in modules for at, letter in enumerate(one) if letter == "."}
        self._low = {row.place.module for row in low}
        self._low_layers = (modules - around) & self._low
        self._low_lines = {(row.place.module, where(row.place)) for row in low}
        trained = {number.subject or "" for _, number in numbers(trace, "grad_norm")}
        self._whole = {one for one in trained if not any(_is_in(module, one) for module in self._low)}

    def of(self, row: OpRow) -> str:
        """The reason, ``_HERE`` where none shows."""
        module = row.place.module
        if row.off:
            return "regions that turn autocast off"
        if row.autocast is None and (module in self._low_layers or (module, where(row.place)) in self._low_lines):
            return "calls of what low precision runs elsewhere"
        if row.autocast is None and any(_is_in(module, one) for one in self._whole):
            return "models that are trained in float32 as a whole"
        return _HERE


def _is_in(module: str | None, outer: str) -> bool:
    return f"{module}.".startswith(f"{outer}.")


def cast_churn(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """The line whose parameters are cast again most, when the share of all weight casts is over the limit.

    ``cost``: and what that takes is at least this share of the work of the hot path; with ``slight`` it is less.
    """
    again: dict[Location | None, list[int]] = defaultdict(lambda: [0, 0])
    total = repeated = moved = 0
    for record in trace.steps:
        for row in record.casts:
            if row.again is not None and row.phase == "forward":
                total += row.elements
                repeated += row.again
                moved += row.again * (_SIZES.get(row.source, 4) + _SIZES.get(row.target, 2))
                again[where(row.place)][0] += row.again
                again[where(row.place)][1] += row.elements
    if not total or repeated / total <= float(detector.options["over"]) or repeated < limit(rule, "elements"):
        return
    cost = moved / _weight(trace)
    slight = bool(detector.options.get("slight"))
    if (cost < float(detector.options["cost"])) is not slight:
        return
    place, (most, of) = max(again.items(), key=lambda item: item[1][0])
    message = f"{most / of:.0%} of what is cast here are weights that were cast before in the same region, unchanged"
    text = f"{repeated:,} of {total:,} elements cast in the forward pass were cast again"
    work = f"{cost:.1%} of the work of the forward and backward pass goes into that, by bytes moved and FLOPs"
    evidence = [
        measured("cast_again", repeated / total, text, at=place),
        measured("cast_again_cost", cost, work, at=place),
    ]
    found = replace(finding(rule, message, place, evidence), severity=detector.severity or rule.severity)
    yield found if place is not None else replace(found, subject=Subject("run", "run"))


_SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_BALANCE = {"float16": 200.0, "bfloat16": 200.0}
"""Operations in the time of one byte moved: 312 TFLOP/s and 1.555 TB/s (NVIDIA A100 40 GB); 19.5 in float32."""
_BALANCE_32 = 12.5


def _weight(trace: Trace) -> float:
    """What the hot path takes, in bytes that could be moved meanwhile: the roofline model of Williams et al. (2009)."""
    amount = 0.0
    for record in trace.steps:
        for row in record.ops:
            if row.phase in HOT_PHASES:
                amount += max((row.flops or 0) / _BALANCE.get(computed_in(row), _BALANCE_32), row.bytes + row.read)
        for cast in record.casts:
            if cast.phase in HOT_PHASES:
                amount += cast.elements * (_SIZES.get(cast.source, 4) + _SIZES.get(cast.target, 4))
    return max(amount, 1.0)


def widened(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """Each line at which a float32 table met low-precision activations, when the share of the forward pass's bytes that
    ops after it write in float32 for that is over the limit."""
    lines: dict[Location | None, list[tuple[int, Number]]] = defaultdict(list)
    for step, number in numbers(trace, "widened"):
        lines[where(number.place or Place())].append((step, number))
    for place, seen in lines.items():
        counts = [[int(number.values[key] or 0) for key in ("bytes", "ops", "together")] for _, number in seen]
        steps = len({step for step, _ in seen})
        amount, ops, most = sum(own for own, _, _ in counts), sum(one for _, one, _ in counts) // steps, 0
        most = sum({step: together for (step, _), (_, _, together) in zip(seen, counts, strict=True)}.values())
        if not most or amount / most <= float(detector.options["over"]) or amount / steps < limit(rule, "bytes"):
            continue
        first = seen[0][1]
        table = f"the float32 table {first.subject}" if first.subject else "a float32 table"
        message = (
            f"{amount / most:.0%} of the bytes that the forward pass writes are float32 since "
            f"{first.dtype} activations meet {table} here"
        )
        text = f"{ops:,} later ops a step write {amount // steps:,} bytes in float32"
        evidence = [measured("widened_share", amount / most, text, steps=[step for step, _ in seen], at=place)]
        found = finding(rule, message, place, evidence)
        yield found if place is not None else replace(found, subject=Subject("run", "run"))


HOT: Mapping[str, Measure] = {"float32_work": float32_work, "cast_churn": cast_churn, "widened": widened}
