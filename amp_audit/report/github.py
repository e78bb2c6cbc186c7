"""The report as workflow commands: GitHub shows each finding as an annotation on the lines of a pull request.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from amp_audit.model import Finding, Severity
from amp_audit.report.content import Report, shown_path
from amp_audit.report.words import plural

COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def write(report: Report, stream: TextIO) -> None:
    """One line a finding, then one that counts them."""
    for finding in report.findings:
        stream.write(f"{command(finding, report)}\n")
    if report.problem:
        stream.write(f"::error title=amp-audit::{_data(report.problem)}\n")
    counts = ", ".join(plural(count, severity.word) for severity, count in report.counts().items())
    stream.write(f"amp-audit: {counts}; {plural(report.coverage.files_checked, 'file')} read\n")


def command(finding: Finding, report: Report) -> str:
    """The workflow command of one finding."""
    parts = ",".join(f"{key}={_property(value)}" for key, value in _properties(finding, report))
    return f"::{COMMANDS[finding.severity]} {parts}::{_data(_message(finding, report))}"


def _properties(finding: Finding, report: Report) -> Iterator[tuple[str, str]]:
    place = finding.location
    if place is not None:
        yield "file", shown_path(place.path, report.root)
        if place.cell is None:  # lines of a cell are not those of the file
            yield "line", str(place.line)
            yield "endLine", str(place.end_line or place.line)
            if place.end_column is not None and place.end_line in (None, place.line):
                yield "col", str(place.column)
                yield "endColumn", str(place.end_column)
    yield "title", f"{finding.rule} {finding.name}"


def _message(finding: Finding, report: Report) -> str:
    """What it is, and the path that leads there, a line each."""
    place = finding.location
    lines = [finding.message]
    if place is not None and place.cell is not None:
        lines[0] += f" (cell {place.cell}, line {place.line})"
    for item in finding.evidence:
        where = f"{shown_path(item.path, report.root)}:{item.line}: " if item.path and item.line else ""
        lines.append(f"{where}{item.text}")
    return "\n".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
