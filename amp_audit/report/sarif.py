"""The report as SARIF 2.1.0, for code scanning: https://docs.oasis-open.org/sarif/sarif/v2.1.0/."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

from amp_audit import __version__
from amp_audit.model import Evidence, Finding, Fix, Location, Severity
from amp_audit.report.content import Report, shown_path
from amp_audit.rulebook import Rule

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
FINGERPRINT = "ampAudit/v1"


def write(report: Report, stream: TextIO) -> None:
    """One JSON document and a line end; ASCII only, so that no encoding of the stream can break it."""
    json.dump(document(report), stream, indent=2, allow_nan=False)
    stream.write("\n")


def document(report: Report) -> dict[str, Any]:
    """The document, ready for ``json.dump``."""
    names = sorted({finding.rule for finding in report.findings})
    rules = [report.book.rules[name] for name in names if name in report.book.rules]
    index = {rule.id: number for number, rule in enumerate(rules)}
    driver = {"name": "amp-audit", "semanticVersion": __version__, "rules": [_rule(rule) for rule in rules]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(report)],
        "results": [_result(finding, index, report) for finding in report.findings],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(rule: Rule) -> dict[str, Any]:
    described = {
        "id": rule.id,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why}\n\n{rule.fix}", "markdown": f"{rule.why}\n\n```\n{rule.fix}\n```"},
        "defaultConfiguration": {"level": LEVELS[rule.severity]},
    }
    links = [link for link in rule.references if link.startswith("https://")]
    return {**described, "helpUri": links[0]} if links else described


def _invocation(report: Report) -> dict[str, Any]:
    """How the job went: code scanning keeps its old results when it was not successful."""
    notes = [{"level": "note", "message": {"text": note}} for note in (*report.coverage.notes, *report.notes)]
    if report.problem:
        notes.append({"level": "error", "message": {"text": report.problem}})
    return {
        "executionSuccessful": not report.problem,
        "exitCode": int(report.exit_code),
        "toolExecutionNotifications": notes,
    }


def _result(finding: Finding, index: dict[str, int], report: Report) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": LEVELS[finding.severity],
        "message": {"text": _message(finding)},
        "locations": [_located(finding, report.root)],
        "partialFingerprints": {FINGERPRINT: finding.fingerprint},
        "properties": {"confidence": finding.confidence.word, "verdict": finding.verdict.value},
    }
    if finding.rule in index:
        found["ruleIndex"] = index[finding.rule]
    if finding.related:
        found["relatedLocations"] = [
            {"id": number, **_location(item.location, report.root), "message": {"text": item.message}}
            for number, item in enumerate(finding.related, 1)
        ]
    steps = [item for item in finding.evidence if item.kind == "step" and item.path and item.line]
    if steps:
        found["codeFlows"] = [{"threadFlows": [{"locations": _flow(steps, report.root)}]}]
    if finding.fix is not None and all(edit.cell is None for edit in finding.fix.edits):  # SARIF knows no cells
        found["fixes"] = [_fix(finding.fix, report.root)]
    return found


def _message(finding: Finding) -> str:
    """What it is, where in a notebook, and what the run showed."""
    place = finding.location
    parts = [finding.message]
    if place is not None and place.cell is not None:
        parts.append(f"(cell {place.cell}, line {place.line})")
    numbers = [item.text for item in finding.evidence if item.kind == "number"]
    return " ".join(parts) + "".join(f"\n{text}" for text in numbers)


def _located(finding: Finding, root: Path) -> dict[str, Any]:
    if finding.location is not None:
        return _location(finding.location, root)
    subject = finding.subject
    named = (subject.kind, subject.name) if subject is not None else ("run", "run")
    return {"logicalLocations": [{"kind": named[0], "fullyQualifiedName": named[1]}]}


def _location(place: Location, root: Path) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": uri(place.path, root)}}
    if place.cell is not None:  # its lines are those of the cell, not of the file
        return {"physicalLocation": physical, "logicalLocations": [{"name": f"cell {place.cell}"}]}
    physical["region"] = _region(place.line, place.column, place.end_line, place.end_column)
    return {"physicalLocation": physical}


def _region(line: int, column: int, end_line: int | None, end_column: int | None) -> dict[str, int]:
    region = {"startLine": line, "startColumn": column}
    if end_line is not None and end_column is not None:
        region |= {"endLine": end_line, "endColumn": end_column}
    return region


def _flow(steps: Sequence[Evidence], root: Path) -> list[dict[str, Any]]:
    return [
        {"location": {**_location(Location(step.path or "", step.line or 1), root), "message": {"text": step.text}}}
        for step in steps
    ]


def _fix(fix: Fix, root: Path) -> dict[str, Any]:
    changes: dict[str, list[dict[str, Any]]] = {}
    for edit in fix.edits:
        region = _region(edit.line, edit.column, edit.end_line, edit.end_column)
        replacement = {"deletedRegion": region, "insertedContent": {"text": edit.text}}
        changes.setdefault(uri(edit.path, root), []).append(replacement)
    return {
        "description": {"text": fix.description},
        "artifactChanges": [
            {"artifactLocation": {"uri": path}, "replacements": replacements} for path, replacements in changes.items()
        ],
    }


def uri(path: str, root: Path) -> str:
    """A relative URI for what lies below ``root``, else a ``file:`` one."""
    shown = shown_path(path, root)
    return Path(shown).as_uri() if Path(shown).is_absolute() else quote(shown)
