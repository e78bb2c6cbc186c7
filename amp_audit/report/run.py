"""Sections of the terminal report that tell of the run: precision map, loss scale, underflow, what was missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from amp_audit.report import emulated
from amp_audit.report.content import Program, shown_path
from amp_audit.report.layout import section
from amp_audit.report.source import printable
from amp_audit.report.summary import BALANCE, Health, HotOp, Lost, Saved, ScalePoint, Summary, Times, Underflow
from amp_audit.report.words import ending, listed, plural, ranges, scale, share, size, work
from amp_audit.trace.schema import Header, Place

MOST_ROWS = 5
MOST_CHANGES = 8
BAR = 24
NAME = 40
"""Cells for the name of a parameter: with the rest of its row it fits into 80 columns."""


def sections(run: Summary, program: Program | None, root: Path, verbose: bool) -> Iterator[RenderableType]:
    """The run's sections in reading order; those with nothing to tell are left out."""
    limit = 10**6 if verbose else MOST_ROWS
    yield section("The run", [Text(printable(line)) for line in _story(run, program, root)])
    if run.work or run.casts or run.float32:
        yield section("Precision", list(_precision(run, root, limit)))
    if run.scales or run.window is not None:
        yield section("Loss scale", [*_scales(run), *_window(run)])
    if run.underflow:
        yield section("Gradients lost to low precision", list(_underflow(run.underflow, limit, root)))
    if run.health:
        yield section("Training", [Text(line) for line in _training(run.health, limit)])


def _story(run: Summary, program: Program | None, root: Path) -> Iterator[str]:
    head = run.header
    yield from emulated.story(head)
    error = f": {_error(run.error, root)}" if run.error is not None and run.reason == "failed" else ""
    name = " ".join(head.argv) or "the program"
    if not run.observed:
        before = {
            "failed": "failed",
            "killed": _cut_off(program),
            "interrupted": "was interrupted",
            "cut": "its trace broke off",
        }
        if run.reason in before:
            yield f"{name}: {before[run.reason]} before its first optimizer step{error}"
        else:
            yield f"{name}: no optimizer step was seen, so little is known of its numbers"
    else:
        ends = {
            "stopped": f"stopped by amp-audit after {plural(run.steps, 'step')}",
            "finished": f"ran to its end, {_watched(run)}",
            "failed": f"failed after {plural(run.steps, 'step')}{error}",
            "cut": f"recorded for {plural(run.steps, 'step')}, then the trace could not be written any further",
            "interrupted": f"interrupted after {plural(run.steps, 'step')}",
            "killed": f"{_cut_off(program)} after {plural(run.steps, 'recorded step')}",
        }
        yield f"{name}: {ends.get(run.reason, run.reason)}"
    if program is not None and program.failed:
        yield f"the program {program.ended}"
    place = head.device if head.emulated is None else f"an emulated {head.device}"
    where = f"torch {head.torch}, Python {head.python}, on {place}"
    regions = f"autocast {listed(run.regions)}" if run.regions else "no op ran under autocast"
    yield f"{where}; {regions}" if run.observed else where
    if len(run.ranks) > 1 or head.world_size > 1:
        yield f"ranks {ranges(run.ranks)} of {head.world_size}"
    if run.processes > len(run.ranks):
        yield f"{plural(run.processes, 'process', 'processes')} trained: operators, casts and times are sums over all"


def _error(error: tuple[str, Place], root: Path) -> str:
    text, place = error
    path, line = place.user_path or place.path, place.user_line or place.line
    return f"{text} ({shown_path(path, root)}:{line})" if path is not None else text


def _watched(run: Summary) -> str:
    """Where the steps asked for were all seen, the program may have run on (``--continue``)."""
    steps = plural(run.steps, "step")
    return f"watched for the {steps} asked for" if run.steps == run.header.steps else steps


def _cut_off(program: Program | None) -> str:
    """How a program went that left no end: ``os._exit`` gives an exit code, a signal gives none."""
    return "was killed" if program is None or program.exit is None else "ended at once, without clean-up,"


def _precision(run: Summary, root: Path, limit: int) -> Iterator[RenderableType]:
    total = sum(item.flops for item in run.work)
    if run.work:
        yield Text("matmul and convolution work by dtype", style="dim")
        table = _grid(4)
        for item in run.work:
            table.add_row(item.dtype, _bar(item.flops, total), share(item.flops, total), plural(item.calls, "call"))
        yield table
    if run.times is not None:
        yield from _times(run.times, run.header)
    if run.casts:
        yield Text("casts", style="dim")
        table = _grid(3)
        for cast in run.casts[:limit]:
            table.add_row(f"{cast.source} -> {cast.target}", plural(cast.calls, "call"), size(cast.bytes))
        yield table
    if run.saved is not None:
        yield from _saved(run.saved, limit)
    for live in run.live:
        yield Text(f"tensors on {live.device}, at most (step {live.step})", style="dim")
        yield Text(", ".join(f"{dtype} {size(amount)}" for dtype, amount in live.dtypes))
    if run.allocated:
        peaks = ", ".join(f"{device} {size(peak)}" for device, peak in run.allocated)
        yield Text(f"GPU memory allocated at most: {peaks}")
    if run.float32:
        yield Text("float32 under autocast, and float32 matmuls anywhere, heaviest first", style="dim")
        yield Text(f"(by FLOPs or bytes moved: {BALANCE:g} FLOPs weigh as much as a byte)", style="dim")
        yield _float32(run.float32[:limit], root)


def _times(times: Times, header: Header) -> Iterator[RenderableType]:
    how = "from event to event" if header.policy == "cuda" else "dispatch included"
    yield Text(f"time of ops by dtype, a deep step (each by itself, {how})", style="dim")
    table = _grid(4)
    for name, spent in (*times.nanoseconds, ("casts", times.casts)):
        if spent:
            milliseconds = f"{spent / times.steps / 1e6:.2f} ms"
            table.add_row(name, _bar(spent, times.total), share(spent, times.total), milliseconds)
    yield table


def _saved(saved: Saved, limit: int) -> Iterator[RenderableType]:
    yield Text(f"kept for backward, at most (step {saved.step})", style="dim")
    yield Text(", ".join(f"{dtype} {size(amount)}" for dtype, amount in saved.dtypes))
    table = _grid(3)
    for module, amount in saved.modules[:limit]:
        table.add_row(ending(printable(module), NAME) or "outside of modules", share(amount, saved.bytes), size(amount))
    yield table


def _float32(ops: Sequence[HotOp], root: Path) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="ellipsis", no_wrap=True, max_width=20)
    for _ in ("phase", "amount", "place"):
        table.add_column(overflow="fold")
    for op in ops:
        place = op.place
        path, line = place.user_path or place.path, place.user_line or place.line
        where = f"{shown_path(path, root)}:{line}" if path is not None else (place.module or "")
        amount = work(op.flops) if op.computes else f"{size(op.moved)} moved"
        table.add_row(short_name(op.op), op.phase, amount, printable(where))
    return table


def short_name(op: str) -> str:
    """``aten.mul.Tensor`` as people call it: ``mul``; ops of other libraries keep their namespace."""
    return op.removeprefix("aten.").partition(".")[0] if op.startswith("aten.") else op


def _bar(part: int, whole: int) -> Text:
    filled = round(BAR * part / whole) if whole else 0
    return Text("#" * filled, style="green").append("." * (BAR - filled), style="dim")


def _scales(run: Summary) -> Iterator[RenderableType]:
    for name, points in sorted((run.scales or {}).items()):
        title = f"{name}: " if len(run.scales or {}) > 1 else ""
        yield Text(title + timeline(points))
        skipped = [point.step for point in points if point.skipped]
        if skipped:
            yield Text(
                f"{title}{len(skipped)} of {plural(len(points), 'step')} skipped "
                f"(inf or NaN in the gradients): {ranges(skipped)}"
            )
        else:
            yield Text(f"{title}no step skipped in {plural(len(points), 'step')}")


def _window(run: Summary) -> Iterator[RenderableType]:
    """What other loss scales would have done to the gradients."""
    window = run.window
    if window is None:
        if run.scales and not run.deep:
            yield Text("which loss scales would fit the gradients is known of deep steps only: there was none")
        return
    if window.broken:
        yield Text(f"the gradients of {_of_steps(window.broken)} hold inf or NaN at any loss scale")
    if not window.elements:
        return
    if window.low is None or window.high is None:
        yield Text("no loss scale fits the gradients into float16")
    else:
        where = _of_steps(window.steps)
        yield Text(f"the gradients of {where} fit into float16 at {scale(window.low)} to {scale(window.high)}")


def _of_steps(steps: Sequence[int]) -> str:
    return f"{'step' if len(steps) == 1 else 'steps'} {ranges(steps)}"


def _training(courses: Sequence[Health], limit: int) -> Iterator[str]:
    """Losses and norms, of each kind the first ones: folds and stages have optimizers of their own."""
    kinds: dict[str, list[Health]] = {}
    for course in courses:
        kinds.setdefault(course.name.partition(" of ")[0], []).append(course)
    for kind, found in kinds.items():
        yield from map(_health, found[:limit])
        if len(found) > limit:
            yield f"{kind}: {len(found) - limit:,} more (--verbose)"


def _health(item: Health) -> str:
    first, last, largest = f"{item.first:.4g}", f"{item.last:.4g}", f"{item.largest:.4g}"
    text = f"{item.name}: {first} at first, {last} at last"
    if largest not in (first, last):
        text += f", at most {largest} in step {item.largest_at}"
    if item.nonfinite:
        text += f"; inf or NaN in {plural(len(item.nonfinite), 'step')} ({ranges(item.nonfinite)})"
    return text


def timeline(points: Sequence[ScalePoint]) -> str:
    """``65536 from step 1, 32768 after step 3``; the middle of a long story is counted."""
    changes = [f"{scale(points[0].before)} at step {points[0].step}"]
    changes += [f"{scale(p.after)} after step {p.step}" for p in points if p.after != p.before]
    if len(changes) > MOST_CHANGES:
        half = MOST_CHANGES // 2
        left = len(changes) - 2 * half
        changes = [*changes[:half], f"({plural(left, 'more change')})", *changes[-half:]]
    return ", ".join(changes)


def _underflow(rows: Sequence[Underflow], limit: int, root: Path) -> Iterator[RenderableType]:
    steps = max(row.steps for row in rows)
    lossy = [row for row in rows if row.flushed or row.subnormal or row.upstream]
    whole = len(lossy) == 0
    if whole:
        elements = sum(row.nonzero for row in rows)
        yield Text(
            f"none of {plural(elements, 'nonzero element')} of {plural(len(rows), 'parameter')} "
            f"became zero or subnormal ({plural(steps, 'deep step')})"
        )
        return
    yield Text("share of nonzero gradient elements, all measured steps together", style="dim")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, overflow="ellipsis")
    for _ in ("became zero", "subnormal", "loss scale"):
        table.add_column(no_wrap=True)
    table.add_row(*(Text(word, style="dim") for word in ("parameter", "became zero", "subnormal", "loss scale")))
    for row in lossy[:limit]:
        table.add_row(
            ending(printable(row.parameter), NAME),
            "all, upstream" if row.upstream else share(row.flushed, row.nonzero),
            share(row.subnormal, row.nonzero),
            " to ".join(dict.fromkeys(scale(s) for s in (row.scales[0], row.scales[-1]))) if row.scales else "none",
        )
    yield table
    rest = len(rows) - len(lossy[:limit])
    if rest:
        clean = len(rows) - len(lossy)
        words = {0: "none with more", rest: "none of them with loss"}.get(clean, f"{clean} of them without loss")
        yield Text(f"{plural(rest, 'more parameter')}, {words}", style="dim")
    yield from map(Text, _upstream(lossy[:limit], root))


def _upstream(rows: Sequence[Underflow], root: Path) -> Iterator[str]:
    """Where the gradients went that came to their parameters as zeros, each place once."""
    told: list[Lost] = []
    for row in rows:
        lost = row.upstream
        if lost is None or lost in told:
            continue
        told.append(lost)
        place = lost.place
        path, line = place.user_path or place.path, place.user_line or place.line
        where = f", {shown_path(path, root)}:{line}" if path is not None else ""
        inside = f" in {place.module}" if place.module else ""
        yield printable(f"upstream: lost by {lost.op}{inside}{where} ({plural(lost.steps, 'deep step')})")


def missed(run: Summary) -> Iterator[str]:
    """What the run could not show, one sentence each."""
    if run.observed:
        yield _recorded(run)
    if run.missing_ranks:
        yield f"ranks {ranges(run.missing_ranks)} of {run.header.world_size} left no trace"
    if run.silent_processes:
        yield f"{plural(run.silent_processes, 'process', 'processes')} took no optimizer step and are left out"
    if run.reason == "killed":
        yield "the program had no time to end its trace: the step in flight is lost, all before it is here"
    for what, count in run.unobserved:
        yield f"not observed: {what} ({count:,})"
    if run.differences:
        here, there = run.header.policy.upper(), "CUDA"
        ops = [f"{d.op} ({d.here} here, {d.there} there)" for d in run.differences]
        yield (
            f"ran under {here}'s autocast lists; {there}'s differ for {listed(ops)}: what is said of these ops "
            f"here may not hold on {there}"
        )
    yield from run.notes


def _recorded(run: Summary) -> str:
    if not run.recorded:
        return f"{plural(run.steps, 'step')} watched for events, none recorded op by op"
    if len(run.recorded) >= run.steps:
        inside = any(what.startswith("operators inside compiled code") for what, _ in run.unobserved)
        text = f"{plural(run.steps, 'step')}, {'all ops that were seen' if inside else 'every op of each'} recorded"
    else:
        text = f"{plural(run.steps, 'step')}; ops recorded on {len(run.recorded)} of them ({ranges(run.recorded)})"
    if not run.deep:
        return f"{text}; no float32 re-execution"
    return f"{text}; float32 re-execution on {'step' if len(run.deep) == 1 else 'steps'} {ranges(run.deep)}"


def _grid(columns: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(columns):
        table.add_column(overflow="fold")
    return table
