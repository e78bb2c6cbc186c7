"""Where a run spends work that low precision was meant to save: AMP601, AMP602 and AMP607."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

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


def float32_work(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """The line with most matmul and convolution work outside of low precision, when the share of all is over the limit.

    Only of programs whose backward pass computes in low precision somewhere: others have not asked for it. Nor does
    what a region within another turns off count, on purpose as it is; with ``kept`` that is what counts.
    """
    kept = bool(detector.options.get("kept"))
    lines: Counter[Location | None] = Counter()
    dtypes: Counter[str] = Counter()
    asked = False
    for record in trace.steps:
        for row in record.ops:
            if row.flops and row.phase in HOT_PHASES:
                dtype = computed_in(row)
                dtypes[dtype] += row.flops
                asked |= row.phase == "backward" and dtype in LOW_PRECISION
                if dtype in ("float32", "float64") and row.off is kept:
                    lines[where(row.place)] += row.flops
    total, slow = sum(dtypes.values()), sum(lines.values())
    if not total or not asked:
        return
    if slow / total <= float(detector.options["over"]) or total < limit(rule, "flops"):
        return
    ((place, most), *others) = lines.most_common()
    turned_off = " in regions that turn autocast off" if kept else ""
    message = f"{slow / total:.1%} of the matmul and convolution work ran outside of low precision{turned_off}"
    if len(lines) > 1:
        message += f", most of it ({most / slow:.0%}) here"
    shares = ", ".join(f"{dtype} {count / total:.1%}" for dtype, count in dtypes.most_common())
    evidence = [measured("float32_share", slow / total, f"work by dtype: {shares}", at=place)]
    related = tuple(Related(at, f"{count / total:.1%} of the work") for at, count in others[:_SHOWN] if at is not None)
    severity = detector.severity or rule.severity
    found = replace(finding(rule, message, place, evidence), related=related, severity=severity)
    yield found if place is not None else replace(found, subject=Subject("run", "run"))


def cast_churn(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """The line whose parameters are cast again most, when the share of all weight casts is over the limit."""
    again: dict[Location | None, list[int]] = defaultdict(lambda: [0, 0])
    total = repeated = 0
    for record in trace.steps:
        for row in record.casts:
            if row.again is not None and row.phase == "forward":
                total += row.elements
                repeated += row.again
                again[where(row.place)][0] += row.again
                again[where(row.place)][1] += row.elements
    if not total or repeated / total <= float(detector.options["over"]) or repeated < limit(rule, "elements"):
        return
    place, (most, of) = max(again.items(), key=lambda item: item[1][0])
    message = f"{most / of:.0%} of what is cast here are weights that were cast before in the same region, unchanged"
    text = f"{repeated:,} of {total:,} elements cast in the forward pass were cast again"
    found = finding(rule, message, place, [measured("cast_again", repeated / total, text, at=place)])
    yield found if place is not None else replace(found, subject=Subject("run", "run"))


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
