"""``[tool.amp-audit]`` of pyproject.toml and the command line -> ``Settings``. Nothing unknown is passed over."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any

from amp_audit.model import Confidence, Finding, Severity, Verdict
from amp_audit.rulebook import Rulebook

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RETIRED: Mapping[str, str] = {}
"""Ids that were rules once, each with what to use instead. An id is never given to another rule."""

KEYS = ("select", "ignore", "exclude", "per-file-ignores", "fail-on", "min-confidence", "severity", "rules")


class SettingsError(Exception):
    """A setting that cannot be used; the message is one line that names the key and where it stands."""


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line may say about settings; empty leaves them as they are."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: str | None = None
    min_confidence: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What to report and when to fail. ``fail_on`` None leaves it to the command.

    ``select`` empty means every rule. ``exclude`` and the patterns of ``per_file_ignores`` are relative to ``root``,
    the folder of the pyproject.toml they were read from (``source``). ``flagged`` are rule words of the command line.
    """

    root: Path = field(default_factory=Path.cwd)
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    fail_on: Severity | None = None
    min_confidence: Confidence = Confidence.MEDIUM
    severity: Mapping[str, Severity] = field(default_factory=dict)
    rules: tuple[Path, ...] = ()
    source: str = ""
    flagged: frozenset[str] = frozenset()

    def with_flags(self, flags: Flags) -> Settings:
        """What the command line says on top: it replaces ``select``, and adds to ``ignore``."""
        return replace(
            self,
            select=flags.select or self.select,
            ignore=(*self.ignore, *flags.ignore),
            fail_on=Severity.from_word(flags.fail_on) if flags.fail_on else self.fail_on,
            min_confidence=Confidence.from_word(flags.min_confidence) if flags.min_confidence else self.min_confidence,
            flagged=frozenset({*flags.select, *flags.ignore}),
        )

    def selected(self, book: Rulebook) -> frozenset[str]:
        """The ids of the rules in force. Raises SettingsError for a word that names no rule."""
        chosen = self._named(self.select, "select", book) if self.select else frozenset(book.rules)
        return chosen - self._named(self.ignore, "ignore", book)

    def check(self, book: Rulebook) -> None:
        """Raises SettingsError for any rule that is named but does not exist."""
        self.selected(book)
        for pattern, words in self.per_file_ignores:
            self._named(words, f"per-file-ignores.{pattern!r}", book)
        self._named(self.severity, "severity", book)

    def filtered(self, findings: Iterable[Finding], book: Rulebook) -> tuple[Finding, ...]:
        """The findings of selected rules, with the user's severities, worst first; confidence is not looked at."""
        chosen = self.selected(book)
        ignores = [(pattern, self._named(words, "per-file-ignores", book)) for pattern, words in self.per_file_ignores]
        severities = {rule: level for word, level in self.severity.items() for rule in matching(word, book)}
        kept = (f for f in findings if f.rule in chosen and not self._ignored(f, ignores))
        return tuple(sorted((_with_severity(f, severities) for f in kept), key=lambda f: f.sort_key))

    def excluded(self, path: str) -> bool:
        """Whether ``exclude`` leaves a file out."""
        return any(self._matches(path, pattern) for pattern in self.exclude)

    def _ignored(self, finding: Finding, ignores: Iterable[tuple[str, frozenset[str]]]) -> bool:
        place = finding.location
        if place is None:
            return False
        return any(finding.rule in rules and self._matches(place.path, pattern) for pattern, rules in ignores)

    def _matches(self, path: str, pattern: str) -> bool:
        resolved = Path(path).resolve()
        try:
            inside = PurePath(resolved.relative_to(self.root.resolve())).as_posix()
        except ValueError:
            return False
        folder = pattern.rstrip("/")
        return fnmatchcase(inside, pattern) or inside == folder or inside.startswith(folder + "/")

    def _named(self, words: Iterable[str], key: str, book: Rulebook) -> frozenset[str]:
        found: set[str] = set()
        for word in words:
            rules = matching(word, book)
            if not rules:
                where = f"--{key}" if word in self.flagged else f"`{key}` of {self.source}"
                raise SettingsError(_unknown(word, where, book.rules))
            found |= rules
        return frozenset(found)


def matching(word: str, book: Rulebook) -> frozenset[str]:
    """The ids that a word stands for: an id, a name, or the beginning of ids (``AMP2``)."""
    rule = book.find(word)
    if rule is not None:
        return frozenset({rule.id})
    wanted = word.strip().upper()
    if wanted == "AMP" or (wanted.startswith("AMP") and len(wanted) < len("AMP000")):
        return frozenset(key for key in book.rules if key.startswith(wanted))
    return frozenset()


def _unknown(word: str, where: str, known: Collection[str]) -> str:
    retired = RETIRED.get(word.strip().upper())
    if retired is not None:
        return f"rule {word} in {where} is retired: {retired}"
    return f"unknown rule {word!r} in {where}; `amp-audit rules` lists the {len(known)} there are"


def _with_severity(finding: Finding, severities: Mapping[str, Severity]) -> Finding:
    level = severities.get(finding.rule)
    if level is None:
        return finding
    return replace(finding, severity=level.lowered if finding.verdict is Verdict.NOT_REPRODUCED else level)


def find(start: Path) -> Path | None:
    """The nearest pyproject.toml, from ``start`` upwards, that has a ``[tool.amp-audit]`` table.

    Raises SettingsError when one on the way is not valid TOML.
    """
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        if path.is_file() and "amp-audit" in _tool(path):
            return path
    return None


def read(start: Path) -> Settings:
    """The settings in force for ``start``. Raises SettingsError naming the key and the file."""
    path = find(start)
    return parse(_tool(path)["amp-audit"], path) if path is not None else Settings(root=start)


def parse(table: object, path: Path) -> Settings:
    """Settings from a ``[tool.amp-audit]`` table. Raises SettingsError naming the key and the file."""
    if not isinstance(table, dict):
        raise SettingsError(f"`tool.amp-audit` of {path} must be a table")
    for key in table:
        if key not in KEYS:
            raise SettingsError(f"unknown key `{key}` in [tool.amp-audit] of {path}; known are {', '.join(KEYS)}")
    reader = _Reader(table, path)
    return Settings(
        root=path.parent,
        select=reader.texts("select"),
        ignore=reader.texts("ignore"),
        exclude=reader.texts("exclude"),
        per_file_ignores=tuple(reader.table_of_texts("per-file-ignores").items()),
        fail_on=Severity.from_word(reader.word("fail-on", Severity)) if "fail-on" in table else None,
        min_confidence=Confidence.from_word(reader.word("min-confidence", Confidence, "medium")),
        severity=reader.severities("severity"),
        rules=tuple(path.parent / text for text in reader.texts("rules")),
        source=str(path),
    )


def _tool(path: Path) -> Mapping[str, Any]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    tool = data.get("tool", {})
    return tool if isinstance(tool, dict) else {}


@dataclass(frozen=True, slots=True)
class _Reader:
    """Typed access to one table; every error names the key and the file."""

    table: Mapping[str, Any]
    path: Path

    def texts(self, key: str) -> tuple[str, ...]:
        return self._texts(self.table.get(key, []), key)

    def _texts(self, value: object, key: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise SettingsError(f"`{key}` of {self.path} must be a list of strings")
        return tuple(value)

    def table_of_texts(self, key: str) -> dict[str, tuple[str, ...]]:
        return {name: self._texts(value, f"{key}.{name!r}") for name, value in self._table(key).items()}

    def severities(self, key: str) -> dict[str, Severity]:
        found: dict[str, Severity] = {}
        for name, word in self._table(key).items():
            try:
                found[name] = Severity.from_word(str(word))
            except ValueError as error:
                raise SettingsError(f"`{key}.{name}` of {self.path}: {error}") from None
        return found

    def _table(self, key: str) -> Mapping[str, Any]:
        value = self.table.get(key, {})
        if not isinstance(value, dict):
            raise SettingsError(f"`{key}` of {self.path} must be a table")
        return value

    def word(self, key: str, kind: type[Severity] | type[Confidence], default: str = "") -> str:
        value = self.table.get(key, default)
        try:
            return kind.from_word(str(value)).word
        except ValueError as error:
            raise SettingsError(f"`{key}` of {self.path}: {error}") from None
