"""The files of one project -> what the detectors find in them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from amp_audit.model import Finding, Fix
from amp_audit.records import record, replace
from amp_audit.rulebook import Rulebook
from amp_audit.static.beside import Beside, is_worth_it
from amp_audit.static.binding.project import Project
from amp_audit.static.cache import Entry
from amp_audit.static.expected import unexpected
from amp_audit.static.findings import File, present, settle, unreadable
from amp_audit.static.raw import RawFinding
from amp_audit.static.source.layout import Layout
from amp_audit.static.source.loading import lower_all
from amp_audit.static.source.lowered import Shelf
from amp_audit.static.source.pins import Newest, newest
from amp_audit.static.source.position import LoweringError
from amp_audit.static.source.selection import Selection
from amp_audit.static.source.sources import Source, Unreadable, decode

if TYPE_CHECKING:
    from amp_audit.static.check import Options
    from amp_audit.static.fixes.builder import Builder


LARGEST = 2_000_000
"""Characters above which a source is left out, and named: the longest file of torch has 1.2 million (measured: 5 s of
CPU time and 0.3 GB of memory for a million)."""

MOST_BESIDE = 4_000_000
"""Characters of a project up to which two processes work on it: each comes to hold most of what both began with."""


def examine(selection: Selection, book: Rulebook, options: Options) -> tuple[Entry, Layout | None]:
    """What the selected files give, and where imports were looked for (None: an answer rests on every file)."""
    outcome = _Outcome(selection, book, options)
    project = outcome.run()
    made = Entry(tuple(outcome.findings), outcome.checked, outcome.skipped, tuple(outcome.notes), len(outcome.failed))
    if project is None:
        return made, selection.layout
    return made, None if project.read_everything else project.layout


@dataclass(slots=True)
class _Outcome:
    """The examination of one project, while it is made."""

    selection: Selection
    book: Rulebook
    options: Options
    checked: int = 0
    skipped: int = 0
    findings: list[Finding] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    asked: Set[str] = frozenset()
    size: int = 0

    def run(self) -> Project | None:
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
        self.size = sum(len(file.source.text) for file in files.values())
        project = Project((file.module for file in files.values()), Path(self.selection.root), self._newest(files))
        asked = {path: self.options.rules_for(path, self.book) for path in self._asked(files)}
        self.asked = asked.keys()
        repairs = _Repairs(project, self.options.thorough)
        in_force = self.book.only(frozenset().union(*asked.values()))
        self.findings += present(self._raw(project, in_force), files, asked, self.book, repairs.of)
        self.notes += repairs.notes
        self.checked = len(asked.keys() - self.failed)
        return project

    def _newest(self, files: Mapping[str, File]) -> Newest:
        declared = (data.decode(errors="replace") for data in self.selection.declared.values())
        return newest(declared, (file.source.text for file in files.values()))

    def _asked(self, files: dict[str, File]) -> frozenset[str]:
        """The files whose findings are wanted."""
        return frozenset(files if self.options.follow else files.keys() & self.selection.checked.keys())

    def _files(self) -> Iterator[File]:
        """The files that could be lowered."""
        sources = [*self._sources(self.selection.checked), *self._sources(self.selection.context)]
        lowered = lower_all(sources, self._shelf())
        for source in sources:
            module = lowered[source.path]
            if isinstance(module, LoweringError):
                cell, line = source.place(module.line)
                self._give_up(
                    source.path, Unreadable(str(module), line, source.column(module.line, module.column), cell)
                )
            else:
                yield File(source, module)

    def _shelf(self) -> Shelf | None:
        """Where lowered modules are kept, beside the results of checks."""
        return Shelf(self.options.cache / "modules") if self.options.cache is not None else None

    def _sources(self, data: Mapping[str, bytes]) -> Iterator[Source]:
        for path, content in data.items():
            try:
                source = decode(path, content)
            except Unreadable as error:
                self._give_up(path, error)
                continue
            for broken in source.broken:
                self._give_up(path, broken)
            if len(source.text) > LARGEST:
                self._leave_out(path, len(source.text))
                continue
            yield source

    def _leave_out(self, path: str, size: int) -> None:
        """A file that nobody wrote: reading it would take minutes and gigabytes."""
        self.notes.append(f"{path}: not read, for {size / 1e6:.1f} MB of source are taken for generated code")
        if path in self.selection.checked:
            self.skipped += 1

    def _give_up(self, path: str, error: Unreadable) -> None:
        """A file that is no Python: it fails, unless nobody asked for it or nothing in it could matter."""
        asked = path in self.selection.checked
        if (asked or self.options.follow) and self.selection.telling(path):
            self._fail(path, error)
        elif asked:
            self.skipped += 1

    def _fail(self, path: str, error: Unreadable) -> None:
        self.failed.add(path)
        self.findings.append(unreadable(path, error, self.book))

    def _raw(self, project: Project, book: Rulebook) -> list[RawFinding]:
        """What the detectors find; one that fails costs its own findings, not those of the others."""
        runs = {name: partial(detector, project, book, self) for name, detector in _DETECTORS.items()}
        if self.options.beside and self.size <= MOST_BESIDE and is_worth_it():
            runs["dtypes"] = partial(_taken_over, Beside(partial(_apart, runs["dtypes"], project), book.rules), project)
        found = []
        for name, run in runs.items():
            try:
                found.append(run())
            except Exception:
                self.failed.add(f"{self.selection.root} ({name})")
                self.notes.append(_internal(name, self.selection.root))
        return [*unexpected(settle(found), project)]


@dataclass(slots=True)
class _Repairs:
    """Builds repairs. What does so is loaded for the first finding: most checks of a commit have none."""

    project: Project
    thorough: bool
    _builder: Builder | None = None

    def of(self, raw: RawFinding, file: File) -> Fix | None:
        """The repair of a finding, as of ``Builder``."""
        if self._builder is None:
            from amp_audit.static.fixes.builder import Builder

            self._builder = Builder(self.project, thorough=self.thorough)
        return self._builder.of(raw, file)

    @property
    def notes(self) -> list[str]:
        """The errors of repairs that could not be built."""
        return self._builder.notes if self._builder is not None else []


def _internal(detector: str, root: str) -> str:
    lines = traceback.format_exc().strip().splitlines()
    place = next((line.strip() for line in reversed(lines) if line.strip().startswith("File ")), "")
    return f"internal error in the {detector} of {root}: {lines[-1]} ({place}); please report it"


# Detectors are loaded by the process that runs them: that takes as long as checking a few files does.


def _patterns(project: Project, book: Rulebook, outcome: _Outcome) -> list[RawFinding]:
    from amp_audit.static.spots import patterns

    found, failures = patterns.find(project, book, outcome.asked)
    outcome.notes += failures
    outcome.failed.update(failures)
    return found


def _paths(project: Project, book: Rulebook, outcome: _Outcome) -> list[RawFinding]:
    from amp_audit.static.walking import paths

    found, unfinished = paths.find(project, book, outcome.asked)
    outcome.notes += unfinished
    return found


def _dtypes(project: Project, book: Rulebook, outcome: _Outcome) -> list[RawFinding]:
    from amp_audit.static import dtypes

    return dtypes.find(project, book, outcome.asked)


@record(frozen=True, slots=True)
class Looked:
    """Where another process has looked for imports, in its copy of a project."""

    read_everything: bool
    read: dict[str, bytes | None]
    asked: dict[str, bool]
    listed: dict[str, str]

    @classmethod
    def of(cls, project: Project) -> Looked:
        layout = project.layout
        return cls(project.read_everything, layout.read, layout.asked, layout.listed)

    def into(self, project: Project) -> None:
        project.read_everything |= self.read_everything
        project.layout.learn(self.read, self.asked, self.listed)


def _apart(run: Callable[[], list[RawFinding]], project: Project) -> tuple[list[RawFinding], Looked]:
    """What a detector finds in a process of its own, and where it has looked."""
    # What a finding knows beside its text goes by the objects of a walk, and is of use only within it.
    return [replace(raw, facts={}) for raw in run()], Looked.of(project)


def _taken_over(apart: Beside[tuple[list[RawFinding], Looked]], project: Project) -> list[RawFinding]:
    found, looked = apart.result()
    looked.into(project)
    return found


_DETECTORS: dict[str, Callable[[Project, Rulebook, _Outcome], list[RawFinding]]] = {
    "patterns": _patterns,
    "paths": _paths,
    "dtypes": _dtypes,
}
