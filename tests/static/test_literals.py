"""Numbers that a program spells out, computed by Python itself for comparison."""

from __future__ import annotations

import math

import pytest

from amp_audit.static.source import ir
from amp_audit.static.source.literals import number, truth
from amp_audit.static.source.lowering import lower


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


@pytest.mark.parametrize(
    "code", ["0", "''", "not 0", "False and x", "x and False", "True or x", "not (x or 1)", "1 and x", "x", "0 or x"]
)
def test_truths_hold_whatever_the_rest_is(code: str) -> None:
    (node,) = lower("train.py", code + "\n").body
    assert isinstance(node, ir.Evaluate)
    both = {bool(eval(code, {"x": x})) for x in (0, 1)}
    assert truth(node.value) is (both.pop() if len(both) == 1 else None)


@pytest.mark.parametrize(
    ("test", "left"), [("0", "b"), ("False and x", "b"), ("not 0", "a"), ("x", "ab"), ("1 or x", "a")]
)
def test_an_arm_that_never_runs_is_not_code(test: str, left: str) -> None:
    for source in (f"if {test}:\n    a()\nelse:\n    b()\n", f"if {test}:\n    a()\nelif y:\n    b()\n"):
        (node,) = lower("train.py", source).body
        assert isinstance(node, ir.If)
        assert (bool(node.body), bool(node.orelse)) == ("a" in left, "b" in left)
