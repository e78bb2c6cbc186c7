"""Repairs -> new contents of files. All that is not repaired stays as it was, to the byte: line ends, encoding, BOM,
and in notebooks the layout of the JSON."""

from __future__ import annotations

import json
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import accumulate

from amp_audit.model import Edit, Fix
from amp_audit.static.source.jsontext import DECODER, items_of, members, skip_space
from amp_audit.static.source.lowering import lower
from amp_audit.static.source.position import LoweringError
from amp_audit.static.source.sources import Unreadable, decode

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_NEWLINE = re.compile(r"\r\n|\r|\n")


def compatible(fixes: Iterable[Fix]) -> list[Fix]:
    """Those of several repairs that do not touch the same text: the first of them; one given twice counts once."""
    chosen: dict[Fix, None] = {}
    taken: list[Edit] = []
    for each in fixes:
        if each not in chosen and not any(_meet(edit, other) for edit in each.edits for other in taken):
            chosen[each] = None
            taken += each.edits
    return list(chosen)


def _meet(one: Edit, other: Edit) -> bool:
    if (one.path, one.cell) != (other.path, other.cell):
        return False
    begin, end = (one.line, one.column), (one.end_line, one.end_column)
    other_begin, other_end = (other.line, other.column), (other.end_line, other.end_column)
    return begin <= other_end and other_begin <= end


def rewrite(path: str, data: bytes, fixes: Sequence[Fix]) -> tuple[bytes, list[Fix]]:
    """The contents of a file with repairs made, and which of them: those after which it still is Python."""
    whole = _rewritten(path, data, [edit for each in fixes for edit in each.edits])
    if whole is not None:
        return whole, list(fixes)
    made: list[Fix] = []
    best = data
    for each in fixes:
        attempt = _rewritten(path, data, [edit for one in (*made, each) for edit in one.edits])
        if attempt is not None:
            made.append(each)
            best = attempt
    return best, made


def _rewritten(path: str, data: bytes, edits: Sequence[Edit]) -> bytes | None:
    """None where the outcome is no Python, or a line is not what was read (a cell that IPython reads differently)."""
    try:
        new = _notebook(path, data, edits) if path.endswith(".ipynb") else _module(data, edits)
        return new if new is not None and _parses(path, data, new) else None
    except (UnicodeError, Unreadable):
        return None


def _parses(path: str, before: bytes, after: bytes) -> bool:
    try:
        source = decode(path, after)
        lower(path, source.text)
    except (LoweringError, Unreadable):
        return False
    return len(source.broken) <= len(decode(path, before).broken)


# Modules


def _module(data: bytes, edits: Sequence[Edit]) -> bytes:
    encoding = tokenize.detect_encoding(BytesIO(data).readline)[0]
    return _edited(data.decode(encoding), edits).encode(encoding)


def _edited(text: str, edits: Iterable[Edit]) -> str:
    """A text with edits made; new lines end as the others do."""
    lines = [match.group() for match in _LINE.finditer(text)]
    starts = [0, *accumulate(map(len, lines))]
    ending = _NEWLINE.search(text)
    newline = ending.group() if ending is not None else "\n"

    def offset(line: int, column: int) -> int:
        return min(starts[min(line, len(starts)) - 1] + column - 1, len(text))

    for edit in sorted(edits, key=lambda e: (e.line, e.column, e.end_line, e.end_column), reverse=True):
        begin, end = offset(edit.line, edit.column), offset(edit.end_line, edit.end_column)
        text = text[:begin] + edit.text.replace("\n", newline) + text[end:]
    return text


# Notebooks


def _notebook(path: str, data: bytes, edits: Sequence[Edit]) -> bytes | None:
    """Rewrites the sources of the cells concerned, in the JSON as it stands."""
    bom = data.startswith(b"\xef\xbb\xbf")
    text = data.decode("utf-8-sig")
    read = decode(path, data)
    lines = _NEWLINE.split(read.text)
    cells: dict[int, list[Edit]] = {}
    for edit in edits:
        cells.setdefault(edit.cell or 0, []).append(edit)
    spans = list(_cell_sources(text))
    for index in sorted(cells, reverse=True):
        begin, end = spans[index]
        value = json.loads(text[begin:end])
        source = "".join(value) if isinstance(value, list) else value
        first = read.starts[read.cells.index(index)]
        if not _is_as_read(source, lines[first - 1 :], cells[index]):
            return None
        text = text[:begin] + _written(_edited(source, cells[index]), value, text[begin:end]) + text[end:]
    return (b"\xef\xbb\xbf" if bom else b"") + text.encode("utf-8")


def _is_as_read(source: str, read: Sequence[str], edits: Iterable[Edit]) -> bool:
    """Whether the lines that edits touch are in the cell what they were when it was read."""
    own = _NEWLINE.split(source)
    touched = {line for edit in edits for line in range(edit.line, edit.end_line + 1) if line <= len(own)}
    return all(own[line - 1] == read[line - 1] for line in touched)


def _written(source: str, value: object, before: str) -> str:
    """The JSON of a cell's source, laid out as it was ``before``: a string, or a list with one line an item."""
    ascii_only = before.isascii()
    if not isinstance(value, list):
        return json.dumps(source, ensure_ascii=ascii_only)
    items = [match.group() for match in _LINE.finditer(source) if match.group()]
    begins = list(items_of(before, 0))
    ends = [DECODER.raw_decode(before, begin)[1] for begin in begins]
    first = before[1 : begins[0]] if begins else ""
    last = before[ends[-1] : -1] if begins else ""
    between = before[ends[0] : begins[1]] if len(begins) > 1 else f",{first}" if first else ", "
    return f"[{first}{between.join(json.dumps(item, ensure_ascii=ascii_only) for item in items)}{last}]"


def _cell_sources(text: str) -> Iterator[tuple[int, int]]:
    """Where the sources of all cells stand in the JSON of a notebook, in order; (0, 0) for a cell without one."""
    top = dict(members(text, skip_space(text, 0)))
    sheets = items_of(text, top["worksheets"][0]) if "worksheets" in top else [skip_space(text, 0)]
    for sheet in sheets:
        for cell in items_of(text, dict(members(text, sheet))["cells"][0]):
            found = dict(members(text, cell))
            yield found.get("source") or found.get("input") or (0, 0)


def by_path(fixes: Iterable[Fix]) -> Mapping[str, list[Fix]]:
    """Repairs by the file they change; one that changes several files is left out."""
    found: dict[str, list[Fix]] = {}
    for each in fixes:
        paths = {edit.path for edit in each.edits}
        if len(paths) == 1:
            found.setdefault(paths.pop(), []).append(each)
    return found
