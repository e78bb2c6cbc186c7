"""What keeps an old project's findings from standing in the way of new ones: a baseline, and the lines that changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from amp_audit import baseline, rulebook
from amp_audit.changes import Changes, since
from amp_audit.model import Finding
from amp_audit.reading import Read
from amp_audit.report.content import Report
from amp_audit.report.words import listed, plural
from amp_audit.settings import Configuration


def changes(paths: Sequence[Path], ref: str | None) -> Changes | None:
    """What changed around ``paths`` since a commit; None when nobody asks. Raises SettingsError."""
    return since(ref, paths) if ref is not None else None


def apply(
    report: Report, known: Read, configuration: Configuration, changed: Changes | None, write_to: Path | None
) -> Report:
    """The report without known findings and those that no changed line concerns; says how many it left out.

    With ``write_to`` all findings are known from now on, by that file. Raises SettingsError.
    """
    findings = list(report.findings)
    notes: list[str] = []
    extra: dict[str, object] = {}
    if write_to is not None:
        count = baseline.write(write_to, findings)
        notes.append(f"{plural(count, 'finding')} written to {write_to}, as known from now on")
        findings, _ = baseline.read(write_to).split(findings)
    else:
        findings = _fresh(findings, known, configuration, notes, extra)
    if changed is not None:
        kept = [finding for finding in findings if changed.concern(finding)]
        extra["unchanged"] = len(findings) - len(kept)
        if len(kept) < len(findings):
            notes.append(f"{plural(len(findings) - len(kept), 'finding')} left out: no line of them changed")
        findings = kept
    coverage = report.coverage
    coverage = replace(coverage, notes=(*coverage.notes, *notes), extra={**coverage.extra, **extra})
    return replace(report, findings=tuple(findings), coverage=coverage)


def _fresh(
    findings: list[Finding], known: Read, configuration: Configuration, notes: list[str], extra: dict[str, object]
) -> list[Finding]:
    """The findings that no baseline knows, each held against the baseline of its own settings."""
    places: dict[Path, list[str]] = {}
    for file in known.files:
        path = configuration.of(file).baseline
        if path is not None:
            places.setdefault(path, []).append(file)
    fresh = findings
    stale: list[baseline.Entry] = []
    total = 0
    for path, files in places.items():
        own = baseline.read(path)
        governed = set(files)
        here = [f for f in fresh if f.location is not None and f.location.path in governed]
        left, count = own.split(here)
        elsewhere = [f for f in fresh if f.location is None or f.location.path not in governed]
        fresh = sorted([*elsewhere, *left], key=lambda finding: finding.sort_key)
        total += count
        settings = configuration.of(files[0])
        rules = settings.selected(rulebook.load(settings.rules))
        stale += own.stale(known.findings, {os.path.realpath(file) for file in files}, rules)
    if places:
        extra["baseline"] = {"known": total, "stale": [{"path": e.path, "rule": e.rule} for e in stale]}
        notes += [f"{plural(total, 'finding')} left out: the baseline knows them"] if total else []
    if stale:
        names = listed([f"{entry.rule} in {entry.path}" for entry in stale])
        notes.append(f"{plural(len(stale), 'entry', 'entries')} of the baseline found no more: {names}")
    return fresh
