"""``Report``: all that there is to say, before anyone decides how to show it. Every renderer starts here."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from amp_audit.model import Coverage, Finding, Severity, Verdict
from amp_audit.records import record
from amp_audit.rulebook import Rulebook

if TYPE_CHECKING:
    from amp_audit.report.summary import Summary

UNREADABLE = "AMP001"


class Exit(enum.IntEnum):
    """What amp-audit's own exit code says (docs/contracts: Exit codes)."""

    CLEAN = 0
    FINDINGS = 1
    UNABLE = 2
    PROGRAM_FAILED = 3


@record(frozen=True, slots=True)
class Program:
    """How the audited program ended: its exit code, or None and the signal that killed it.

    ``stopped``: amp-audit ended it after the steps asked for, which is no failure.
    """

    exit: int | None
    signal: int | None = None
    stopped: bool = False

    @property
    def ended(self) -> str:
        """How it ended, for the end of a sentence that begins with its name."""
        return f"was killed by signal {self.signal}" if self.exit is None else f"ended with exit code {self.exit}"

    @property
    def failed(self) -> bool:
        return not self.stopped and self.exit != 0


@record(frozen=True, slots=True)
class Report:
    """What was found, and what that covers.

    ``findings`` are at or above the confidence asked for, worst first; ``hidden`` counts those below it. ``command``
    is ``"audit"``, ``"check"`` or ``"report"``; ``target`` is what was looked at, in the user's words. Paths below
    ``root`` are shown relative to it. ``program`` is None when this job ran nothing, ``summary`` when no trace is
    there. ``problem`` is the sentence that says why the job could not be done, if so. ``fail_on_in`` are files whose
    own settings say from which severity on a finding fails, ``texts`` the sources that are no files. ``fixed`` counts
    the findings that ``check --fix`` has mended.
    """

    command: str
    target: str
    findings: tuple[Finding, ...]
    coverage: Coverage
    book: Rulebook
    root: Path
    fail_on: Severity
    hidden: int = 0
    fixed: int = 0
    summary: Summary | None = None
    program: Program | None = None
    trace_folder: str | None = None
    problem: str = ""
    notes: tuple[str, ...] = field(default=())
    fail_on_in: Mapping[str, Severity] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> Exit:
        """2 before 3 before 1 before 0."""
        if self.problem or self.coverage.files_failed or any(f.rule == UNREADABLE for f in self.findings):
            return Exit.UNABLE
        if self.program is not None and self.program.failed:
            return Exit.PROGRAM_FAILED
        return Exit.FINDINGS if any(map(self._fails, self.findings)) else Exit.CLEAN

    def _fails(self, finding: Finding) -> bool:
        path = finding.location.path if finding.location is not None else ""
        return finding.severity >= self.fail_on_in.get(path, self.fail_on)

    def counts(self) -> dict[Severity, int]:
        """How many findings there are of each severity, zeros included, worst first."""
        found = Counter(finding.severity for finding in self.findings)
        return {severity: found[severity] for severity in sorted(Severity, reverse=True)}

    def fixable(self) -> tuple[int, int]:
        """How many findings have a safe fix, and how many an unsafe one."""
        safe = [finding.fix.safe for finding in self.findings if finding.fix is not None]
        return sum(safe), len(safe) - sum(safe)

    def confirmed(self) -> int:
        return sum(finding.verdict is Verdict.CONFIRMED for finding in self.findings)


def shown_path(path: str, root: Path) -> str:
    """``path`` relative to ``root`` when it lies below, else absolute."""
    full = Path(path) if Path(path).is_absolute() else root / path
    try:
        return full.relative_to(root).as_posix()
    except ValueError:
        return str(full)
