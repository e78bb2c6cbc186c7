"""Jobs that need no run: the rules in force, and reading files. Imports neither torch nor, until it reads, libcst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from amp_audit import rulebook
from amp_audit.model import Coverage, Finding, Severity
from amp_audit.report.content import Report
from amp_audit.rulebook import Rule, Rulebook
from amp_audit.settings import RETIRED, Settings, SettingsError
from amp_audit.target import TargetError


@dataclass(frozen=True, slots=True)
class Read:
    """What reading gave: static findings before settings are applied, and what was covered."""

    findings: tuple[Finding, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    problem: str = ""


def load_rules(settings: Settings) -> Rulebook:
    """The rules in force. Raises RuleError for a bad rule file, SettingsError for a rule that does not exist."""
    book = rulebook.load(settings.rules)
    settings.check(book)
    return book


def rule(word: str, settings: Settings) -> Rule:
    """A rule by id or name. Raises SettingsError when there is none, with a hint if it is retired."""
    book = load_rules(settings)
    found = book.find(word)
    if found is None:
        hint = RETIRED.get(word.strip().upper())
        raise SettingsError(f"{word} is retired: {hint}" if hint else f"no rule {word!r}; `amp-audit rules` lists them")
    return found


def check(paths: Sequence[Path], settings: Settings) -> Report:
    """Read files and folders. Raises TargetError when a path does not exist or nothing there is Python."""
    book = load_rules(settings)
    known = read(paths, settings, book)
    return assemble(
        "check", " ".join(map(str, paths)), known.findings, known.coverage, settings, book, Severity.WARNING
    )


def read(paths: Sequence[Path], settings: Settings, book: Rulebook, *, follow: bool = False) -> Read:
    """Findings of the rules in force; ``follow``: also those in files that the given ones import.

    Raises TargetError when a path does not exist or nothing there is Python.
    """
    from amp_audit.static import check as static
    from amp_audit.static.sources import SourceError

    # A comment that silences what only a run can see has not been of no use.
    readable = {rule.id for rule in book.rules.values() if rule.static or not rule.runtime}
    options = static.Options(excluded=settings.excluded, follow=follow, rules=settings.selected(book) & readable)
    try:
        result = static.check(paths, book, options)
    except SourceError as error:
        raise TargetError(str(error)) from None
    return Read(result.findings, result.coverage)


def assemble(
    command: str,
    target: str,
    findings: Sequence[Finding],
    coverage: Coverage,
    settings: Settings,
    book: Rulebook,
    fail_on: Severity,
) -> Report:
    """A report of what the settings let through. ``fail_on``: the command's own default."""
    wanted = settings.filtered(findings, book)
    shown = tuple(finding for finding in wanted if finding.confidence >= settings.min_confidence)
    return Report(
        command=command,
        target=target,
        findings=shown,
        coverage=coverage,
        book=book,
        root=Path.cwd(),
        fail_on=settings.fail_on or fail_on,
        hidden=len(wanted) - len(shown),
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
