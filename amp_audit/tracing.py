"""A recording that this process opened itself: where it is, what it shows, and a report of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from amp_audit.model import Finding
    from amp_audit.report import Report
    from amp_audit.runtime.context import Traced as Opened
    from amp_audit.trace.schema import Trace


@dataclass(frozen=True, slots=True)
class Traced:
    """A recording. While it is open its findings are those of the steps that are over. ``folder`` keeps it."""

    folder: Path

    @property
    def traces(self) -> Sequence[Trace]:
        """What was recorded, by process. Raises TraceError when no step was."""
        from amp_audit.trace import reader

        return reader.read(self.folder)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the run shows, worst first, with the settings in force; empty when no step was recorded."""
        return self._made().findings if any(self.folder.glob("rank-*.jsonl")) else ()

    def report(self, stream: TextIO | None = None, form: str = "terminal", *, verbose: bool = False) -> Report:
        """Write a report (to standard output unless told otherwise, in any of the command line's formats) and return
        it. Raises TraceError when no step was recorded, ValueError for an unknown format.
        """
        from amp_audit.report import render

        made = self._made()
        render(made, form, stream or sys.stdout, verbose=verbose, color=False)
        return made

    def _made(self) -> Report:
        from amp_audit import auditing, settings

        return auditing.report([self.folder], settings.Configuration(settings.read(Path.cwd())))


@contextmanager
def opened(context: AbstractContextManager[Opened]) -> Iterator[Traced]:
    """``runtime.context.trace`` with what can be asked of its recording."""
    with context as recording:
        yield Traced(recording.folder)
