"""The job of ``check --fix``: repairs made round by round, until none is left that can be made."""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """Repairs in progress. ``singly`` are the files in which repairs are made one at a time, since together some did
    not help; ``useless`` are repairs that did not help by themselves."""

    def __init__(self, check: Callable[[Mapping[str, bytes]], Report], unsafe: bool) -> None:
        self._check = check
        self._unsafe = unsafe
        self._singly: set[str] = set()
        self._useless: set[tuple[object, ...]] = set()
        report = check({})
        self.done = Mended(report, report.exit_code)

    def round(self) -> bool:
        """Make all repairs that do not get in each other's way; whether there was one to try."""
        from amp_audit.static.fixes import apply

        done = self.done
        made: dict[str, list[Fix]] = {}
        contents = dict(done.after)
        for path, fixes in apply.by_path(apply.compatible(self._wanted())).items():
            data = done.after[path] if path in done.after else Path(path).read_bytes()
            new, own = apply.rewrite(path, data, fixes[:1] if path in self._singly else fixes)
            self._useless.update(_key(each) for each in fixes[: 1 if path in self._singly else None] if each not in own)
            if own and new != data:
                done.before.setdefault(path, data)
                contents[path], made[path] = new, own
        if made:
            self._keep_what_helps(contents, made)
        return bool(made)

    def _wanted(self) -> Iterator[Fix]:
        for finding in self.done.report.findings:
            each = finding.fix
            if each is not None and (each.safe or self._unsafe) and _key(each) not in self._useless:
                yield each

    def _keep_what_helps(self, contents: dict[str, bytes], made: Mapping[str, list[Fix]]) -> None:
        report = self._check(contents)
        before, after = _by_file(self.done.report), _by_file(report)
        vain = [path for path in made if after[path] >= before[path]]
        for path in vain:
            contents[path] = self.done.after.get(path, self.done.before[path])
            if path in self._singly or len(made[path]) == 1:
                self._useless.update(map(_key, made[path]))
            self._singly.add(path)
        helpful = {each for path, fixes in made.items() if path not in vain for each in fixes}
        self.done.count += sum(finding.fix in helpful for finding in self.done.report.findings)
        self.done.after = contents
        self.done.report = self._check(contents) if vain else report


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
