"""``[tool.amp-audit]`` of pyproject.toml and the command line -> ``Settings``; nothing unknown is passed over.

``Configuration`` has for each file those of the nearest table upwards.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any

from amp_audit.model import Confidence, Finding, Severity, Verdict
from amp_audit.records import record
from amp_audit.rulebook import Rulebook, load

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RETIRED: Mapping[str, str] = {}
"""Ids that were rules once, each with what to use instead. An id is never given to another rule."""

KEYS = ("select", "ignore", "exclude", "per-file-ignores", "fail-on", "min-confidence", "severity", "rules", "baseline")
_GROUP = re.compile(r"AMP\d{0,2}X{0,3}")


class SettingsError(Exception):
    """A setting that cannot be used; the message is one line that names the key and where it stands."""


@record(frozen=True, slots=True)
class Flags:
    """What the command line may say about settings; empty leaves them as they are."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: str | None = None
    min_confidence: str | None = None
    rules: tuple[Path, ...] = ()
    baseline: Path | None = None


@record(frozen=True, slots=True)
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
    baseline: Path | None = None
    source: str = ""
    flagged: frozenset[str] = frozenset()

    def with_flags(self, flags: Flags) -> Settings:
        """What the command line says on top: it replaces ``select``, and adds to ``ignore`` and ``rules``."""
        return replace(
            self,
            select=flags.select or self.select,
            ignore=(*self.ignore, *flags.ignore),
            fail_on=Severity.from_word(flags.fail_on) if flags.fail_on else self.fail_on,
            min_confidence=Confidence.from_word(flags.min_confidence) if flags.min_confidence else self.min_confidence,
            rules=(*self.rules, *flags.rules),
            baseline=flags.baseline or self.baseline,
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

    def in_force(self, path: str, book: Rulebook) -> frozenset[str]:
        """The ids of the rules that may speak of a file: selected, and not ignored for it."""
        here = [words for pattern, words in self.per_file_ignores if self._matches(path, pattern)]
        ignored = (self._named(words, "per-file-ignores", book) for words in here)
        return self.selected(book).difference(*ignored)

    def filtered(self, findings: Iterable[Finding], book: Rulebook) -> tuple[Finding, ...]:
        """The findings of selected rules, with the user's severities, worst first; confidence is not looked at."""
        chosen = self.selected(book)
        severities = {rule: level for word, level in self.severity.items() for rule in matching(word, book)}
        rules: dict[str, frozenset[str]] = {}
        kept = []
        for finding in findings:
            path = finding.location.path if finding.location is not None else None
            if path is not None and path not in rules:
                rules[path] = self.in_force(path, book)
            if finding.rule in (chosen if path is None else rules[path]):
                kept.append(_with_severity(finding, severities))
        return tuple(sorted(kept, key=lambda finding: finding.sort_key))

    def excluded(self, path: str) -> bool:
        """Whether ``exclude`` leaves a file out."""
        return any(self._matches(path, pattern) for pattern in self.exclude)

    def _matches(self, path: str, pattern: str) -> bool:
        """Whether a file is meant by a pattern: of its path from the root, or of a folder on it. A pattern without a
        slash means that name anywhere."""
        inside = _inside(path, self.root)
        if inside is None:
            return False
        parts = inside.split("/")
        plain = pattern.rstrip("/").removeprefix("./")
        if "/" not in plain:
            return any(fnmatchcase(part, plain) for part in parts)
        folders = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
        wanted = (plain, plain.removeprefix("**/"))
        return any(fnmatchcase(folder, each) for folder in folders for each in wanted)

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
    """The ids that a word stands for: an id, a name, or a group (``AMP2``, ``AMP2xx``; ``TEAM`` for one's own)."""
    rule = book.find(word)
    if rule is not None:
        return frozenset({rule.id})
    wanted = word.strip().upper()
    if _GROUP.fullmatch(wanted) and len(wanted) <= len("AMP000"):
        return frozenset(key for key in book.rules if key.startswith(wanted.rstrip("X")))
    return frozenset(key for key in book.rules if wanted and key.rstrip("0123456789").upper() == wanted)


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


def _inside(path: str, root: Path) -> str | None:
    """A path relative to a folder, with slashes; None for one that is not below it."""
    resolved = Path(path).resolve()
    try:
        return PurePath(resolved.relative_to(root.resolve())).as_posix()
    except ValueError:
        return None


class Configuration:
    """For each file the settings of the nearest table upwards, with the command line's words on top.

    A file without one has those of the working directory. ``base`` are these; they also govern what belongs to no file.
    """

    def __init__(self, base: Settings, flags: Flags | None = None, *, follow_files: bool = True) -> None:
        self._flags = flags or Flags()
        self._follow_files = follow_files
        self._by_table: dict[str, Settings] = {base.source: base.with_flags(self._flags)}
        self._by_folder: dict[Path, Settings] = {}
        self.base = self._by_table[base.source]

    def of(self, path: str | None) -> Settings:
        """The settings for a file. Raises SettingsError naming the key and the file."""
        if path is None or not self._follow_files:
            return self.base
        return self._of_folder(Path(os.path.abspath(path)).parent)

    def groups(self, findings: Iterable[Finding]) -> list[tuple[Settings, list[Finding]]]:
        """Findings by the settings that govern them."""
        found: dict[int, tuple[Settings, list[Finding]]] = {}
        for finding in findings:
            own = self.of(finding.location.path if finding.location is not None else None)
            found.setdefault(id(own), (own, []))[1].append(finding)
        return list(found.values())

    def in_force(self, findings: Iterable[Finding]) -> frozenset[str]:
        """The ids of the rules that are selected for some of the findings' files, or for what belongs to no file."""
        tables = [self.base, *(settings for settings, _ in self.groups(findings))]
        return frozenset().union(*(settings.selected(load(settings.rules)) for settings in tables))

    def _of_folder(self, folder: Path) -> Settings:
        if folder not in self._by_folder:
            table = _table_in(folder)
            if table is not None:
                self._by_folder[folder] = self._of_table(table)
            elif folder.parent == folder:
                self._by_folder[folder] = self.base
            else:
                self._by_folder[folder] = self._of_folder(folder.parent)
        return self._by_folder[folder]

    def _of_table(self, table: Path) -> Settings:
        if str(table) not in self._by_table:
            self._by_table[str(table)] = parse(_tool(table)["amp-audit"], table).with_flags(self._flags)
        return self._by_table[str(table)]


def find(start: Path) -> Path | None:
    """The nearest pyproject.toml, from ``start`` upwards, that has a ``[tool.amp-audit]`` table.

    Raises SettingsError when one on the way is not valid TOML.
    """
    return next((table for folder in (start, *start.parents) if (table := _table_in(folder)) is not None), None)


def _table_in(folder: Path) -> Path | None:
    """The pyproject.toml of a folder, if it has a table of ours."""
    path = folder / "pyproject.toml"
    try:
        mentions = b"amp-audit" in path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    return path if mentions and "amp-audit" in _tool(path) else None


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
        rules=tuple(reader.paths("rules")),
        baseline=path.parent / reader.text("baseline") if "baseline" in table else None,
        source=str(path),
    )


def _tool(path: Path) -> Mapping[str, Any]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    tool = data.get("tool", {})
    return tool if isinstance(tool, dict) else {}


@record(frozen=True, slots=True)
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

    def text(self, key: str) -> str:
        value = self.table[key]
        if not isinstance(value, str) or not value:
            raise SettingsError(f"`{key}` of {self.path} must be a non-empty text")
        return value

    def paths(self, key: str) -> Iterator[Path]:
        for text in self.texts(key):
            found = self.path.parent / text
            if not found.exists():
                raise SettingsError(f"`{key}` of {self.path}: {text}: no such file or folder")
            yield found

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
