"""Write a trace as the program runs, so that whatever happens to it, what was seen is there."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from amp_audit.trace.schema import CastRow, Counts, End, Header, OpRow, Record, Rows, StepRecord, lean, to_json


class Writer:
    """Appends the records of one process to a file of its own in ``folder``.

    Every record goes out in one write, so a killed process leaves at most one torn line, the last. When writing fails
    (disk full, folder gone) that is said once, through ``complain``, and in the room of the record that did not fit by
    an end of the trace; nothing is written any more, and no method raises ``OSError``. A folder that cannot be written
    is replaced by a temporary one.
    """

    def __init__(self, folder: Path, complain: Callable[[str], None]) -> None:
        self.path: Path | None = None
        self._folder = folder
        self._complain = complain
        self._file: int | None = None
        self._failed = False
        self._whole = 0  # bytes of the records that are whole
        self._steps = 0
        self._new = Rows()
        self._ops = 0
        self._casts = 0

    def open(self, header: Header) -> None:
        """Create the file and write its header; once."""
        if self._file is None and not self._failed:
            self._file = self._create(header.rank)
            self._write(header)

    def define_op(self, row: OpRow) -> int:
        """Define a row, to be written before the next step; its number."""
        self._new.ops.append(row)
        self._ops += 1
        return self._ops - 1

    def define_cast(self, row: CastRow) -> int:
        self._new.casts.append(row)
        self._casts += 1
        return self._casts - 1

    def step(self, record: StepRecord, ops: Counts = (), casts: Counts = ()) -> None:
        """Write a step. ``ops`` and ``casts`` are counts of defined rows (see ``schema``)."""
        if self._new.ops or self._new.casts:
            self._write(self._new)
            self._new = Rows()
        self._write(record, ops=ops, casts=casts)
        if not (record.open or self._failed):
            self._steps = max(self._steps, record.step)

    def end(self, end: End) -> None:
        """Write the last record and close."""
        self._write(end)
        self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._failed = True

    def _create(self, rank: int) -> int | None:
        try:
            return self._create_in(self._folder, rank)
        except OSError as error:
            reason = error.strerror or str(error)
        try:
            other = Path(tempfile.mkdtemp(prefix="amp-audit-"))
            file = self._create_in(other, rank)
        except OSError as error:
            self._fail(error)
            return None
        self._complain(f"cannot write the trace to {self._folder} ({reason}): it goes to {other}")
        return file

    def _create_in(self, folder: Path, rank: int) -> int:
        """``rank-N.jsonl``, or ``rank-N.K.jsonl`` when N is taken (by a process without a rank of its own)."""
        folder.mkdir(parents=True, exist_ok=True)
        attempt = 0
        while True:
            path = folder / (f"rank-{rank}.{attempt}.jsonl" if attempt else f"rank-{rank}.jsonl")
            try:
                file = os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644
                )
            except FileExistsError:
                attempt += 1
                continue
            self.path = path
            return file

    def _write(self, record: Record, **extra: Counts) -> None:
        if self._file is None or self._failed:
            return
        data = to_json(record)
        for name, counts in extra.items():
            if counts:
                data[name] = [*data.get(name, ()), *counts]
        try:
            self._append(data)
        except OSError as error:
            self._fail(error)

    def _append(self, data: Any) -> None:
        line = f"{encode(data)}\n".encode("utf-8", "backslashreplace")
        rest = memoryview(line)
        while rest and self._file is not None:
            rest = rest[os.write(self._file, rest) :]
        self._whole += len(line)

    def _fail(self, error: OSError) -> None:
        self._failed = True
        reason = error.strerror or str(error)
        self._complain(f"writing the trace failed ({reason}): it ends here, the program goes on")
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._whole)
                self._append(to_json(End("cut", None, self._steps, notes=[f"writing the trace failed: {reason}"])))


_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False, default=lean)


def encode(data: Any) -> str:
    """Strict JSON on one line; numbers that are not finite become null, records in it what ``lean`` leaves of them."""
    try:
        return _JSON.encode(data)
    except ValueError:
        return _JSON.encode(_finite(data))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return _finite(lean(value)) if is_dataclass(value) else value
