"""A source -> facts of one module (``static.ir``), and where in it these stand.

Python's own parser goes first; what it refuses is given to libcst, which knows the syntax of newer Pythons. Positions
are not kept: ``positions`` reads a source again, for the few modules that have findings.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property

from amp_audit.static.source import ir
from amp_audit.static.source.abstract import Lowering, Spot
from amp_audit.static.source.deep import with_deep_stack
from amp_audit.static.source.position import LoweringError, Position

_OWN_TEXT_POSITIONS = sys.version_info >= (3, 12)
"""Older Pythons do not know where in an f-string an expression stands."""

_NEWLINE = re.compile(r"\r\n|\r|\n")
_GAP = r"(?:\s|\\\r?\n)+"
_DEFINITION = re.compile(rf"(?:async{_GAP})?(?:def|class){_GAP}\w+")
_CLOSING = re.compile(r"(?:(?:[\s,]|\\\r?\n|#[^\r\n]*)*\))*")


def lower(path: str, source: str) -> ir.Module:
    """The facts of one module.

    Raises LoweringError for what Python would not accept and for what is nested too deeply to be read.
    """
    return with_deep_stack(lambda: _lower(path, source))


def _lower(path: str, source: str) -> ir.Module:
    try:
        return Lowering().module(path, _parse(source))
    except (RecursionError, MemoryError):
        raise LoweringError("nested too deeply") from None
    except (SyntaxError, ValueError):
        from amp_audit.static.source import concrete

        return concrete.lower(path, source)


def _parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "\d" is the program's business, not ours
        return ast.parse(source)


def positions(source: str) -> Callable[[int], Position]:
    """A function from the ordinals of ``lower(..., source)`` to positions.

    A compound statement's position is its header (``with ...``, ``def name``), without decorators and body.
    Raises LoweringError as ``lower`` does.
    """
    return with_deep_stack(lambda: _positions(source))


def _positions(source: str) -> Callable[[int], Position]:
    walk = Lowering()
    try:
        walk.module("", _parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        from amp_audit.static.source import concrete

        return concrete.positions(source)
    return _Places(source, walk).of


class _Places:
    """Nodes of Python's tree -> positions: it counts columns in bytes of UTF-8, and has no place for a header."""

    def __init__(self, source: str, walk: Lowering) -> None:
        self.source = source
        self.nodes: list[Spot] = walk.nodes
        self.texts = [] if _OWN_TEXT_POSITIONS else walk.texts
        self.starts = [0, *(match.end() for match in _NEWLINE.finditer(source))]

    def of(self, at: int) -> Position:
        if any(first < at < end for first, end in self.texts):
            return self._concrete(at)
        spot = self.nodes[at]
        first, last = spot if isinstance(spot, tuple) else (spot, spot)
        start = self._offset(first.lineno, first.col_offset)  # type: ignore[attr-defined]
        end = self._header_end(last, start)
        return Position(*self._place(start), *self._place(end))

    @cached_property
    def _concrete(self) -> Callable[[int], Position]:
        from amp_audit.static.source import concrete

        return concrete.positions(self.source)

    def _offset(self, line: int, column: int) -> int:
        """An index into the source, from a line and a column in bytes."""
        start = self.starts[line - 1]
        text = self.source[start : start + column]
        return start + (column if text.isascii() else len(text.encode()[:column].decode("utf-8", "ignore")))

    def _place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def _end(self, node: ast.AST) -> int:
        return self._offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _header_end(self, node: ast.AST, start: int) -> int:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            match = _DEFINITION.match(self.source, start)
            return match.end() if match is not None else self._end(node)
        last = _last_of_header(node)
        if last is None:
            return self._end(node)
        closing = _CLOSING.match(self.source, self._end(last))
        return closing.end() if closing is not None else self._end(last)


def _last_of_header(node: ast.AST) -> ast.AST | None:
    """The last expression of a compound statement's header; None for other nodes."""
    if isinstance(node, (ast.If, ast.While)):
        return node.test
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return node.iter
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return node.items[-1].optional_vars or node.items[-1].context_expr
    return node.subject if isinstance(node, ast.Match) else None
