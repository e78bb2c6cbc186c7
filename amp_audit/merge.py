"""Findings from reading and from running -> one list, each with its verdict (docs/contracts: Verdicts).

A hazard is one finding: what both halves saw at the same place is ``confirmed`` and carries both evidences; what only
the code shows is held against what the run did there.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from amp_audit import policy
from amp_audit.model import Confidence, Evidence, Finding, Location, Related, Severity, Verdict
from amp_audit.rulebook import Rule, Rulebook
from amp_audit.trace.schema import EventRow, OpRow, Place, Trace

LOW = frozenset({"float16", "bfloat16"})
Line = tuple[str, int]


def merge(static: Iterable[Finding], runtime: Iterable[Finding], run: Run | None, book: Rulebook) -> list[Finding]:
    """All findings once. ``run`` is None when nothing was run: then what was read stays as it is."""
    read = list(static)
    if run is None:
        return read
    left = [replace(finding, verdict=Verdict.RUNTIME) for finding in runtime]
    merged = []
    for finding in read:
        same = [other for other in left if _same(finding, other)]
        left = [other for other in left if other not in same]
        merged.append(_confirmed(finding, same) if same else finding)
    merged = [*merged, *left]
    for finding in list(merged):
        proofs = [other for other in merged if other is not finding and _proves(finding, other, merged, book)]
        if finding in merged and proofs:
            kept = [other for other in merged if other not in proofs]
            kept[kept.index(finding)] = _proven(finding, proofs, book)
            merged = kept
    judged = [_judged(one, run, book) if one.verdict is Verdict.STATIC else one for one in merged]
    return _given_way(judged, book)


def _same(read: Finding, seen: Finding) -> bool:
    """Whether a finding of the run is the one that was read: the same rule, in the lines of the same call."""
    if read.rule != seen.rule or read.location is None or seen.location is None:
        return False
    return _covers(read.location, seen.location)


def _covers(place: Location, other: Location) -> bool:
    if _resolved(place.path) != _resolved(other.path):
        return False
    if not place.line <= other.line <= (place.end_line or place.line):
        return False
    one_line = place.end_line in (None, place.line)
    if one_line and other.end_column is not None and place.end_column is not None:
        # Two calls on one line: Python told where the one that ran begins and ends.
        return place.column < other.end_column and other.column < place.end_column
    return True


def _resolved(path: str) -> str:
    return _real(os.path.abspath(path))  # a working directory may change


@cache
def _real(path: str) -> str:
    return str(Path(path).resolve())


def _proves(finding: Finding, other: Finding, others: Sequence[Finding], book: Rulebook) -> bool:
    """Whether another rule's finding of the run is this one's evidence (``confirmed_by`` of its rule file).

    At the same place, or about the same subject. One that names no place belongs to the only finding it can prove.
    """
    if other.verdict is not Verdict.RUNTIME or other.rule not in book[finding.rule].confirmed_by:
        return False
    if finding.location is not None and other.location is not None:
        return any(_covers(place, other.location) for place in _places(finding))
    if finding.subject is not None and finding.subject == other.subject:
        return True
    able = [one for one in others if other.rule in book[one.rule].confirmed_by]
    return able == [finding]


def _places(finding: Finding) -> list[Location]:
    """All places that a finding speaks of: its own, its related ones, the steps of its path."""
    steps = [Location(item.path, item.line) for item in finding.evidence if item.path and item.line]
    own = [finding.location] if finding.location is not None else []
    return [*own, *(item.location for item in finding.related), *steps]


def _confirmed(read: Finding, seen: Sequence[Finding]) -> Finding:
    return replace(
        read,
        verdict=Verdict.CONFIRMED,
        confidence=Confidence.HIGH,
        severity=max(read.severity, *(other.severity for other in seen), Severity.INFO),
        evidence=(*read.evidence, *_evidence(seen)),
        related=(*read.related, *(item for other in seen for item in other.related)),
    )


def _proven(finding: Finding, proofs: Sequence[Finding], book: Rulebook) -> Finding:
    """A finding with another rule's findings as its evidence. Its severity is its own rule's word, not the proof's."""
    return replace(
        finding,
        verdict=Verdict.RUNTIME if finding.verdict is Verdict.RUNTIME else Verdict.CONFIRMED,
        confidence=Confidence.HIGH,
        severity=book[finding.rule].confirmed_severity or finding.severity,
        evidence=(*finding.evidence, *_evidence(proofs)),
    )


def _evidence(seen: Sequence[Finding]) -> tuple[Evidence, ...]:
    """What the run measured; a finding without a number of its own speaks through its message."""
    found: list[Evidence] = []
    for other in seen:
        numbers = [item for item in other.evidence if item.kind == "number"]
        found.extend(numbers or [_told(other)])
    return tuple(dict.fromkeys(found))


def _told(seen: Finding) -> Evidence:
    place = seen.location
    return Evidence(
        "runtime", "number", seen.message, path=place.path if place else None, line=place.line if place else None
    )


@dataclass(frozen=True, slots=True)
class Run:
    """What a run says about lines of code: which were reached, and under which conditions.

    ``off``: lines at which only regions that are off were entered. ``scaler``: some enabled GradScaler scaled a loss.
    ``regions``: low-precision dtypes of enabled autocast regions. ``policy`` / ``release``: whose autocast lists were
    in force, of which torch version.
    """

    steps: int
    lines: frozenset[Line]
    ops: dict[Line, list[OpRow]]
    watched: bool
    scaler: bool
    regions: frozenset[str]
    policy: str
    release: str
    off: frozenset[Line] = frozenset()

    def ran(self, place: Location) -> bool | None:
        """Whether a line of ``place`` was reached; None when nothing would have told."""
        if any(line in self.lines or line in self.ops for line in _lines_of(place)):
            return True
        return False if self.watched else None

    def at(self, place: Location) -> list[OpRow]:
        """The ops that ran in the lines of ``place``."""
        return [row for line in _lines_of(place) for row in self.ops.get(line, ())]


def observe(traces: Sequence[Trace]) -> Run | None:
    """What ``traces`` tell; None when no training step was seen in any of them."""
    trained = [trace for trace in traces if trace.steps]
    if not trained:
        return None
    header = trained[0].header
    events = [event for trace in trained for step in trace.steps for event in step.events]
    ops: defaultdict[Line, list[OpRow]] = defaultdict(list)
    for row in (row for trace in trained for step in trace.steps for row in step.ops):
        for line in _lines_at(row.place):
            ops[line].append(row)
    reached = {(_resolved(path), n) for trace in trained for path, lines in trace.lines.items() for n in lines}
    reached.update(line for event in events for line in _lines_at(event.place))
    entered = [event for event in events if event.kind == "region_enter" and event.enabled]
    return Run(
        steps=max(trace.finished for trace in trained),
        lines=frozenset(reached),
        ops=dict(ops),
        watched=all(trace.header.flags.get("watch") for trace in trained),
        scaler=any(event.kind == "backward" and event.scaled for event in events),
        regions=frozenset(event.dtype for event in entered if event.dtype in LOW),
        off=frozenset(_lines_entered(events, False) - _lines_entered(events, True)),
        policy=header.policy,
        release=header.torch.partition("+")[0],
    )


def _lines_entered(events: Iterable[EventRow], enabled: bool) -> set[Line]:
    entered = (event for event in events if event.kind == "region_enter" and event.enabled is enabled)
    return {line for event in entered for line in _lines_at(event.place)}


def _lines_at(place: Place) -> set[Line]:
    pairs = ((place.path, place.line), (place.user_path, place.user_line))
    return {(_resolved(path), line) for path, line in pairs if path is not None and line is not None}


def _lines_of(place: Location) -> list[Line]:
    path = _resolved(place.path)
    return [(path, line) for line in range(place.line, (place.end_line or place.line) + 1)]


def _judged(read: Finding, run: Run, book: Rulebook) -> Finding:
    """The verdict on what was read and not seen in the run."""
    ran = run.ran(read.location) if read.location is not None else None
    seen = "this run"
    if run.steps:
        seen = f"the {run.steps:,} steps of this run" if run.steps != 1 else "the one step of this run"
    if read.location is None or ran is None:
        return read
    if not ran:
        note = f"line {read.location.line} never ran in {seen}"
        return replace(read, verdict=Verdict.NOT_REACHED, note=note)
    rule = book[read.rule]
    lacking = _lacking(rule, read.location, run)
    if lacking:
        return replace(read, verdict=Verdict.NOT_EXERCISED, note=f"the line ran, but {lacking}")
    if not rule.refutable or not (rule.runtime or (rule.confirmed_by and _exercised(rule, read.location, run))):
        return read
    note = f"the line ran in {seen} with all that the hazard needs, and it did not happen"
    return replace(read, verdict=Verdict.NOT_REPRODUCED, severity=read.severity.lowered, note=note)


def _lacking(rule: Rule, place: Location, run: Run) -> str:
    """What the hazard needs and the run did not have there, as half a sentence; empty when nothing was lacking."""
    needs = _needs(rule)
    if "scaler" in needs and not run.scaler:
        return "no enabled GradScaler scaled a loss in this run"
    if "region" in needs and not run.regions:
        return "no enabled autocast region was entered in this run"
    if any(line in run.off for line in _lines_of(place)):
        return "the autocast region there was off in this run"
    rows = run.at(place) if "dtype" in needs else []
    differing = sorted({name for row in rows if (name := _treated_otherwise(row, run))})
    elsewhere = f"under the autocast lists of {run.policy}, and CUDA's treat {', '.join(differing)} otherwise"
    if differing and "ban" in needs:
        return elsewhere
    if any(_exercises(row, rule) for row in rows):
        return ""
    if rows and not any(_is_low(row) for row in rows):
        return "nothing at this line was computed in low precision"
    return elsewhere if differing else ""


def _exercised(rule: Rule, place: Location, run: Run) -> bool:
    return any(_exercises(row, rule) for row in run.at(place))


def _is_low(row: OpRow) -> bool:
    return bool(LOW & {*row.inputs, row.output})


def _exercises(row: OpRow, rule: Rule) -> bool:
    """Whether an op that ran is the one the rule speaks of, in low precision: then no other op of the line matters."""
    named = {target for detector in rule.static if detector.kind == "op" for target in detector.targets}
    return policy.listed_name(row.op) in named and _is_low(row)


def _treated_otherwise(row: OpRow, run: Run) -> str | None:
    name = policy.listed_name(row.op)
    here, there = (policy.lists(device, run.release).kind(name) for device in (run.policy, "cuda"))
    forward = row.phase == "forward" and row.autocast is not None
    return name if forward and here != there else None


_SCALER_EVENTS = frozenset({"scaler_new", "scale", "unscale", "update", "step.scaler", "backward.scaled"})
_SCALER_FACTS = frozenset({"scaled", "mixed", "unscaled", "stepped", "checked"})


def _needs(rule: Rule) -> frozenset[str]:
    """What must be live for a hazard to show: a ``scaler``, a ``region``, a low ``dtype`` at its line."""
    needs: set[str] = set()
    for detector in rule.static:
        if detector.kind == "op" and detector.options:  # one without asks for no dtype: a wait for the device
            needs.add("dtype")
            if "banned" in str(detector.options.get("region", "")):
                needs.add("ban")
        if detector.kind == "call" and "torch.amp.GradScaler.step" in detector.targets:
            needs.add("scaler")
        if detector.kind != "event":
            continue
        facts = {str(value) for _, values in detector.when for value in values}
        if _SCALER_EVENTS.intersection(detector.targets) or facts & _SCALER_FACTS:
            needs.add("scaler")
        if any(word.startswith("region") for word in (*detector.targets, *(key for key, _ in detector.when))):
            needs.add("region")
    return frozenset(needs)


def _given_way(findings: Sequence[Finding], book: Rulebook) -> list[Finding]:
    """What one half said of a hazard that the other names better goes to the better one's ``related``."""
    kept = list(findings)
    for finding in findings:
        winner = next((one for one in kept if _wins(one, finding, book)), None)
        if winner is None or finding.location is None:
            continue
        note = Related(finding.location, f"{finding.rule} {finding.name}: {finding.message}")
        told = replace(winner, related=(*winner.related, note))
        kept[kept.index(winner)] = told if winner.verdict is Verdict.RUNTIME else _seen_happening(told, finding)
        kept.remove(finding)
    return kept


def _seen_happening(read: Finding, seen: Finding) -> Finding:
    """A finding that was read, when a run saw by another rule what becomes of it: at least as bad as that."""
    return replace(
        read,
        verdict=Verdict.CONFIRMED,
        confidence=Confidence.HIGH,
        severity=max(read.severity, seen.severity),
        note="",
        evidence=(*read.evidence, *_evidence([seen])),
    )


def _wins(one: Finding, over: Finding, book: Rulebook) -> bool:
    """Whether ``over``, seen by one half, gives way to ``one`` of the other half (``yields_to`` of its rule file)."""
    halves = {one.verdict is Verdict.RUNTIME, over.verdict is Verdict.RUNTIME}
    if halves != {True, False} or one.rule not in book[over.rule].yields_to or over.location is None:
        return False
    return any(_covers(place, over.location) for place in _places(one))
