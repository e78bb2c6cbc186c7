"""Numbers that a program spells out, computed by Python itself for comparison."""

from __future__ import annotations

import math

import pytest

from amp_audit.static import ir
from amp_audit.static.literals import number
from amp_audit.static.lowering import lower


def value(code: str) -> float | None:
    (node,) = lower("train.py", code + "\n").body
    assert isinstance(node, ir.Evaluate)
    return number(node.value)


@pytest.mark.parametrize(
    "code",
    ["0", "-1.5", "+2", "2.0 ** 16", "2**16 - 1", "1 / 3", "-(2.0 ** -14)", "float('inf')", "-float('inf')", "1e400"],
)
def test_numbers(code: str) -> None:
    assert value(code) == eval(code)


def test_integers_beyond_floats() -> None:
    assert value("1" + "0" * 4000) == math.inf and value("-1" + "0" * 4000) == -math.inf


@pytest.mark.parametrize(
    "code", ["x", "True", "'1'", "1 / 0", "10.0 ** 10 ** 10", "2 % 3", "float('1')", "f(1)", "~1", "-x"]
)
def test_all_else(code: str) -> None:
    assert value(code) is None
