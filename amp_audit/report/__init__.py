"""Findings and a trace -> something to read. One renderer a file, all from one ``Report``."""

from __future__ import annotations

from typing import TextIO

from amp_audit.report.content import Exit, Report

__all__ = ["DOCUMENTS", "FORMATS", "Exit", "Report", "render"]

FORMATS = ("terminal", "json", "sarif", "github")
DOCUMENTS = ("json", "sarif")
"""Those of which a job that cannot be done leaves a whole document too."""


def render(
    report: Report, form: str, stream: TextIO, *, verbose: bool = False, quiet: bool = False, color: bool = True
) -> None:
    """Write ``report`` to ``stream`` as one of ``FORMATS``. Raises ``ValueError`` for another word."""
    if form == "json":
        from amp_audit.report import json

        json.write(report, stream)
    elif form == "sarif":
        from amp_audit.report import sarif

        sarif.write(report, stream)
    elif form == "github":
        from amp_audit.report import github

        github.write(report, stream)
    elif form == "terminal":
        from amp_audit.report import terminal

        terminal.write(report, stream, verbose=verbose, quiet=quiet, color=color)
    else:
        raise ValueError(f"unknown format {form!r} ({', '.join(FORMATS)})")
