"""Positions by token counts, held against libcst's own position provider."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import libcst as cst
import pytest
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from amp_audit.static.source.position import Position
from amp_audit.static.source.spans import ranges

STDLIB = Path(sysconfig.get_paths()["stdlib"])
SOURCES = [
    *(path.read_text("utf-8") for path in (STDLIB / "argparse.py", STDLIB / "dataclasses.py", STDLIB / "typing.py")),
    "x = 1",
    "",
    "# only\r\n\r\nif x: y; z\r\nelse:\r\n\t'''a\r\nb'''\r\n",
    "@d\n\nclass A:\n  def f(self, é='ü'): return é\n  # c\n\n",
    "with (a as b,\n      c): pass\nmatch x:\n  case [1, *_] if y: pass\n",
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: repr(source[:12]))
def test_every_node_stands_where_libcst_says(source: str) -> None:
    tree = cst.parse_module(source)
    expected = MetadataWrapper(tree, unsafe_skip_copy=True).resolve(PositionProvider)
    find = ranges(tree)
    assert len(expected) > 0
    for node, place in expected.items():
        assert isinstance(place, CodeRange)
        if isinstance(node, (cst.Module, cst.SimpleStatementLine, cst.Newline, cst.TrailingWhitespace)):
            continue  # what ends with the newline that a last line lacks: libcst places it all the same
        found = find(node)
        assert found == Position(place.start.line, place.start.column + 1, place.end.line, place.end.column + 1), node
