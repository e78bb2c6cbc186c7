"""The code cells of a notebook -> one source, whose places lead back to the cells."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from amp_audit.static.source.position import LoweringError
from amp_audit.static.source.sources import Source, Unreadable

_CELL_MAGIC = re.compile(r"\s*%%(\w+)")
_PYTHON_CELLS = frozenset({"time", "timeit", "capture", "prun", "python", "python3"})
_MAGIC_LINE = re.compile(r"([ \t]*)(?:[%!?].*|[\w.]+\?\??[ \t]*|(?:pip|conda|mamba|cd|ls)[ \t]+[^=(].*)")
_MAGIC_VALUE = re.compile(r"([ \t]*[\w.,\s]+=)[ \t]*[%!].*")
_MEASURED = re.compile(r"([ \t]*)%(?:time|timeit|prun)(?:[ \t]+-\w+(?:[ \t]+\d+)?)*[ \t]+(?P<code>[^-\s].*)")
_NEWLINE = re.compile(r"\r\n|\r|\n")

Line = tuple[str, int]
"""A line of code, and how many characters it has lost at its beginning."""


def read(path: str, data: bytes) -> Source:
    """The source in the bytes of a notebook. Raises Unreadable."""
    try:
        content = json.loads(data.decode("utf-8-sig"))
        cells = list(_cells(content))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise Unreadable(f"not a notebook: {error}") from None
    if not _is_python(content):
        return Source(path, "")
    lines: list[Line] = []
    starts: list[int] = []
    broken: list[Unreadable] = []
    for index, text in cells:
        starts.append(len(lines) + 1)
        try:
            lines += _python(text)
        except Unreadable as error:
            broken.append(Unreadable(str(error), error.line, error.column, index))
            lines += [("", 0)] * len(_lines(text))
    taken = {number: lost for number, (_, lost) in enumerate(lines, 1) if lost}
    indices = tuple(index for index, _ in cells)
    return Source(path, "\n".join(line for line, _ in lines) + "\n", tuple(starts), indices, tuple(broken), taken)


def _lines(text: str) -> list[str]:
    return _NEWLINE.split(text) or [""]


def _cells(content: Any) -> Iterator[tuple[int, str]]:
    """(index among all cells, source) of the code cells. Raises ValueError for what is no notebook."""
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    sheets = content.get("worksheets", [content])  # notebooks of format 3 have worksheets
    if not isinstance(sheets, list) or not all(
        isinstance(s, dict) and isinstance(s.get("cells"), list) for s in sheets
    ):
        raise ValueError("no list of cells")
    for index, cell in enumerate(cell for sheet in sheets for cell in sheet["cells"]):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source", cell.get("input", ""))
            yield index, "".join(source) if isinstance(source, list) else str(source)


def _is_python(content: Any) -> bool:
    metadata = content.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        part = metadata.get(key)
        if isinstance(part, dict) and isinstance(part.get(name), str):
            return bool(part[name].lower() in ("python", "ipython", "python3"))
    return True


def _python(text: str) -> list[Line]:
    """The Python of a cell: magics and shell lines replaced, the number of lines kept.

    Raises Unreadable where what is left is no Python either.
    """
    lines = _lines(text)
    if _parses(text):
        return [(line, 0) for line in lines]
    dedented = _dedented(_without_cell_magic(text, lines))
    measured = [_without_magic_before_code(line) for line in dedented]
    for tried in (measured, dedented):
        found = list(_without_magics(tried))
        if _parses("\n".join(line for line, _ in found)):
            return found
    from amp_audit.static.source.lowering import lower

    try:
        lower("", "\n".join(line for line, _ in found))
    except LoweringError as error:
        lost = found[min(error.line, len(found)) - 1][1]
        raise Unreadable(str(error), error.line, error.column + lost) from None
    return found  # the syntax of another Python


def _without_cell_magic(text: str, lines: Sequence[str]) -> list[str]:
    magic = _CELL_MAGIC.match(text)
    if magic is None:
        return list(lines)
    first = next(number for number, line in enumerate(lines) if line.strip())
    kept = lines[first + 1 :] if magic.group(1) in _PYTHON_CELLS else [""] * (len(lines) - first - 1)
    return [*[""] * (first + 1), *kept]


def _dedented(lines: Sequence[str]) -> list[Line]:
    """As IPython does: the indentation of the first line is taken from all."""
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]
    return [(line.removeprefix(indent), len(indent) if line.startswith(indent) else 0) for line in lines]


def _without_magic_before_code(line: Line) -> Line:
    """``%time loss.backward()`` is code that runs."""
    text, lost = line
    match = _MEASURED.fullmatch(text)
    if match is None:
        return line
    indent = match.group(1)
    return f"{indent}{match['code']}", lost + match.start("code") - len(indent)


def _without_magics(lines: Sequence[Line]) -> Iterator[Line]:
    continued = False
    for text, lost in lines:
        if continued:
            continued = text.endswith("\\")
            yield "", 0
            continue
        statement, value = _MAGIC_LINE.fullmatch(text), _MAGIC_VALUE.fullmatch(text)
        if statement is None and value is None:
            yield text, lost
            continue
        continued = text.endswith("\\")
        yield (
            (f"{statement.group(1)}pass" if statement is not None else f"{value.group(1)} None" if value else text),
            lost,
        )


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
