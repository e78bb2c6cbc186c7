"""Which lines of a checkout changed since a commit, as git says, and which findings those lines concern."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from amp_audit.model import Finding, Location
from amp_audit.records import record
from amp_audit.settings import SettingsError

_TIMEOUT_S = 120
_HUNK = re.compile(rb"@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@")
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.S)
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}
_NOTEBOOK = ".ipynb"


@dataclass(slots=True)
class Changed:
    """The changed lines of one file: ``added`` are ranges (first, last), ``removed_after`` the lines after which
    something was deleted (0: before the first). ``whole``: all of it counts."""

    added: list[tuple[int, int]] = field(default_factory=list)
    removed_after: list[int] = field(default_factory=list)
    whole: bool = False

    def touches(self, first: int, last: int) -> bool:
        """Whether one of the lines ``first`` to ``last`` changed, or something beside them was deleted."""
        return (
            self.whole
            or any(start <= last and first <= end for start, end in self.added)
            or any(first - 1 <= line <= last for line in self.removed_after)
        )

    def removed_between(self, first: int, last: int) -> bool:
        """Whether something was deleted between two lines."""
        return any(first <= line < last for line in self.removed_after)


@record(frozen=True, slots=True)
class Changes:
    """The changed files by real path, and whether a finding is about them."""

    files: Mapping[str, Changed]

    def concern(self, finding: Finding) -> bool:
        """Whether a line of the finding changed, a line related to it, or lines between these were deleted.

        The last is what makes an unchanged clip wrong: the ``unscale_`` above it is gone.
        """
        if finding.location is None:
            return True
        places = [finding.location, *(related.location for related in finding.related)]
        lines: dict[str, list[int]] = {}
        for place in places:
            changed = self.of(place)
            if changed is not None:
                if changed.touches(place.line, place.end_line or place.line):
                    return True
                lines.setdefault(os.path.realpath(place.path), []).append(place.line)
        return any(self.files[path].removed_between(min(own), max(own)) for path, own in lines.items())

    def of(self, place: Location) -> Changed | None:
        """What changed in the file of a place; None for nothing."""
        return self.files.get(os.path.realpath(place.path))


def since(ref: str, paths: Sequence[Path]) -> Changes:
    """What changed in the checkouts of ``paths`` since they parted from the commit ``ref``.

    Lines that were edited and not committed count, and so do files that git does not know yet. Raises SettingsError
    where there is no git, no checkout, or no such commit.
    """
    files: dict[str, Changed] = {}
    for top in dict.fromkeys(_top(path, ref) for path in paths):
        base = _base(top, ref)
        options = ("--unified=0", "--find-renames", "--no-color", "--no-ext-diff", "--no-textconv", "--text")
        prefixes = ("--src-prefix=a/", "--dst-prefix=b/", "--no-relative", "--ignore-submodules")
        found = _parse(_git(top, "diff", *options, *prefixes, base, "--"))
        files.update((os.path.realpath(os.path.join(top, name)), changed) for name, changed in found)
        unknown = _git(top, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
        names = (os.fsdecode(name) for name in unknown if name)
        files.update((os.path.realpath(os.path.join(top, name)), Changed(whole=True)) for name in names)
    return Changes(files)


def _parse(diff: bytes) -> Iterator[tuple[str, Changed]]:
    """(path from the top, what changed) of each file in a diff without context lines."""
    current: Changed | None = None
    left = 0  # lines of a hunk still to come: one of these may look like a header
    for line in diff.split(b"\n"):
        if left and line[:1] in (b"+", b"-"):
            left -= 1
        elif line.startswith(b"+++ "):
            name = _name(line[4:])
            current = Changed(whole=name.endswith(_NOTEBOOK)) if name else None
            if current is not None:
                yield name, current
        elif line.startswith(b"@@ "):
            left = _lines_of(line)
            if current is not None:
                _note(line, current)


def _lines_of(header: bytes) -> int:
    counts = re.findall(rb"[-+]\d+(?:,(\d+))?", header.split(b"@@")[1])
    return sum(int(count) if count else 1 for count in counts)


def _note(header: bytes, changed: Changed) -> None:
    match = _HUNK.match(header)
    if match is None:
        return
    start, count = int(match.group(1)), int(match.group(2) or 1)
    if count:
        changed.added.append((start, start + count - 1))
    else:
        changed.removed_after.append(start)


def _name(word: bytes) -> str:
    """The path in a ``+++`` line, unquoted; empty for a file that is gone."""
    word = word.rstrip(b"\r").removesuffix(b"\t")
    if word.startswith(b'"') and word.endswith(b'"'):
        word = _ESCAPE.sub(lambda match: _unescaped(match.group(1)), word[1:-1])
    return "" if word == b"/dev/null" else os.fsdecode(word.removeprefix(b"b/"))


def _unescaped(code: bytes) -> bytes:
    return bytes([int(code, 8) & 255]) if len(code) == 3 else _ESCAPED.get(code, code)


def _top(path: Path, ref: str) -> str:
    folder = path if path.is_dir() else path.parent
    try:
        return os.fsdecode(_git(str(folder), "rev-parse", "--show-toplevel").removesuffix(b"\n"))
    except _Refused as error:
        raise SettingsError(f"--diff {ref}: {folder} is in no checkout of git ({error})") from None


def _base(top: str, ref: str) -> str:
    """The commit in which the checkout parted from ``ref``: what ``ref`` gained since then is not its own change."""
    try:
        commit = _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}").decode().strip()
    except _Refused:
        raise SettingsError(f"--diff {ref}: git knows no such commit in {top}") from None
    try:
        return _git(top, "merge-base", commit, "HEAD").decode().strip() or commit
    except _Refused:
        return commit  # no history in common, as in a shallow clone


class _Refused(SettingsError):
    """git ended with an error; the message is its first line."""


def _git(folder: str, *words: str) -> bytes:
    """What git prints; it runs none of the checkout's own programs."""
    import subprocess

    command = ["git", "-C", folder, "-c", "core.fsmonitor=false", "-c", "core.quotePath=true", *words]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise SettingsError("--diff needs git, which is not installed here") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsError(f"--diff: git did not answer: {error}") from None
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise _Refused(lines[0].removeprefix("fatal: "))
    return done.stdout


def concerned(findings: Iterable[Finding], changes: Changes | None) -> list[Finding]:
    """The findings that changed lines concern; all of them when ``changes`` is None."""
    return [finding for finding in findings if changes is None or changes.concern(finding)]
