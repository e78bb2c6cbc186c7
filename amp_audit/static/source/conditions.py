"""What is known where a condition holds, so that what two exclusive conditions do is not taken to meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, parts, spelled_condition

Facts: TypeAlias = frozenset[tuple[str, bool]]
"""Conditions as they are spelled, and whether they hold."""
NO_FACTS: Facts = frozenset()
_DEPTH = 3
_ENDS = (ir.Return, ir.Raise, ir.Continue, ir.Break)


def facts_of(test: ir.Expr, truth: bool, meaning: Callable[[str], ir.Expr | None], depth: int = 0) -> Facts:
    """What is known where ``test`` is ``truth``; ``meaning`` gives the condition that a name was assigned."""
    if isinstance(test, ir.Unary) and test.op == "not":
        return facts_of(test.operand, not truth, meaning, depth)
    if isinstance(test, ir.BoolOp):
        if (test.op == "and") is not truth:
            return NO_FACTS
        return facts_of(test.left, truth, meaning, depth) | facts_of(test.right, truth, meaning, depth)
    text, negated = spelled_condition(test)
    if not text:
        return NO_FACTS
    own = frozenset({(text.removeprefix("self."), truth is not negated)})  # a flag, as it was given and as it is kept
    meant = meaning(text) if depth < _DEPTH and isinstance(test, (ir.Name, ir.Attr)) else None
    return own if meant is None else own | facts_of(meant, truth, meaning, depth + 1)


def exclude(one: Facts, two: Facts) -> bool:
    """Whether two sets of facts cannot both be: one denies what the other says, or both set one thing to two values."""
    if not one or not two:
        return False
    if any((text, not truth) in two for text, truth in one):
        return True
    values = dict(text.split(" == ", 1) for text, truth in one if truth and " == " in text)
    others = [text.split(" == ", 1) for text, truth in two if truth and " == " in text]
    return any(subject in values and values[subject] != value and _is_literal(value) for subject, value in others)


def _is_literal(value: str) -> bool:
    return value[:1] in "'\"-0123456789"


def facts_at(body: Iterable[ir.Stmt], at: int) -> Facts:
    """What is known by the conditions of ``body`` around the expression of this ordinal, and by those before it whose
    arm ends the function or the round.
    """
    known = NO_FACTS
    for node in body:
        if _holds(node, at):
            for number, inner in enumerate(bodies(node)):
                if any(_holds(each, at) for each in inner):
                    told = _told(node.test, number == 0) if isinstance(node, ir.If) else NO_FACTS
                    return known | told | facts_at(inner, at)
            return known
        if isinstance(node, ir.If) and node.body and isinstance(node.body[-1], _ENDS):
            known |= _told(node.test, False)
    return NO_FACTS


def _told(test: ir.Expr, truth: bool) -> Facts:
    return facts_of(test, truth, lambda _: None)


def _holds(node: ir.Stmt, at: int) -> bool:
    return any(part.at == at for part in parts([node]))
