"""Traces -> the numbers a report shows: the precision map, the loss scale, underflow by parameter, what was missed.

Everything is summed over steps and ranks from counts; shares are formed only where they are printed. Imports neither
torch nor libcst.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from amp_audit import policy
from amp_audit.trace.hot import HOT_PHASES, computed_in
from amp_audit.trace.measures import loser
from amp_audit.trace.ranges import together
from amp_audit.trace.schema import CastRow, Header, Number, OpRow, Place, StepRecord, Trace

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"})
LOW = frozenset({"float16", "bfloat16"})
_TALK = ("c10d.", "_c10d_functional.", "fsdp.")
"""Namespaces of ops that bring values to other ranks and compute none."""

BALANCE = 12.5
"""Float32 operations in the time of one byte moved: 19.5 TFLOP/s and 1.555 TB/s, NVIDIA's figures of the A100 40 GB."""


@dataclass(frozen=True, slots=True)
class Work:
    """Matmul and convolution work done in one dtype. ``flops`` counts a multiply-add twice.

    ``nanoseconds``: of those calls that were timed.
    """

    dtype: str
    flops: int
    calls: int
    nanoseconds: int = 0


@dataclass(frozen=True, slots=True)
class CastTotal:
    """All casts from one dtype to another. ``elements`` and ``bytes`` are those of the results."""

    source: str
    target: str
    calls: int
    elements: int
    bytes: int
    nanoseconds: int = 0


@dataclass(frozen=True, slots=True)
class Times:
    """How long ops took on the deep steps, each by itself: by the dtype they compute in, casts apart.

    ``steps``: how many steps of how many ranks were timed.
    """

    nanoseconds: tuple[tuple[str, int], ...]
    casts: int
    steps: int

    @property
    def total(self) -> int:
        return sum(spent for _, spent in self.nanoseconds) + self.casts


@dataclass(frozen=True, slots=True)
class Saved:
    """What autograd kept for backward in the step of one rank in which that was most, each largest first."""

    bytes: int
    step: int
    dtypes: tuple[tuple[str, int], ...]
    modules: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Live:
    """The tensors on one device of one rank in the step in which they took most memory, by dtype, largest first."""

    device: str
    bytes: int
    step: int
    dtypes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class HotOp:
    """A float32 op of the forward or backward pass at one line. ``autocast``: inside an enabled region.

    ``flops`` is 0 where no formula is known; ``moved``: bytes read and written.
    """

    op: str
    phase: str
    place: Place
    autocast: bool
    calls: int
    elements: int
    flops: int
    moved: int

    @property
    def computes(self) -> bool:
        """Whether arithmetic, not memory, is what it would wait for."""
        return self.flops > BALANCE * self.moved

    @property
    def weight(self) -> float:
        """How long it takes, in bytes that could be moved meanwhile: the roofline model of Williams et al. (2009)."""
        return max(self.flops / BALANCE, float(self.moved))


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """The loss scale around the end of one step."""

    step: int
    before: float
    after: float
    skipped: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """Where all of a gradient became zero before it came to the parameter, and in how many steps."""

    op: str
    place: Place
    steps: int


@dataclass(frozen=True, slots=True)
class Underflow:
    """A parameter's gradient on its way through low precision, summed over steps. ``scales``: loss scales in force.

    ``upstream``: it came to the parameter as zeros, of which no other count tells.
    """

    parameter: str
    elements: int
    nonzero: int
    flushed: int
    subnormal: int
    steps: int
    scales: tuple[float, ...]
    upstream: Lost | None = None

    @property
    def share(self) -> float:
        """flushed / nonzero: of the elements that were not zero, those that became zero."""
        return self.flushed / self.nonzero if self.nonzero else 0.0


@dataclass(frozen=True, slots=True)
class Health:
    """How one quantity of training went: its first, last and largest value, and in which step that was.

    ``nonfinite``: steps in which it was inf or NaN; these have no part in the rest.
    """

    name: str
    steps: int
    first: float
    last: float
    largest: float
    largest_at: int
    nonfinite: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Loss scales at which the gradients of the measured steps fit into float16; ``low`` None: there is none.

    ``elements``: gradient elements that were counted, by exponent, on ``steps``. ``broken``: steps whose gradients hold
    inf or NaN at any loss scale.
    """

    low: float | None
    high: float | None
    elements: int
    steps: tuple[int, ...]
    broken: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """An op whose autocast treatment on the recorded device differs from another device's: ``here``, ``there``."""

    op: str
    calls: int
    here: str
    there: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run was and did, over all its ranks.

    ``error``: the exception that ended the program, and where it was raised. ``processes``: how many trained.
    """

    header: Header
    reason: str
    steps: int
    recorded: tuple[int, ...]
    deep: tuple[int, ...]
    ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    silent_processes: int
    work: tuple[Work, ...] = ()
    casts: tuple[CastTotal, ...] = ()
    times: Times | None = None
    saved: Saved | None = None
    live: tuple[Live, ...] = ()
    allocated: tuple[tuple[str, int], ...] = ()
    float32: tuple[HotOp, ...] = ()
    scales: Mapping[str, tuple[ScalePoint, ...]] | None = None
    underflow: tuple[Underflow, ...] = ()
    window: Window | None = None
    health: tuple[Health, ...] = ()
    regions: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    unobserved: tuple[tuple[str, int], ...] = ()
    error: tuple[str, Place] | None = None
    processes: int = 1

    @property
    def observed(self) -> bool:
        """Whether a training step was seen at all."""
        return self.steps > 0


def summarize(traces: Sequence[Trace]) -> Summary:
    """One summary of the traces of one run. Raises ValueError without a trace."""
    if not traces:
        raise ValueError("no trace to summarize")
    trained = [trace for trace in traces if trace.finished] or list(traces)
    first = min(trained, key=lambda trace: trace.header.rank)
    ranks = tuple(sorted({trace.header.rank for trace in trained}))
    world = max(trace.header.world_size for trace in traces)
    valued = () if first.header.dry else first.steps  # a dry run's numbers were not computed
    rows = [row for trace in trained for step in trace.steps for row in step.ops]
    casts = [row for trace in trained for step in trace.steps for row in step.casts]
    return Summary(
        header=first.header,
        reason=_reason(traces),
        steps=max((trace.finished for trace in trained), default=0),
        recorded=_steps(trained, lambda step: step.recorded),
        deep=_steps(trained, lambda step: step.deep),
        ranks=ranks,
        missing_ranks=tuple(rank for rank in range(world) if rank not in ranks),
        silent_processes=len(traces) - len(trained),
        work=_work(rows),
        casts=_casts(casts),
        times=_times(step for trace in trained for step in trace.steps),
        live=_live(trained),
        allocated=_allocated(trained),
        saved=max(filter(None, map(_saved, trained)), key=lambda saved: saved.bytes, default=None),
        float32=_float32(rows),
        scales=_scales(valued),
        window=_window(trained),
        health=tuple(_health(valued)),
        underflow=_underflow(step for trace in trained for step in trace.steps),
        regions=tuple(sorted({row.autocast for row in rows if row.autocast})),
        differences=_differences(rows, first.header),
        notes=_notes(traces),
        unobserved=_unobserved(traces),
        error=_error(traces),
        processes=len(trained),
    )


def _steps(traces: Iterable[Trace], watched: Callable[[StepRecord], bool]) -> tuple[int, ...]:
    """Finished steps that were watched in some way; the one in flight at the end is none of them."""
    return tuple(sorted({step.step for trace in traces for step in trace.steps if watched(step) and not step.open}))


_REASONS = ("killed", "cut", "failed", "interrupted", "stopped", "finished")


def _reason(traces: Sequence[Trace]) -> str:
    """The worst end of a process. A child forked by one that trained is not the run, and may leave by ``os._exit``."""
    own = [trace for trace in traces if not trace.header.forked]
    counted = own if any(trace.finished for trace in own) else traces
    found = {trace.end.reason if trace.end else "killed" for trace in counted}
    return next((reason for reason in _REASONS if reason in found), "finished")


def _error(traces: Iterable[Trace]) -> tuple[str, Place] | None:
    for trace in traces:
        for step in trace.steps:
            for number in step.numbers:
                if number.name == "raised" and number.op is None and number.subject:
                    return number.subject, number.place or Place()
    return None


def _work(rows: Iterable[OpRow]) -> tuple[Work, ...]:
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        if row.flops is not None:
            total = totals[computed_in(row)]
            total[0] += row.flops
            total[1] += row.calls
            total[2] += row.nanoseconds or 0
    return tuple(
        Work(dtype, *total) for dtype, total in sorted(totals.items(), key=lambda item: (-item[1][0], item[0]))
    )


_WIDTHS = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64")


def _times(steps: Iterable[StepRecord]) -> Times | None:
    """By dtype, the narrowest first; what is no floating point comes last."""
    spent: Counter[str] = Counter()
    casts = timed = 0
    for step in steps:
        before = sum(spent.values()) + casts
        casts += sum(row.nanoseconds or 0 for row in step.casts)
        for row in step.ops:
            dtype = computed_in(row)
            spent[dtype if dtype in FLOATS else "other"] += row.nanoseconds or 0
        timed += sum(spent.values()) + casts > before
    if not timed:
        return None
    return Times(tuple((dtype, spent[dtype]) for dtype in (*_WIDTHS, "other") if spent[dtype]), casts, timed)


def _allocated(traces: Iterable[Trace]) -> tuple[tuple[str, int], ...]:
    """The largest peak of each GPU's memory; ranks name the GPUs of their own machine."""
    peaks: Counter[str] = Counter()
    for trace in traces:
        for step in trace.steps:
            for number in step.numbers:
                if number.name == "allocated" and number.subject:
                    peaks[number.subject] = max(peaks[number.subject], int(number.values["peak"] or 0))
    return tuple(sorted(peaks.items()))


def _live(traces: Iterable[Trace]) -> tuple[Live, ...]:
    """A step may be written in parts, each of which tells of its own moment."""
    moments: defaultdict[str, Counter[tuple[int, int, int]]] = defaultdict(Counter)
    dtypes: defaultdict[tuple[str, tuple[int, int, int]], Counter[str]] = defaultdict(Counter)
    for rank, trace in enumerate(traces):
        for step in trace.steps:
            for number in step.numbers:
                if number.name == "live" and number.subject:
                    together = int(number.values["together"] or 0)
                    moment = (rank, step.step, together)
                    moments[number.subject][moment] = together
                    dtypes[number.subject, moment][number.dtype or "?"] = int(number.values["bytes"] or 0)
    found = {device: seen.most_common(1)[0] for device, seen in moments.items()}
    return tuple(
        Live(device, together, moment[1], tuple(dtypes[device, moment].most_common()))
        for device, (moment, together) in sorted(found.items())
    )


def _saved(trace: Trace) -> Saved | None:
    most: Saved | None = None
    for step in trace.steps:
        dtypes: Counter[str] = Counter()
        modules: Counter[str] = Counter()
        for number in step.numbers:
            if number.name == "saved":
                dtypes[number.dtype or "?"] += int(number.values["bytes"] or 0)
                modules[number.subject or ""] += int(number.values["bytes"] or 0)
        total = sum(dtypes.values())
        if total and (most is None or total > most.bytes):
            most = Saved(total, step.step, tuple(dtypes.most_common()), tuple(modules.most_common()))
    return most


def _casts(rows: Iterable[CastRow]) -> tuple[CastTotal, ...]:
    totals: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in rows:
        total = totals[row.source, row.target]
        total[3] += row.nanoseconds or 0
        total[0] += row.calls
        total[1] += row.elements
        total[2] += row.bytes
    found = [CastTotal(source, target, *total) for (source, target), total in totals.items()]
    return tuple(sorted(found, key=lambda cast: (-cast.bytes, cast.source, cast.target)))


def _float32(rows: Iterable[OpRow]) -> tuple[HotOp, ...]:
    """Float32 ops of the hot path, the heaviest first: matmuls and convolutions, and what autocast left in float32.

    Elementwise float32 work outside of regions (gradient sums, losses) is what mixed precision is meant to do.
    """
    groups: defaultdict[tuple[str, str, bool, str | None, int | None], list[OpRow]] = defaultdict(list)
    for row in rows:
        told = row.flops is not None or (row.autocast is not None and not row.op.startswith(_TALK))
        if told and row.phase in HOT_PHASES and computed_in(row) == "float32" and row.output == "float32":
            place = row.place
            path, line = place.user_path or place.path, place.user_line or place.line
            groups[row.op, row.phase, row.autocast is not None, path, line].append(row)
    found = [
        HotOp(
            op=key[0],
            phase=key[1],
            place=group[0].place,
            autocast=key[2],
            calls=sum(row.calls for row in group),
            elements=sum(row.elements for row in group),
            flops=sum(row.flops or 0 for row in group),
            moved=sum(row.bytes + row.read for row in group),
        )
        for key, group in groups.items()
    ]
    return tuple(sorted(found, key=lambda op: (-op.weight, op.op, op.phase)))


def _scales(steps: Iterable[StepRecord]) -> Mapping[str, tuple[ScalePoint, ...]]:
    found: defaultdict[str, list[ScalePoint]] = defaultdict(list)
    for step in steps:
        for number in step.numbers:
            point = _scale_point(step.step, number)
            if point is not None:
                found[number.subject or "scaler"].append(point)
    return {name: tuple(points) for name, points in found.items()}


def _scale_point(step: int, number: Number) -> ScalePoint | None:
    before, after = number.values.get("before"), number.values.get("after")
    if number.name != "scale" or before is None:
        return None
    return ScalePoint(
        step, float(before), float(before if after is None else after), bool(number.values.get("skipped"))
    )


_TOLERATED = 0.001
"""Share of nonzero gradient elements that a loss scale may lose and still count as fitting (AMP516)."""


def _window(traces: Sequence[Trace]) -> Window | None:
    found = together(traces)
    if not found.counts and not found.broken:
        return None
    window = found.window(_TOLERATED)
    low, high = (2.0 ** window[0], 2.0 ** window[1]) if window else (None, None)
    return Window(low, high, found.nonzero, tuple(found.steps), tuple(found.broken))


Point = tuple[int, float | int | None]


def _health(steps: Sequence[StepRecord]) -> Iterator[Health]:
    """Losses and gradient norms of the first rank.

    A step's loss is the sum over its backward passes, for that is what its gradient is of; passes at several lines
    (a generator's and a discriminator's) are told apart, and so are optimizers and clips of several models. Of several
    clips of one model in a step each counts by itself.
    """
    yield from _losses([step for step in steps if not step.open])
    clipped, stepped = _points(steps, "clip", "unscaled"), _points(steps, "grad_norm", "norm")
    several = len(stepped) > 1
    yield from _norms("gradient norm before clipping", clipped, several)
    yield from _norms("gradient norm at the step" if clipped else "gradient norm", stepped, several)


def _norms(name: str, points: Mapping[str, Sequence[Point]], several: bool) -> Iterator[Health]:
    for subject, course in points.items():
        yield from _course(f"{name} of {subject}" if subject and several else name, course)


def _losses(steps: Sequence[StepRecord]) -> Iterator[Health]:
    lines: defaultdict[tuple[str | None, int | None], defaultdict[int, list[float | int | None]]]
    lines = defaultdict(lambda: defaultdict(list))
    for step in steps:
        for number in step.numbers:
            if number.name == "loss" and "value" in number.values:
                place = number.place or Place()
                lines[place.user_path or place.path, place.user_line or place.line][step.step].append(
                    number.values["value"]
                )
    for (_, line), by_step in lines.items():
        counts = {len(values) for values in by_step.values()}
        name = "loss" if len(lines) == 1 else f"loss of line {line}"
        if counts != {1}:
            least, most = min(counts), max(counts)
            name += f", summed over the {least if least == most else f'{least} to {most}'} backward passes of a step"
        points = [(step, None if None in values else sum(filter(None, values))) for step, values in by_step.items()]
        yield from _course(name, points)


def _points(steps: Sequence[StepRecord], name: str, key: str) -> Mapping[str, list[Point]]:
    """By whose they are."""
    found: defaultdict[str, list[Point]] = defaultdict(list)
    for step in steps:
        for number in step.numbers:
            if number.name == name and key in number.values:
                found[number.subject or ""].append((step.step, number.values[key]))
    return found


def _course(name: str, points: Sequence[Point]) -> Iterator[Health]:
    good = [(at, float(value)) for at, value in points if value is not None]
    if good:
        at, largest = max(good, key=lambda point: point[1])
        bad = tuple(dict.fromkeys(step for step, value in points if value is None))
        yield Health(name, len({step for step, _ in points}), good[0][1], good[-1][1], largest, at, bad)


def _underflow(steps: Iterable[StepRecord]) -> tuple[Underflow, ...]:
    groups: defaultdict[str, list[Mapping[str, float | int | None]]] = defaultdict(list)
    measured: defaultdict[str, set[int]] = defaultdict(set)  # a step of several optimizers measures a gradient again
    starved: defaultdict[str, dict[int, Number]] = defaultdict(dict)
    for step in steps:
        for number in step.numbers:
            name = number.subject or "?"
            if number.name == "gradient" and number.values.get("nonzero") is not None:
                groups[name].append(number.values)
                measured[name].add(step.step)
            elif number.name == "starved":
                starved[name][step.step] = number
                measured[name].add(step.step)
    found = [
        _one_underflow(name, groups.get(name, ()), len(counted), starved.get(name))
        for name, counted in measured.items()
    ]
    return tuple(
        sorted(found, key=lambda u: (u.upstream is None, -u.share, -u.subnormal / max(1, u.nonzero), u.parameter))
    )


def _one_underflow(
    name: str, group: Sequence[Mapping[str, float | int | None]], steps: int, starved: Mapping[int, Number] | None
) -> Underflow:
    def total(key: str) -> int:
        return sum(int(values.get(key) or 0) for values in group)

    scales = sorted({float(scale) for values in group if (scale := values.get("scale")) is not None})
    upstream = None
    if starved:
        number = next(iter(starved.values()))
        upstream = Lost(loser(number), number.place or Place(), len(starved))
    return Underflow(
        name, total("elements"), total("nonzero"), total("flushed"), total("subnormal"), steps, tuple(scales), upstream
    )


def _differences(rows: Iterable[OpRow], header: Header, other: str = "cuda") -> tuple[Difference, ...]:
    """Forward ops under autocast whose dtype ``other``'s lists would make another one."""
    if header.policy == other:
        return ()
    release = header.torch.partition("+")[0]
    here, there = policy.lists(header.policy, release), policy.lists(other, release)
    calls: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        ran = row.output
        if row.phase != "forward" or row.autocast is None or ran not in FLOATS or ran is None:
            continue
        name = policy.listed_name(row.op)
        if here.kind(name) == there.kind(name):
            continue
        would = policy.result_dtype(name, row.inputs, row.autocast, other, release)
        if would is not None and would != ran and {would, ran} & LOW:
            calls[name, ran, would] += row.calls
    return tuple(Difference(op, n, ran, would) for (op, ran, would), n in sorted(calls.items(), key=lambda i: -i[1]))


def _notes(traces: Iterable[Trace]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_each_note(traces)))


def _each_note(traces: Iterable[Trace]) -> Iterator[str]:
    for trace in traces:
        for step in trace.steps:
            yield from step.notes
        if trace.end is not None:
            yield from trace.end.notes


def _unobserved(traces: Iterable[Trace]) -> tuple[tuple[str, int], ...]:
    found: Counter[str] = Counter()
    for trace in traces:
        if trace.end is not None:
            found.update(trace.end.unobserved)
    return tuple(sorted(found.items(), key=lambda item: (-item[1], item[0])))
