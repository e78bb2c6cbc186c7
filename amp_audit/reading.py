"""Jobs that need no run: the rules in force, and reading files. Imports neither torch nor, until it reads, libcst."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from amp_audit import rulebook
from amp_audit.model import Coverage, Finding, Severity
from amp_audit.records import record
from amp_audit.report.content import Report
from amp_audit.rulebook import Rule, Rulebook
from amp_audit.settings import RETIRED, Configuration, SettingsError
from amp_audit.target import TargetError

if TYPE_CHECKING:
    from amp_audit.static.source.sources import Gathered


@record(frozen=True, slots=True)
class Read:
    """What reading gave: static findings before settings are applied, and what was covered.

    ``files`` are all that were asked for, ``texts`` those that lie nowhere else: what came from the standard input.
    """

    findings: tuple[Finding, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    problem: str = ""
    files: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)


@record(frozen=True, slots=True)
class Scope:
    """Which files and findings a check is about. ``stdin_name``: the file that the standard input is (``-``).

    ``force_exclude``: ``exclude`` holds for files given by name too. ``diff``: only what concerns lines changed since
    this commit. ``write_baseline``: every finding becomes a known one, in this file. ``cache``: what was found before
    holds while nothing has changed. ``thorough``: look through the whole project for what a repair could break.
    ``beside``: this process may be forked.
    """

    stdin_name: str | None = None
    force_exclude: bool = False
    diff: str | None = None
    write_baseline: Path | None = None
    cache: bool = True
    thorough: bool = False
    beside: bool = False


def load_rules(configuration: Configuration, files: Iterable[str] = ()) -> Rulebook:
    """The rules of the working directory's settings, and of those that govern ``files``.

    Raises RuleError for a bad rule file, SettingsError for a rule that is named and does not exist.
    """
    found = {id(settings): settings for settings in (configuration.base, *map(configuration.of, files))}
    for settings in found.values():
        settings.check(rulebook.load(settings.rules))
    return rulebook.load(tuple(dict.fromkeys(path for settings in found.values() for path in settings.rules)))


def rule(word: str, configuration: Configuration) -> Rule:
    """A rule by id or name. Raises SettingsError when there is none, with a hint if it is retired."""
    book = load_rules(configuration)
    found = book.find(word)
    if found is None:
        hint = RETIRED.get(word.strip().upper())
        raise SettingsError(f"{word} is retired: {hint}" if hint else f"no rule {word!r}; `amp-audit rules` lists them")
    return found


def check(
    paths: Sequence[Path],
    configuration: Configuration,
    scope: Scope | None = None,
    contents: Mapping[str, bytes] | None = None,
) -> Report:
    """Read files and folders; ``contents``: what to take for the contents of a file instead of what is on disk.

    Raises TargetError when a path does not exist or nothing there is Python, SettingsError for settings, a baseline or
    a commit that cannot be used.
    """
    from amp_audit import ratchet

    wanted = scope or Scope()
    load_rules(configuration)  # a mistake in the settings comes before one in the paths
    changes = ratchet.changes(paths, wanted.diff)
    files = gather(paths, configuration, wanted)
    if contents:
        files = replace(files, given={**files.given, **contents})
    book = load_rules(configuration, files.paths)
    place = _cache() if wanted.cache else None
    known = read(files, configuration, book, cache=place, thorough=wanted.thorough, beside=wanted.beside)
    report = assemble("check", " ".join(map(str, paths)), known, configuration, book, Severity.WARNING)
    return ratchet.apply(report, known, configuration, changes, wanted.write_baseline)


def _cache() -> Path:
    from amp_audit.static import cache

    return cache.folder()


def gather(paths: Sequence[Path], configuration: Configuration, scope: Scope | None = None) -> Gathered:
    """The files of paths, as the settings let through. Raises TargetError when there are none."""
    from amp_audit.static.source.sources import SourceError, gather

    wanted = scope or Scope()

    def excluded(path: str) -> bool:
        return configuration.of(path).excluded(path)

    try:
        return gather(paths, excluded, force=wanted.force_exclude, stdin_name=wanted.stdin_name)
    except SourceError as error:
        raise TargetError(str(error)) from None


def read(
    files: Gathered,
    configuration: Configuration,
    book: Rulebook,
    *,
    follow: bool = False,
    cache: Path | None = None,
    thorough: bool = False,
    beside: bool = False,
) -> Read:
    """Findings of the rules in force; ``follow``: also those in files that the given ones import.

    ``cache``: the folder in which results are kept for the next time (None: nowhere). ``thorough``, ``beside``: as in
    ``Scope``.
    """
    from amp_audit.static import check as static

    def in_force(path: str) -> frozenset[str]:
        settings = configuration.of(path)
        # A comment that silences what only a run can see has not been of no use.
        own = rulebook.load(settings.rules)
        return frozenset(rule for rule in settings.in_force(path, own) if own[rule].static or not own[rule].runtime)

    options = static.Options(follow=follow, rules=in_force, cache=cache, thorough=thorough, beside=beside)
    result = static.check_files(files, book, options)
    texts = {path: data.decode("utf-8", "replace") for path, data in files.given.items()}
    return Read(result.findings, result.coverage, files=(*files.paths, *files.configs), texts=texts)


def assemble(
    command: str,
    target: str,
    known: Read,
    configuration: Configuration,
    book: Rulebook,
    fail_on: Severity,
) -> Report:
    """A report of what the settings let through. ``fail_on``: the command's own default."""
    wanted: list[Finding] = []
    shown: list[Finding] = []
    levels: dict[str, Severity] = {}
    for settings, own in configuration.groups(known.findings):
        let = settings.filtered(own, rulebook.load(settings.rules))
        wanted += let
        shown += (finding for finding in let if finding.confidence >= settings.min_confidence)
        if settings is not configuration.base:
            level = settings.fail_on or fail_on
            levels.update((finding.location.path, level) for finding in let if finding.location is not None)
    return Report(
        command=command,
        target=target,
        findings=tuple(sorted(shown, key=lambda finding: finding.sort_key)),
        coverage=known.coverage,
        book=book,
        root=Path.cwd(),
        fail_on=configuration.base.fail_on or fail_on,
        fail_on_in=levels,
        hidden=len(wanted) - len(shown),
        texts=known.texts,
    )


def unable(command: str, target: str, problem: str) -> Report:
    """The report of a job that could not be done: ``problem`` says why, and there is nothing else to tell."""
    return Report(
        command=command,
        target=target,
        findings=(),
        coverage=Coverage(),
        book=Rulebook({}),
        root=Path.cwd(),
        fail_on=Severity.ERROR,
        problem=problem,
    )
