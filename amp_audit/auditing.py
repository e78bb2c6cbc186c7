"""Jobs that look at a run: audit a program, record one, report on a trace. Where the two halves meet."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from amp_audit import marks, merge, supervisor
from amp_audit.model import Confidence, Coverage, Evidence, Finding, Severity, Subject, Verdict
from amp_audit.reading import Read, assemble, gather, load_rules, read
from amp_audit.report.content import Exit, Program, Report
from amp_audit.report.summary import summarize
from amp_audit.rulebook import Rule, Rulebook
from amp_audit.runtime import launch
from amp_audit.settings import Configuration
from amp_audit.supervisor import Recording
from amp_audit.target import Target, TargetError
from amp_audit.trace import judge, ranks, reader
from amp_audit.trace.schema import Trace

NOT_OBSERVED = "AMP003"
NO_TORCH = (
    "running a program needs torch, which is not installed here: pip install 'amp-audit[runtime]' "
    "(amp-audit check needs none)"
)


@dataclass(frozen=True, slots=True)
class Audited:
    """How an audit ended. ``report`` is None in a rank that leaves the report to another one."""

    report: Report | None
    code: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """How a recording ended; ``message`` says where the trace is."""

    message: str
    code: int


def audit(target: Target, configuration: Configuration, recording: Recording) -> Audited:
    """Read a program and run it. Raises TargetError, RuleError, SettingsError or LaunchError before it has begun."""
    book = load_rules(configuration, [str(target.entry)] if target.entry is not None else ())
    _need_torch()
    _need_python(target, configuration)
    member = ranks.member()
    folder = supervisor.trace_folder(recording, member)
    watch = folder / "watch.json"
    first = member is None or member.rank == 0
    hurry = threading.Event() if member is not None else None
    with ThreadPoolExecutor(1, "amp-audit-read") as pool:
        reading = pool.submit(_read_program, target, configuration, book, watch) if first else None
        running = launch.start(supervisor.request(target, recording, folder, watch))
        count = _counter(running.trace_dir, reading, configuration, book)
        outcome = supervisor.follow(running, supervisor.Progress(sys.stderr, recording.steps, count), hurry)
        departure = ranks.leave(running.trace_dir, member, hurry=hurry) if member is not None else None
        if departure is not None and not departure.reports:
            return Audited(None, supervisor.program_code(outcome))
        known = reading.result() if reading else _read_program(target, configuration, book, watch)
    made = _audited(target, configuration, book, known, running.trace_dir, outcome)
    if departure is not None and departure.missing:
        late = ", ".join(map(str, departure.missing))
        made = replace(made, notes=(*made.notes, f"rank {late} had not ended when this report was made"))
    return Audited(made, supervisor.program_code(outcome) if member is not None else made.exit_code)


def record(target: Target, recording: Recording) -> Recorded:
    """Run a program and leave its trace. Raises TargetError or LaunchError before it has begun."""
    _need_torch()
    member = ranks.member()
    folder = supervisor.trace_folder(recording, member)
    running = launch.start(supervisor.request(target, recording, folder, None))
    outcome = supervisor.follow(running, supervisor.Progress(sys.stderr, recording.steps, lambda: 0))
    where = os.path.relpath(running.trace_dir)
    message = f"{running.most_steps()} steps recorded in {where}; amp-audit report {where} shows them"
    if member is not None:
        return Recorded(message, supervisor.program_code(outcome))
    return Recorded(message, Exit.PROGRAM_FAILED if outcome.failed else Exit.CLEAN)


def doctor(as_json: bool) -> list[str]:
    """What this machine and this torch can do, line by line. Raises TargetError without torch."""
    _need_torch()
    from amp_audit.runtime import doctor

    found = doctor.examine()
    return [json.dumps(found, indent=2)] if as_json else doctor.lines(found)


def report(folders: Sequence[Path], configuration: Configuration) -> Report:
    """What traces say, those of all folders as one run. Raises TraceError for a folder that is no trace."""
    book = load_rules(configuration)
    traces = [trace for folder in folders for trace in reader.read(folder)]
    findings = _merged((), traces, configuration, book)
    made = assemble("report", " ".join(map(str, folders)), Read(tuple(findings)), configuration, book, Severity.ERROR)
    return replace(made, summary=summarize(traces), trace_folder=str(folders[0]))


def _audited(
    target: Target, configuration: Configuration, book: Rulebook, known: Read, folder: Path, outcome: launch.Outcome
) -> Report:
    traces, notes = _traces(folder)
    findings = _merged(known.findings, traces, configuration, book)
    made = assemble(
        "audit", target.shown, replace(known, findings=tuple(findings)), configuration, book, Severity.ERROR
    )
    return replace(
        made,
        summary=summarize(traces) if traces else None,
        program=Program(outcome.code, outcome.signal, outcome.stopped),
        trace_folder=str(folder),
        problem=known.problem,
        notes=notes,
    )


def _merged(
    known: Sequence[Finding], traces: Sequence[Trace], configuration: Configuration, book: Rulebook
) -> list[Finding]:
    """What was read and what ran, and, as a note, what of the run could not be seen."""
    told = judge.findings(traces, book)
    speaking = book.only(configuration.in_force([*known, *told]))
    if speaking is not book:
        told = judge.findings(traces, speaking)
        known = [finding for finding in known if finding.rule in speaking.rules]
    unseen = summarize(traces).unobserved if traces else ()
    notes = [_not_observed(unseen, book[NOT_OBSERVED])] if unseen and NOT_OBSERVED in speaking.rules else []
    seen = marks.finish([*told, *notes], book)
    return merge.merge(known, seen, merge.observe(traces), speaking)


def _not_observed(unseen: Sequence[tuple[str, int]], rule: Rule) -> Finding:
    numbers = tuple(
        Evidence("runtime", "number", f"{what}: {count:,}", name="not_observed", value=count) for what, count in unseen
    )
    return Finding(
        rule=rule.id,
        name=rule.name,
        severity=rule.severity,
        confidence=Confidence.HIGH,
        message=f"not observed: {', '.join(what for what, _ in unseen)}",
        location=None,
        verdict=Verdict.RUNTIME,
        subject=Subject("run", "run"),
        evidence=numbers,
    )


def _traces(folder: Path) -> tuple[list[Trace], tuple[str, ...]]:
    """The traces that a program left, and what is to be said when it left none."""
    problems = tuple(reader.problems(folder))
    if not any(folder.glob("rank-*.jsonl")):
        return [], (*problems, "the program left no trace: it ended before it imported torch")
    return reader.read(folder), problems


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise TargetError(NO_TORCH)


def _need_python(target: Target, configuration: Configuration) -> None:
    """Raises TargetError for a script that Python would not run, before it tries."""
    if target.kind == "script" and target.entry is not None:
        if target.entry.suffix == ".ipynb":
            raise TargetError(f"{target.entry}: a notebook is not run; amp-audit check reads it")
        gather([target.entry], configuration)


def _read_program(target: Target, configuration: Configuration, book: Rulebook, watch: Path) -> Read:
    """Read the program's first file and what it imports, and say which lines the run is to watch."""
    if target.entry is None:
        note = "no Python file was recognised in the launcher's command, so nothing was read"
        known = Read(coverage=Coverage(notes=(note,)))
    else:
        try:
            known = read(gather([target.entry], configuration), configuration, book, follow=True)
        except Exception as error:  # a fault of ours must not cost the user what the run shows
            known = Read(problem=f"reading {target.entry} failed, which is a fault of amp-audit: {error!r}")
    _write_watch(watch, known.findings)
    return known


def _write_watch(watch: Path, findings: Sequence[Finding]) -> None:
    """The lines of findings, for the line monitor; whole or not at all, since the program may be reading."""
    spans: dict[str, list[list[int]]] = {}
    for place in (finding.location for finding in findings):
        if place is not None:
            spans.setdefault(str(Path(place.path).resolve()), []).append([place.line, place.end_line or place.line])
    half = watch.with_suffix(".part")
    # Without it lines are known to be reached by ops and events only, which the verdicts allow for.
    with contextlib.suppress(OSError):
        half.write_text(json.dumps(spans), encoding="utf-8")
        half.replace(watch)


def _counter(
    folder: Path, reading: Future[Read] | None, configuration: Configuration, book: Rulebook
) -> Callable[[], int]:
    """Counts the findings so far: those read, once they are, and those that the trace shows already."""

    def count() -> int:
        known = reading.result().findings if reading is not None and reading.done() else ()
        try:
            traces = reader.read(folder)
        except (reader.TraceError, OSError):
            return len(known)
        return sum(finding.severity > Severity.INFO for finding in _merged(known, traces, configuration, book))

    return count
