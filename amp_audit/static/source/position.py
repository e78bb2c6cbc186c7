"""Where something stands in a source, and why one could not be lowered. Apart: naming these loads no parser."""

from __future__ import annotations

from amp_audit.records import record


class LoweringError(Exception):
    """A source that is not valid Python, or nested too deeply. ``line`` and ``column`` count from 1."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


@record(frozen=True, slots=True)
class Position:
    """A range of a source: lines and columns from 1, the end exclusive, columns in code points."""

    line: int
    column: int
    end_line: int
    end_column: int
