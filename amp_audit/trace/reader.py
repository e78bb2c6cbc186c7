"""Read a trace folder back. Whatever a killed program left behind is read as far as it goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amp_audit.trace.schema import VERSION, End, Header, Rows, StepRecord, Trace, from_json


class TraceError(ValueError):
    """The folder is no trace, or not one that this version can read. The message says which and why."""


def read(folder: Path | str) -> list[Trace]:
    """The traces of all processes in ``folder``, by rank.

    Records of one step that were written in parts are put together. A torn last line is ignored (``Trace.torn``).
    Raises ``TraceError`` when there is nothing to read or a file is not a trace.
    """
    root = Path(folder)
    if not root.is_dir():
        raise TraceError(f"{root}: no such folder" if not root.exists() else f"{root}: not a trace folder")
    files = sorted(root.glob("rank-*.jsonl"))
    if not files:
        raise TraceError(f"{root}: not a trace folder (it holds no rank-N.jsonl)")
    traces = [trace for trace in map(_read_file, files) if trace is not None]
    return sorted(traces, key=lambda trace: trace.header.rank)


def problems(folder: Path | str) -> list[str]:
    """What processes that could not be audited at all said about it."""
    return [file.read_text("utf-8", "replace").strip() for file in sorted(Path(folder).glob("unattached-*.txt"))]


def _read_file(file: Path) -> Trace | None:
    """The trace in one file; None when its process died before the header was whole."""
    trace: Trace | None = None
    rows = Rows()
    torn = False
    for number, line in _lines(file):
        if torn:
            raise TraceError(f"{file}:{number - 1}: not a trace record")
        try:
            data = json.loads(line)
            _check_version(file, data)
            record = from_json(data, rows)
        except TraceError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            torn = True  # forgiven when it is the last line
            continue
        if isinstance(record, Header):
            trace = Trace(record, [])
        elif trace is None:
            raise TraceError(f"{file}:{number}: a trace begins with its header")
        elif isinstance(record, Rows):
            rows.ops.extend(record.ops)
            rows.casts.extend(record.casts)
        else:
            _add(trace, record)
    if trace is not None:
        trace.torn = torn
    return trace


def _check_version(file: Path, data: dict[str, Any]) -> None:
    """Raises TraceError for the header of a trace of another version, whatever else that holds."""
    if data["type"] == "header" and data["schema"] != VERSION:
        writer = f"amp-audit {data.get('amp_audit')} as trace version {data['schema']}"
        raise TraceError(f"{file}: written by {writer}; this amp-audit reads version {VERSION}: record the run again")


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    with file.open(encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield number, line


def _add(trace: Trace, record: StepRecord | End) -> None:
    if isinstance(record, End):
        trace.end = record
    elif trace.steps and trace.steps[-1].step == record.step:
        _join(trace.steps[-1], record)
    else:
        trace.steps.append(record)


def _join(whole: StepRecord, part: StepRecord) -> None:
    """Add a later part of a step (a second optimizer, what followed the last step) to the first."""
    whole.recorded |= part.recorded
    whole.deep |= part.deep
    whole.open &= part.open
    if part.seconds is not None:
        whole.seconds = (whole.seconds or 0.0) + part.seconds
    for name in ("ops", "casts", "events", "numbers", "notes"):
        getattr(whole, name).extend(getattr(part, name))
    whole.lines = {
        path: [*whole.lines.get(path, ()), *part.lines.get(path, ())] for path in {**whole.lines, **part.lines}
    }
