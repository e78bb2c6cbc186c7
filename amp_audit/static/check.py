"""The static half as a whole: paths -> findings, and what was covered."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from amp_audit.model import Coverage, Finding
from amp_audit.records import record
from amp_audit.rulebook import Rulebook
from amp_audit.static import cache
from amp_audit.static.cache import Entry
from amp_audit.static.source.deep import with_deep_stack
from amp_audit.static.source.layout import Layout
from amp_audit.static.source.screen import Screen, screen
from amp_audit.static.source.selection import Selection, local_imports, root_of, select
from amp_audit.static.source.sources import STDIN, Gathered, Unreadable, gather, read_bytes

_COLLECTED_AFTER = (1_000_000, 50, 100)
"""How many more objects there must be for Python to look for dead cycles among them, and how often among older ones."""


@record(frozen=True, slots=True)
class CheckResult:
    """Findings before settings are applied, worst first, and what was read."""

    findings: tuple[Finding, ...]
    coverage: Coverage


@record(frozen=True, slots=True)
class Options:
    """``excluded`` says which files of a folder to leave out. ``follow``: findings in files that the given ones
    import count too, as in the audit of a program. ``rules``: those in force, be it for each file (None: all).
    ``prefilter``: skip files that cannot matter; without it the findings are the same and it takes longer.
    ``cache``: the folder in which results are kept (None: nowhere). ``thorough``: look through all files of a project
    for what a repair could break, which takes longer. ``beside``: use a second process, where that pays."""

    excluded: Callable[[str], bool] = lambda path: False
    follow: bool = False
    rules: frozenset[str] | Callable[[str], frozenset[str]] | None = None
    prefilter: bool = True
    cache: Path | None = None
    thorough: bool = False
    beside: bool = False

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
    with _few_collections():
        result = with_deep_stack(lambda: _check(groups, book, options, gathered.given))
    if not gathered.configs:
        return result
    from amp_audit.static.spots import configs

    found, read = configs.in_files(gathered.configs, book)
    wanted = [each for each in found if each.location and each.rule in options.rules_for(each.location.path, book)]
    findings = sorted((*result.findings, *wanted), key=lambda finding: finding.sort_key)
    coverage = replace(result.coverage, files_checked=result.coverage.files_checked + read)
    return CheckResult(tuple(findings), coverage)


def _check(
    groups: Mapping[str, Sequence[str]], book: Rulebook, options: Options, given: Mapping[str, bytes]
) -> CheckResult:
    sieve = screen(book)
    outcomes = [_outcome(own, root, book, options, sieve, given) for root, own in groups.items()]
    found = [finding for outcome in outcomes for finding in outcome.findings]
    coverage = Coverage(
        files_checked=sum(outcome.checked for outcome in outcomes),
        files_skipped=sum(outcome.skipped for outcome in outcomes),
        files_failed=sum(outcome.failed for outcome in outcomes),
        notes=tuple(note for outcome in outcomes for note in outcome.notes),
    )
    return CheckResult(tuple(sorted(found, key=lambda finding: finding.sort_key)), coverage)


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    """Trees, values and worlds have no cycles, and looking for some among millions of them costs a fifth of a check
    (measured on torch's own code: 14 of 78 s of CPU time, for not one MiB of memory)."""
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECTED_AFTER)
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # all there is counts as old now; else it would be gone through at once
        gc.set_threshold(*before)


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


def _outcome(
    paths: Sequence[str], root: str, book: Rulebook, options: Options, sieve: Screen, given: Mapping[str, bytes]
) -> Entry:
    """Check one project, or take what an earlier check found."""
    if options.cache is None or options.follow or options.thorough:
        return _examined(select(paths, root, sieve, prefilter=options.prefilter, given=given), book, options)[0]
    data = _contents(paths, given)
    name = cache.key(root, data, _said(paths, book, options))
    known = cache.load(options.cache, name) if data else None
    if known is not None:
        return known
    selection = select(paths, root, sieve, prefilter=options.prefilter, given=data)
    made, layout = _examined(selection, book, options)
    if layout is not None and not made.failed:
        looked = cache.Looked()
        looked.into(selection.looked_into)
        looked.at(layout)
        looked.at(selection.layout)
        cache.store(options.cache, name, made, looked)
    return made


def _examined(selection: Selection, book: Rulebook, options: Options) -> tuple[Entry, Layout | None]:
    """What a selection gives, and where it looked for imports (None: everywhere)."""
    if not (selection.checked or selection.context or selection.failed):
        return Entry((), 0, selection.skipped, ()), selection.layout
    # Only here: what reads programs takes longer to load than most commits take to check.
    from amp_audit.static.examination import examine

    return examine(selection, book, options)


def _contents(paths: Sequence[str], given: Mapping[str, bytes]) -> dict[str, bytes]:
    """The bytes of files; those that cannot be read are left to the check."""
    found = {}
    for path in paths:
        with contextlib.suppress(Unreadable):
            found[path] = given[path] if path in given else read_bytes(path)
    return found


def _said(paths: Sequence[str], book: Rulebook, options: Options) -> list[str]:
    """All that what is found depends on beside the files, as texts."""
    folders = {os.path.dirname(os.path.abspath(path)) for path in paths}
    return [
        repr(options.prefilter),
        repr(sorted(book.rules.items())),
        repr({path: sorted(options.rules_for(path, book)) for path in paths}),
        repr(sorted((folder, root_of(os.path.join(folder, "file"))) for folder in folders)),
    ]
