"""What is known where a condition holds, so that what two exclusive conditions do is not taken to meet."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, dotted_text, expressions, parts, spelled_condition, walk

Facts: TypeAlias = frozenset[tuple[str, bool]]
"""Conditions as they are spelled, and whether they hold."""
NO_FACTS: Facts = frozenset()
_DEPTH = 3
_ALWAYS = sys.maxsize
_LITERAL = re.compile(r"b?['\"]|\d|(None|True|False)$")
_NO_BINDINGS: Mapping[str, int] = MappingProxyType({})
_ENDS = (ir.Return, ir.Raise, ir.Continue, ir.Break)


def facts_of(
    test: ir.Expr,
    truth: bool,
    meaning: Callable[[str], ir.Expr | None],
    bound: Mapping[str, int] = _NO_BINDINGS,
    depth: int = 0,
) -> Facts:
    """What is known where ``test`` is ``truth``; ``meaning`` gives the condition that a name was assigned, ``bound``
    where names are bound for the last time (``last_bindings``): a test before that tells nothing of them.
    """
    if isinstance(test, ir.Unary) and test.op == "not":
        return facts_of(test.operand, not truth, meaning, bound, depth)
    if isinstance(test, ir.BoolOp):
        if (test.op == "and") is not truth:
            return NO_FACTS
        sides = (facts_of(side, truth, meaning, bound, depth) for side in (test.left, test.right))
        return NO_FACTS.union(*sides)
    text, negated = spelled_condition(test)
    if not text:
        return NO_FACTS
    changes = bool(bound) and any(bound.get(dotted_text(part), 0) > test.at for part in walk(test))
    # a flag, as it was given and as it is kept
    own = NO_FACTS if changes else frozenset({(text.removeprefix("self."), truth is not negated)})
    meant = meaning(text) if depth < _DEPTH and isinstance(test, (ir.Name, ir.Attr)) else None
    return own if meant is None else own | facts_of(meant, truth, meaning, bound, depth + 1)


def last_bindings(body: Iterable[ir.Stmt]) -> Mapping[str, int]:
    """The ordinals at which what a function binds, names and attributes, is bound for the last time: after all if
    a loop does so.
    """
    found: dict[str, int] = {}
    stack = [(node, False) for node in body]
    while stack:
        node, repeated = stack.pop()
        repeated = repeated or isinstance(node, (ir.For, ir.While))
        for text, at in _bindings(node):
            found[text] = max(found.get(text, 0), _ALWAYS if repeated else at)
        stack += [(inner, repeated) for block in bodies(node) for inner in block]
    return found


def _bindings(node: ir.Stmt) -> Iterator[tuple[str, int]]:
    targets: list[ir.Expr] = []
    if isinstance(node, ir.Assign):
        targets += node.targets
    elif isinstance(node, (ir.Augment, ir.For)):
        targets.append(node.target)
    elif isinstance(node, ir.With):
        targets += [target for _, target in node.items if target is not None]
    elif isinstance(node, ir.Match):
        yield from ((name, node.at) for case in node.cases for name in case.names)
    for expression in expressions(node):
        targets += [part.target for part in walk(expression) if isinstance(part, ir.Walrus)]
    while targets:
        target = targets.pop()
        if isinstance(target, ir.Sequence):
            targets += target.items
        elif isinstance(target, ir.Starred):
            targets.append(target.value)
        elif isinstance(target, (ir.Name, ir.Attr)):
            yield dotted_text(target), max(target.at, node.at)


def exclude(one: Facts, two: Facts) -> bool:
    """Whether two sets of facts cannot both be: one denies what the other says, or both set one thing to two values."""
    if not one or not two:
        return False
    if any((text, not truth) in two for text, truth in one):
        return True
    others = list(_values(two))
    return any(subject == other and value != given for subject, value in _values(one) for other, given in others)


def _values(facts: Facts) -> Iterator[tuple[str, object]]:
    """What is known to be equal to a literal, and the literal's value."""
    for text, truth in facts:
        subject, equal, value = text.partition(" == ")
        if truth and equal and _LITERAL.match(value):
            try:
                yield subject, ast.literal_eval(value)
            except (ValueError, SyntaxError):  # the second half of a text that has the sign in it
                continue


def facts_at(body: Iterable[ir.Stmt], at: int) -> Facts:
    """What is known by the conditions of ``body`` around the expression of this ordinal, and by those before it whose
    arm ends the function or the round.
    """
    whole = tuple(body)
    return _facts_at(whole, at, last_bindings(whole))


def _facts_at(body: Iterable[ir.Stmt], at: int, bound: Mapping[str, int]) -> Facts:
    known = NO_FACTS
    for node in body:
        if _holds(node, at):
            for number, inner in enumerate(bodies(node)):
                if any(_holds(each, at) for each in inner):
                    told = _told(node.test, number == 0, bound) if isinstance(node, ir.If) else NO_FACTS
                    return known | told | _facts_at(inner, at, bound)
            return known
        if isinstance(node, ir.If) and node.body and isinstance(node.body[-1], _ENDS):
            known |= _told(node.test, False, bound)
    return NO_FACTS


def _told(test: ir.Expr, truth: bool, bound: Mapping[str, int]) -> Facts:
    return facts_of(test, truth, lambda _: None, bound)


def _holds(node: ir.Stmt, at: int) -> bool:
    return any(part.at == at for part in parts([node]))
