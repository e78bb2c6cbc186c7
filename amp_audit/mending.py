"""The job of ``check --fix``: repairs made round by round, until none is left that can be made."""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from amp_audit import reading
from amp_audit.model import Fix
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

    A repair after which its file has as many findings as before is taken back. Raises TargetError when a path does not
    exist or nothing there is Python, SettingsError as ``check`` does.
    """
    whole = replace(scope or Scope(), cache=False, thorough=True)
    work = _Work(lambda contents: reading.check(paths, configuration, whole, contents), unsafe)
    for _ in range(MAX_ROUNDS):
        if not work.round():
            break
    work.done.report = replace(work.done.report, fixed=work.done.count)
    return work.done


class _Work:
    """Repairs in progress, safe ones first. ``most`` is how many unsafe ones a file gets at once: half as many whenever
    those made last left it with as many findings as before. ``useless`` are repairs that did not help alone."""

    def __init__(self, check: Callable[[Mapping[str, bytes]], Report], unsafe: bool) -> None:
        self._check = check
        self._unsafe = unsafe
        self._most: dict[str, int] = {}
        self._useless: set[tuple[object, ...]] = set()
        report = check({})
        self.done = Mended(report, report.exit_code)

    def round(self) -> bool:
        """Make the repairs that do not get in each other's way; whether there was one to try."""
        from amp_audit.static.fixes import apply

        done = self.done
        made: dict[str, list[Fix]] = {}
        contents = dict(done.after)
        wanted = self._wanted()
        for path, fixes in apply.by_path(apply.compatible(wanted)).items():
            data = done.after[path] if path in done.after else Path(path).read_bytes()
            tried = fixes[: self._most.get(path)]
            new, own = apply.rewrite(path, data, tried)
            self._useless.update(_key(each) for each in tried if each not in own)
            if own and new != data:
                done.before.setdefault(path, data)
                contents[path], made[path] = new, own
        if made:
            self._keep_what_helps(contents, made)
        return bool(made)

    def _wanted(self) -> list[Fix]:
        """The safe repairs there are; when there are none, the unsafe ones, if asked for."""
        found = [finding.fix for finding in self.done.report.findings if finding.fix is not None]
        left = [each for each in found if _key(each) not in self._useless]
        safe = [each for each in left if each.safe]
        return safe or (left if self._unsafe else [])

    def _keep_what_helps(self, contents: dict[str, bytes], made: Mapping[str, list[Fix]]) -> None:
        done = self.done
        report = self._check(contents)
        before, after = _by_file(done.report), _by_file(report)
        vain = {path for path in made if after[path] >= before[path]}
        for path in vain:
            contents[path] = done.after.get(path, done.before[path])
            self._most[path] = max(1, len(made[path]) // 2)
            if len(made[path]) == 1:
                self._useless.update(map(_key, made[path]))
        helpful = {each for path, fixes in made.items() if path not in vain for each in fixes}
        done.count += sum(finding.fix in helpful for finding in done.report.findings)
        done.after = contents
        done.report = _with_findings(report, done.report, vain)


def _with_findings(report: Report, earlier: Report, paths: Collection[str]) -> Report:
    """A report with the findings that an earlier one has in some files."""
    kept = [each for each in report.findings if each.location is None or each.location.path not in paths]
    kept += [each for each in earlier.findings if each.location is not None and each.location.path in paths]
    return replace(report, findings=tuple(sorted(kept, key=lambda each: each.sort_key)))


def _key(fix: Fix) -> tuple[object, ...]:
    """A repair by what it does, wherever its lines have moved to."""
    return (fix.description, *((edit.path, edit.cell, edit.column, edit.text) for edit in fix.edits))


def _by_file(report: Report) -> Counter[str]:
    """How many findings each file has."""
    return Counter(finding.location.path for finding in report.findings if finding.location is not None)


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
