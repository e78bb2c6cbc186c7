"""The report as JSON, version 1 (docs/contracts: JSON). Strict: no NaN, no Infinity."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from amp_audit import __version__
from amp_audit.model import Edit, Evidence, Finding, Fix, Location, Related
from amp_audit.report.content import Report, shown_path
from amp_audit.report.summary import Summary

VERSION = 1


def write(report: Report, stream: TextIO) -> None:
    """One JSON document and a line end; ASCII only, so that no encoding of the stream can break it."""
    json.dump(document(report), stream, indent=2, allow_nan=False)
    stream.write("\n")


def document(report: Report) -> dict[str, Any]:
    """The document, ready for ``json.dump``."""
    coverage = report.coverage
    data = {
        "version": VERSION,
        "tool": {"name": "amp-audit", "version": __version__},
        "command": report.command,
        "target": report.target,
        "exit_code": int(report.exit_code),
        "problem": report.problem or None,
        "findings": [_finding(finding, report.root) for finding in report.findings],
        "hidden": report.hidden,
        "fixed": report.fixed,
        "files": {
            "checked": coverage.files_checked,
            "skipped": coverage.files_skipped,
            "failed": coverage.files_failed,
        },
        "trace": _trace(report),
        "coverage": _coverage(report),
    }
    strict: dict[str, Any] = _strict(data)
    return strict


def _finding(finding: Finding, root: Path) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "name": finding.name,
        "severity": finding.severity.word,
        "confidence": finding.confidence.word,
        "verdict": finding.verdict.value,
        "reason": finding.note or None,
        **_place(finding.location, root),
        "subject": asdict(finding.subject) if finding.subject is not None else None,
        "message": finding.message,
        "fingerprint": finding.fingerprint,
        "related": [_related(item, root) for item in finding.related],
        "evidence": [_evidence(item, root) for item in finding.evidence],
        "fix": _fix(finding.fix, root) if finding.fix is not None else None,
    }


def _place(place: Location | None, root: Path) -> dict[str, Any]:
    if place is None:
        return dict.fromkeys(("path", "line", "column", "end_line", "end_column", "cell"))
    return {**asdict(place), "path": shown_path(place.path, root)}


def _related(item: Related, root: Path) -> dict[str, Any]:
    return {**_place(item.location, root), "message": item.message}


def _evidence(item: Evidence, root: Path) -> dict[str, Any]:
    return {**asdict(item), "path": shown_path(item.path, root) if item.path is not None else None}


def _fix(fix: Fix, root: Path) -> dict[str, Any]:
    return {"safe": fix.safe, "description": fix.description, "edits": [_edit(edit, root) for edit in fix.edits]}


def _edit(edit: Edit, root: Path) -> dict[str, Any]:
    """``cell`` is there in notebooks only."""
    data = {**asdict(edit), "path": shown_path(edit.path, root)}
    return data if edit.cell is not None else {key: value for key, value in data.items() if key != "cell"}


def _trace(report: Report) -> dict[str, Any] | None:
    program, run = report.program, report.summary
    if program is None and run is None:
        return None
    return {
        "folder": report.trace_folder,
        "program_exit": program.exit if program is not None else None,
        "program_signal": program.signal if program is not None else None,
        "stopped": program.stopped if program is not None else None,
        "steps": run.steps if run is not None else 0,
        **(_run(run) if run is not None else {}),
    }


def _run(run: Summary) -> dict[str, Any]:
    data = asdict(run)
    header = data.pop("header")
    return {
        **data,
        "program": list(run.header.argv),
        **{key: header[key] for key in ("torch", "python", "device", "policy", "emulated", "world_size")},
    }


def _coverage(report: Report) -> dict[str, Any]:
    run = report.summary
    return {
        **dict(report.coverage.extra),
        "notes": [*report.coverage.notes, *report.notes],
        "rules": sorted(report.book.rules),
        "steps_recorded": list(run.recorded) if run is not None else [],
        "ranks_missing": list(run.missing_ranks) if run is not None else [],
        "unobserved": dict(run.unobserved) if run is not None else {},
    }


def _strict(value: Any) -> Any:
    """What JSON cannot say becomes null; tuples become lists."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
