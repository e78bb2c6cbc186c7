"""What the check of a project gave, kept for the next time that nothing has changed.

An entry holds for the same files with the same content, the same rules, settings, working directory, Python and
amp-audit; and while all that the check looked at beside those files is as it was: files read for context, files that
were or were not there, folders that were listed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from amp_audit import kept
from amp_audit.kept import digest
from amp_audit.model import (
    Confidence,
    Edit,
    Evidence,
    Finding,
    Fix,
    Location,
    Related,
    Severity,
    Subject,
    Verdict,
)
from amp_audit.records import record
from amp_audit.static.source.layout import Layout, listing
from amp_audit.static.source.sources import Unreadable, read_bytes

MOST_ENTRIES = 256


@record(frozen=True, slots=True)
class Entry:
    """What the check of a project gave: its findings, and how many files it read and skipped. Only one in which
    nothing ``failed`` is kept."""

    findings: tuple[Finding, ...]
    checked: int
    skipped: int
    notes: tuple[str, ...]
    failed: int = 0


@dataclass(slots=True)
class Looked:
    """What a check looked at beside the files it was given: digests of files, what was a file, listings of folders."""

    context: dict[str, str] = field(default_factory=dict)
    files: dict[str, bool] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)

    def into(self, contents: Mapping[str, bytes | None]) -> None:
        """Add files that were read (None: in vain)."""
        self.context.update((path, digest(data) if data is not None else "") for path, data in contents.items())

    def at(self, layout: Layout) -> None:
        """Add what a layout has asked the disk."""
        self.into(layout.read)
        self.files.update(layout.asked)
        self.folders.update((folder, digest(entries.encode())) for folder, entries in layout.listed.items())

    def is_unchanged(self) -> bool:
        """Whether all of it is still so."""
        return (
            all(os.path.isfile(path) is was for path, was in self.files.items())
            and all(digest(listing(folder).encode()) == was for folder, was in self.folders.items())
            and all(_digest_of(path) == was for path, was in self.context.items())
        )


def folder() -> Path:
    """Where entries are kept."""
    return kept.folder("check")


def _digest_of(path: str) -> str:
    try:
        return digest(read_bytes(path))
    except Unreadable:
        return ""


def key(root: str, data: Mapping[str, bytes], said: Sequence[str]) -> str:
    """The name of the entry for the check of these files; ``said`` is what else was asked for, as texts."""
    found = hashlib.blake2b(digest_size=20)
    around = (kept.state(), os.getcwd(), root, *said)
    for text in (*around, *(part for path, content in data.items() for part in (path, digest(content)))):
        found.update(text.encode("utf-8", "surrogateescape") + b"\0")
    return found.hexdigest()


def load(where: Path, name: str) -> Entry | None:
    """The entry of this name, if it is there, whole, and still true."""
    try:
        data = kept.load(where, name)
        if data is None or not Looked(data["context"], data["files"], data["folders"]).is_unchanged():
            return None
        entry = Entry(
            tuple(_finding(item) for item in data["findings"]), data["checked"], data["skipped"], tuple(data["notes"])
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    kept.use(where, name)
    return entry


def store(where: Path, name: str, entry: Entry, looked: Looked) -> None:
    """Keep an entry; where that is impossible, nothing happens."""
    document = {
        "context": looked.context,
        "files": looked.files,
        "folders": looked.folders,
        "findings": [_plain(finding) for finding in entry.findings],
        "checked": entry.checked,
        "skipped": entry.skipped,
        "notes": list(entry.notes),
    }
    kept.store(where, name, document, MOST_ENTRIES)


def _plain(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "verdict": finding.verdict.value}


def _finding(data: Mapping[str, Any]) -> Finding:
    place, subject, fix = data["location"], data["subject"], data["fix"]
    return Finding(
        **{
            **data,
            "severity": Severity(data["severity"]),
            "confidence": Confidence(data["confidence"]),
            "verdict": Verdict(data["verdict"]),
            "location": Location(**place) if place is not None else None,
            "subject": Subject(**subject) if subject is not None else None,
            "related": tuple(Related(Location(**item["location"]), item["message"]) for item in data["related"]),
            "evidence": tuple(Evidence(**{**item, "steps": tuple(item["steps"])}) for item in data["evidence"]),
            "fix": Fix(**{**fix, "edits": tuple(Edit(**edit) for edit in fix["edits"])}) if fix is not None else None,
        }
    )
