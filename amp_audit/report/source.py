"""Source lines of findings, notebooks included."""

from __future__ import annotations

import json
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from amp_audit.model import Location


@dataclass(slots=True)
class Sources:
    """Reads each file once. A file that is gone or cannot be read has no lines; nothing is raised.

    ``texts`` are sources that are no files, or not as they lie there.
    """

    root: Path
    texts: Mapping[str, str] = field(default_factory=dict)
    _lines: dict[tuple[str, int | None], list[str]] = field(default_factory=dict)

    def line(self, place: Location) -> str | None:
        """The code line at ``place`` without its line end; None when it cannot be read."""
        key = (place.path, place.cell)
        if key not in self._lines:
            text = self.texts.get(place.path)
            self._lines[key] = _read(self.root / place.path, place.cell) if text is None else _lines(text, place.cell)
        lines = self._lines[key]
        return lines[place.line - 1] if 0 < place.line <= len(lines) else None


def _read(path: Path, cell: int | None) -> list[str]:
    try:
        with tokenize.open(path) as file:
            return _lines(file.read(), cell)
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []


def _lines(text: str, cell: int | None) -> list[str]:
    if cell is not None:
        try:
            source = json.loads(text)["cells"][cell]["source"]
            text = source if isinstance(source, str) else "".join(source)
        except (ValueError, LookupError, TypeError, RecursionError):
            return []
    return re.split(r"\r\n|\r|\n", text)


def printable(text: str) -> str:
    """``text`` with tabs widened and control characters spelled out, so that no source line drives the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _spelled(char) for char in text.expandtabs(4))


def _spelled(char: str) -> str:
    return char if char == "\n" else char.encode("unicode_escape").decode("ascii")
