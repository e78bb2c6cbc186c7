"""The job of ``check --fix``: repairs made round by round, until none is left that can be made."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from amp_audit import reading
from amp_audit.model import Finding, Fix
from amp_audit.reading import Scope
from amp_audit.report.content import Report
from amp_audit.settings import Configuration
from amp_audit.target import TargetError

MAX_ROUNDS = 20
"""A repair may uncover another one; what needs more rounds than this is not getting better."""


@dataclass(slots=True)
class Mended:
    """What was done: the report of what remains, and the contents of each changed file before and after.

    ``exit_code_before`` is the one of what was found at first, which stands as long as nothing is written.
    """

    report: Report
    exit_code_before: int = 0
    before: dict[str, bytes] = field(default_factory=dict)
    after: dict[str, bytes] = field(default_factory=dict)
    count: int = 0

    def changed(self) -> Iterator[str]:
        """The files whose contents are others now, in order."""
        return (path for path in sorted(self.after) if self.after[path] != self.before[path])


def mend(paths: Sequence[Path], configuration: Configuration, scope: Scope | None = None, *, unsafe: bool) -> Mended:
    """Make the repairs of what ``check`` reports, in memory; ``unsafe``: also those that change what a program does.

    Raises TargetError when a path does not exist or nothing there is Python, SettingsError as ``check`` does.
    """
    report = reading.check(paths, configuration, scope)
    done = Mended(report, report.exit_code)
    for _ in range(MAX_ROUNDS):
        if not _round(done, unsafe):
            break
        done.report = reading.check(paths, configuration, scope, done.after)
    done.report = replace(done.report, fixed=done.count)
    return done


def _round(done: Mended, unsafe: bool) -> bool:
    """Make all repairs that do not get in each other's way; whether there was one."""
    from amp_audit.static.fixes import apply

    wanted = [finding.fix for finding in done.report.findings if finding.fix and (unsafe or finding.fix.safe)]
    progress = False
    for path, fixes in apply.by_path(apply.compatible(wanted)).items():
        data = done.after[path] if path in done.after else Path(path).read_bytes()
        new, made = apply.rewrite(path, data, fixes)
        if made and new != data:
            done.before.setdefault(path, data)
            done.after[path] = new
            done.count += _mends(made, done.report.findings)
            progress = True
    return progress


def _mends(made: Sequence[Fix], findings: Sequence[Finding]) -> int:
    """How many findings are mended by repairs: several can share one."""
    chosen = set(made)
    return sum(finding.fix in chosen for finding in findings)


def write(done: Mended) -> None:
    """Put the changed files on disk. Raises TargetError for one that cannot be written."""
    for path in done.changed():
        try:
            Path(path).write_bytes(done.after[path])
        except OSError as error:
            raise TargetError(f"{path}: cannot be written: {error.strerror}") from None


def diff(done: Mended) -> bytes:
    """The changes as a unified diff, in the bytes of the files, as ``git apply`` takes it."""
    lines: list[bytes] = []
    for path in done.changed():
        old, new = (re.findall(rb"[^\n]*\n|[^\n]+", data) for data in (done.before[path], done.after[path]))
        name, other = (os.fsencode(f"{side}/{path}") for side in "ab")
        lines += difflib.diff_bytes(difflib.unified_diff, old, new, name, other)
    return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines)
