"""Numbers and truths that a program spells out."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace

from amp_audit.static.source import ir


def number(expr: ir.Expr | None) -> float | None:
    """The number that an expression of literals is: ``2.0 ** 16``, ``-1``, ``float("inf")``; None for all else."""
    if isinstance(expr, ir.Const):
        return _of_literal(expr.value)
    if isinstance(expr, ir.Unary) and expr.op in ("-", "+"):
        inner = number(expr.operand)
        return inner if inner is None or expr.op == "+" else -inner
    if isinstance(expr, ir.Binary):
        left, right = number(expr.left), number(expr.right)
        return _computed(expr.op, left, right) if left is not None and right is not None else None
    if isinstance(expr, ir.Call) and isinstance(expr.func, ir.Name) and expr.func.id == "float" and len(expr.args) == 1:
        word = expr.args[0].value
        is_word = isinstance(word, ir.Const) and word.value in ("inf", "-inf", "nan")
        return float(str(word.value)) if is_word and isinstance(word, ir.Const) else None
    return None


def is_literally(expr: ir.Expr | None, value: bool) -> bool:
    """Whether an expression is the literal True, or False."""
    return isinstance(expr, ir.Const) and expr.value is value


def truth(expr: ir.Expr) -> bool | None:
    """Whether a test holds whatever the rest is: ``0``, ``not True``, ``False and a``; None for all else."""
    if isinstance(expr, ir.Const):
        return bool(expr.value)
    if isinstance(expr, ir.Unary) and expr.op == "not":
        inner = truth(expr.operand)
        return None if inner is None else not inner
    if isinstance(expr, ir.BoolOp):
        decides, sides = expr.op == "or", {truth(expr.left), truth(expr.right)}
        return decides if decides in sides else None if None in sides else not decides
    return None


def alive(node: ir.If) -> ir.If:
    """An ``if`` without the arm that its test never lets run: code that was put aside, as with ``if 0:``."""
    holds = truth(node.test)
    if holds is None:
        return node
    return replace(node, orelse=()) if holds else replace(node, body=())


def _of_literal(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _computed(op: str, left: float, right: float) -> float | None:
    try:
        return _ARITHMETIC[op](left, right) if op in _ARITHMETIC else None
    except (ArithmeticError, ValueError):
        return None


_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": math.pow,
}
