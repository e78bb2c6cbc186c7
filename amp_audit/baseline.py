"""Findings that a project has decided to live with: a file of their fingerprints, written once and read at each check.

The file is JSON, sorted, one entry a finding, and names no lines, so that it changes only when the findings do. Paths
in it are relative to its own folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from amp_audit.model import Finding
from amp_audit.records import record
from amp_audit.settings import SettingsError

VERSION = 1
_NEVER_KNOWN = frozenset({"AMP001", "AMP003"})
"""What could not be read or seen is not a mistake that one can live with: nothing is known about it."""


@record(frozen=True, slots=True)
class Entry:
    """One known finding; ``path`` is None for one that has no place."""

    fingerprint: str
    rule: str
    path: str | None


@record(frozen=True, slots=True)
class Baseline:
    """The entries of one baseline file."""

    path: Path
    entries: tuple[Entry, ...]

    def split(self, findings: Iterable[Finding]) -> tuple[list[Finding], int]:
        """The findings that are not known, and how many are."""
        known = {entry.fingerprint for entry in self.entries}
        given = list(findings)
        fresh = [finding for finding in given if finding.fingerprint not in known or finding.rule in _NEVER_KNOWN]
        return fresh, len(given) - len(fresh)

    def stale(self, findings: Iterable[Finding], checked: Collection[str], rules: Collection[str]) -> list[Entry]:
        """The entries that nothing matches any more, among those of ``rules`` in files that were ``checked`` (real
        paths) or are gone."""
        found = {finding.fingerprint for finding in findings}
        return [
            entry
            for entry in self.entries
            if entry.fingerprint not in found and entry.rule in rules and self._was_looked_at(entry, checked)
        ]

    def _was_looked_at(self, entry: Entry, checked: Collection[str]) -> bool:
        if entry.path is None:
            return False
        path = os.path.realpath(self.path.parent / entry.path)
        return path in checked or not os.path.exists(path)


def read(path: Path) -> Baseline:
    """Raises SettingsError for a file that is no baseline, in one line that names it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = f"; amp-audit check --write-baseline {path} makes one" if isinstance(error, FileNotFoundError) else ""
        raise SettingsError(f"baseline {path}: {error.strerror}{hint}") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"baseline {path}: not valid JSON: {error}") from None
    if not isinstance(data, dict) or data.get("tool") != "amp-audit":
        raise SettingsError(f"baseline {path}: not a baseline of amp-audit")
    if data.get("version") != VERSION:
        raise SettingsError(f"baseline {path}: version {data.get('version')!r}; this amp-audit reads {VERSION}")
    items = data.get("findings")
    if not isinstance(items, list):
        raise SettingsError(f"baseline {path}: `findings` must be a list")
    return Baseline(path, tuple(_entry(item, number, path) for number, item in enumerate(items, 1)))


def _entry(item: object, number: int, path: Path) -> Entry:
    if isinstance(item, dict):
        mark, rule, place = item.get("fingerprint"), item.get("rule"), item.get("path")
        if isinstance(mark, str) and isinstance(rule, str) and (place is None or isinstance(place, str)):
            return Entry(mark, rule, place)
    raise SettingsError(f"baseline {path}: finding number {number} needs `fingerprint`, `rule` and `path`")


def write(path: Path, findings: Sequence[Finding]) -> int:
    """Write the baseline of ``findings``; returns how many it holds. Raises SettingsError where that is impossible."""
    folder = path.resolve().parent
    kept = [finding for finding in findings if finding.rule not in _NEVER_KNOWN and finding.fingerprint]
    entries = sorted(
        (_relative(finding, folder) or "", finding.rule, finding.fingerprint, _relative(finding, folder))
        for finding in kept
    )
    document = {
        "tool": "amp-audit",
        "version": VERSION,
        "findings": [{"path": place, "rule": rule, "fingerprint": mark} for _, rule, mark, place in entries],
    }
    try:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"baseline {path}: {error.strerror}") from None
    return len(entries)


def _relative(finding: Finding, folder: Path) -> str | None:
    if finding.location is None:
        return None
    return os.path.relpath(os.path.realpath(finding.location.path), folder).replace(os.sep, "/")
