"""The static half as a whole: paths -> findings, and what was covered."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from amp_audit.model import Coverage, Finding
from amp_audit.rulebook import Rulebook
from amp_audit.static import configs, dtypes, paths, patterns
from amp_audit.static.deep import with_deep_stack
from amp_audit.static.findings import File, present, settle, unreadable
from amp_audit.static.fixes.builder import Builder
from amp_audit.static.loading import lower_all
from amp_audit.static.position import LoweringError
from amp_audit.static.project import Project
from amp_audit.static.raw import RawFinding
from amp_audit.static.screen import Screen, screen
from amp_audit.static.selection import Selection, local_imports, root_of, select
from amp_audit.static.sources import STDIN, Gathered, Source, Unreadable, decode, gather, read_bytes


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Findings before settings are applied, worst first, and what was read."""

    findings: tuple[Finding, ...]
    coverage: Coverage


@dataclass(frozen=True, slots=True)
class Options:
    """``excluded`` says which files of a folder to leave out. ``follow``: findings in files that the given ones
    import count too, as in the audit of a program. ``rules``: those in force, be it for each file (None: all).
    ``prefilter``: skip files that cannot matter; without it the findings are the same and it takes longer.
    ``cache``: the folder in which results are kept (None: nowhere). ``thorough``: look through all files of a project
    for what a repair could break, which takes longer."""

    excluded: Callable[[str], bool] = lambda path: False
    follow: bool = False
    rules: frozenset[str] | Callable[[str], frozenset[str]] | None = None
    prefilter: bool = True
    cache: Path | None = None
    thorough: bool = False

    def rules_for(self, path: str, book: Rulebook) -> frozenset[str]:
        """The ids of the rules in force for a file."""
        if self.rules is None:
            return frozenset(book.rules)
        return self.rules(path) if callable(self.rules) else self.rules


def check(given: Sequence[str | Path], book: Rulebook, options: Options | None = None) -> CheckResult:
    """Read files and folders. Raises SourceError when a path does not exist or nothing there is Python."""
    chosen = options or Options()
    return check_files(gather(given, chosen.excluded), book, chosen)


def check_files(gathered: Gathered, book: Rulebook, options: Options) -> CheckResult:
    """Read files.

    A file that cannot be read or parsed is a finding (AMP001) and counts as failed; the others are still checked. An
    error of a detector is a note, and what it was checking counts as failed.
    """
    files = list(gathered.paths)
    if options.follow:
        files = list(dict.fromkeys([*files, *(imported for path in files for imported in local_imports(path))]))
    groups = _by_root(files, gathered.searched)
    result = with_deep_stack(lambda: _check(groups, book, options, gathered.given))
    found, read = configs.in_files(gathered.configs, book)
    wanted = [each for each in found if each.location and each.rule in options.rules_for(each.location.path, book)]
    findings = sorted((*result.findings, *wanted), key=lambda finding: finding.sort_key)
    coverage = replace(result.coverage, files_checked=result.coverage.files_checked + read)
    return CheckResult(tuple(findings), coverage)


def _check(
    groups: Mapping[str, Sequence[str]], book: Rulebook, options: Options, given: Mapping[str, bytes]
) -> CheckResult:
    sieve = screen(book)
    outcomes = []
    for root, own in groups.items():
        outcomes.append(_Outcome(own, root, book, options))
        outcomes[-1].run(sieve, given)
    found = [finding for outcome in outcomes for finding in outcome.findings]
    coverage = Coverage(
        files_checked=sum(outcome.checked for outcome in outcomes),
        files_skipped=sum(outcome.skipped for outcome in outcomes),
        files_failed=sum(len(outcome.failed) for outcome in outcomes),
        notes=tuple(note for outcome in outcomes for note in outcome.notes),
    )
    return CheckResult(tuple(sorted(found, key=lambda finding: finding.sort_key)), coverage)


def _by_root(files: Sequence[str], searched: Sequence[str]) -> dict[str, list[str]]:
    """Files by the project they belong to: names are not resolved from one project into another."""
    groups: dict[str, list[str]] = {}
    roots: dict[str, str] = {}
    for path in files:
        folder = os.getcwd() if path == STDIN else os.path.dirname(os.path.abspath(path))
        if folder not in roots:
            roots[folder] = root_of(os.path.join(folder, "file"), searched)
        groups.setdefault(roots[folder], []).append(path)
    return groups


@dataclass(slots=True)
class _Outcome:
    """The check of one project, while it is made."""

    paths: Sequence[str]
    root: str
    book: Rulebook
    options: Options
    checked: int = 0
    skipped: int = 0
    findings: list[Finding] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    selection: Selection = field(init=False)

    def run(self, sieve: Screen, given: Mapping[str, bytes]) -> None:
        """Check the project, or take what an earlier check found."""
        if self.options.cache is None or self.options.follow:
            self._run(sieve, given)
            return
        from amp_audit.static import cache

        data = self._contents(given)
        name = cache.key(self.root, data, self._said())
        known = cache.load(self.options.cache, name) if data else None
        if known is not None:
            self.findings += known.findings
            self.checked, self.skipped = known.checked, known.skipped
            self.notes += known.notes
            return
        project = self._run(sieve, data)
        if self.failed or (project is not None and project.read_everything):
            return
        looked = cache.Looked()
        looked.into(self.selection.looked_into)
        for layout in (self.selection.layout, project.layout if project is not None else None):
            if layout is not None:
                looked.at(layout)
        entry = cache.Entry(tuple(self.findings), self.checked, self.skipped, tuple(self.notes))
        cache.store(self.options.cache, name, entry, looked)

    def _contents(self, given: Mapping[str, bytes]) -> dict[str, bytes]:
        """The bytes of the files asked for; those that cannot be read are left to the check."""
        found = {}
        for path in self.paths:
            with contextlib.suppress(Unreadable):
                found[path] = given[path] if path in given else read_bytes(path)
        return found

    def _said(self) -> list[str]:
        """All that what is found depends on beside the files, as texts."""
        folders = {os.path.dirname(os.path.abspath(path)) for path in self.paths}
        rules = {path: sorted(self.options.rules_for(path, self.book)) for path in self.paths}
        return [
            repr(self.options.prefilter),
            repr(sorted(self.book.rules.items())),
            repr(rules),
            repr(sorted((folder, root_of(os.path.join(folder, "file"))) for folder in folders)),
        ]

    def _run(self, sieve: Screen, given: Mapping[str, bytes]) -> Project | None:
        self.selection = select(self.paths, self.root, sieve, prefilter=self.options.prefilter, given=given)
        self.skipped = self.selection.skipped
        if self.selection.left_out:
            self.notes.append(
                f"{self.selection.root}: what the files import was read in part, since it is a whole library"
            )
        for path, error in self.selection.failed.items():
            self._fail(path, error)
        files = {file.source.path: file for file in self._files()}
        if not files:
            return None
        project = Project((file.module for file in files.values()), Path(self.selection.root))
        asked = {path: self.options.rules_for(path, self.book) for path in self._asked(files)}
        builder = Builder(project, thorough=self.options.thorough)
        self.findings += present(self._raw(project), files, asked, self.book, builder.of)
        self.notes += builder.notes
        self.checked = len(asked.keys() - self.failed)
        return project

    def _asked(self, files: dict[str, File]) -> frozenset[str]:
        """The files whose findings are wanted."""
        return frozenset(files if self.options.follow else files.keys() & self.selection.checked.keys())

    def _files(self) -> Iterator[File]:
        """The files that could be lowered."""
        sources = [*self._sources(self.selection.checked), *self._sources(self.selection.context)]
        lowered = lower_all(sources)
        for source in sources:
            module = lowered[source.path]
            if isinstance(module, LoweringError):
                cell, line = source.place(module.line)
                self._give_up(
                    source.path, Unreadable(str(module), line, source.column(module.line, module.column), cell)
                )
            else:
                yield File(source, module)

    def _sources(self, data: Mapping[str, bytes]) -> Iterator[Source]:
        for path, content in data.items():
            try:
                source = decode(path, content)
            except Unreadable as error:
                self._give_up(path, error)
                continue
            for broken in source.broken:
                self._give_up(path, broken)
            yield source

    def _give_up(self, path: str, error: Unreadable) -> None:
        """A file that is no Python: it fails, unless nobody asked for it or nothing in it could matter."""
        asked = path in self.selection.checked
        if path in self.selection.telling and (asked or self.options.follow):
            self._fail(path, error)
        elif asked:
            self.skipped += 1

    def _fail(self, path: str, error: Unreadable) -> None:
        self.failed.add(path)
        self.findings.append(unreadable(path, error, self.book))

    def _raw(self, project: Project) -> list[RawFinding]:
        """What the detectors find; one that fails costs its own findings, not those of the others."""
        found = []
        for name, detector in _DETECTORS.items():
            try:
                found.append(detector(project, self.book, self))
            except Exception:
                self.failed.add(f"{self.selection.root} ({name})")
                self.notes.append(_internal(name, self.selection.root))
        return settle(found)


def _internal(detector: str, root: str) -> str:
    lines = traceback.format_exc().strip().splitlines()
    place = next((line.strip() for line in reversed(lines) if line.strip().startswith("File ")), "")
    return f"internal error in the {detector} of {root}: {lines[-1]} ({place}); please report it"


def _patterns(project: Project, book: Rulebook, outcome: _Outcome) -> list[RawFinding]:
    found, failures = patterns.find(project, book)
    outcome.notes += failures
    outcome.failed.update(failures)
    return found


def _paths(project: Project, book: Rulebook, outcome: _Outcome) -> list[RawFinding]:
    found, unfinished = paths.find(project, book)
    outcome.notes += unfinished
    return found


def _dtypes(project: Project, book: Rulebook, outcome: _Outcome) -> list[RawFinding]:
    return dtypes.find(project, book)


_DETECTORS: dict[str, Callable[[Project, Rulebook, _Outcome], list[RawFinding]]] = {
    "patterns": _patterns,
    "paths": _paths,
    "dtypes": _dtypes,
}
