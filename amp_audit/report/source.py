"""Source lines of findings, notebooks included."""

from __future__ import annotations

import json
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

from amp_audit.model import Location


@dataclass(slots=True)
class Sources:
    """Reads each file once. A file that is gone or cannot be read has no lines; nothing is raised."""

    root: Path
    _lines: dict[tuple[str, int | None], list[str]] = field(default_factory=dict)

    def line(self, place: Location) -> str | None:
        """The code line at ``place`` without its line end; None when it cannot be read."""
        key = (place.path, place.cell)
        if key not in self._lines:
            self._lines[key] = _read(self.root / place.path, place.cell)
        lines = self._lines[key]
        return lines[place.line - 1] if 0 < place.line <= len(lines) else None


def _read(path: Path, cell: int | None) -> list[str]:
    try:
        with tokenize.open(path) as file:
            text = file.read()
        if cell is not None:
            source = json.loads(text)["cells"][cell]["source"]
            text = source if isinstance(source, str) else "".join(source)
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError, LookupError, TypeError):
        return []
    return text.split("\n")


def printable(text: str) -> str:
    """``text`` with tabs widened and control characters spelled out, so that no source line drives the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _spelled(char) for char in text.expandtabs(4))


def _spelled(char: str) -> str:
    return char if char == "\n" else char.encode("unicode_escape").decode("ascii")
