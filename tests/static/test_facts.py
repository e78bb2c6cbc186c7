"""What conditions tell, and which exclude one another."""

from __future__ import annotations

import pytest

from amp_audit.static.source import ir
from amp_audit.static.source.conditions import NO_FACTS, exclude, facts_at, facts_of, last_bindings
from amp_audit.static.source.lowering import lower
from amp_audit.static.source.traverse import parts


def condition(text: str) -> ir.Expr:
    statement = lower("m.py", f"x = {text}\n").body[0]
    assert isinstance(statement, ir.Assign)
    return statement.value


@pytest.mark.parametrize(
    ("one", "two", "apart"),
    [
        ("a.amp", "not a.amp", True),
        ("a.amp", "a.amp", False),
        ("a.amp and b", "c and not b", True),
        ("a.amp or b", "not b", False),  # the first may hold by the other half
        ("not (a.amp or b)", "b", True),
        ("mode == 'fp16'", "mode == 'amp'", True),
        ("mode == 'fp16'", "mode != 'fp16'", True),
        ("mode == 'fp16'", "mode != 'amp'", False),
        ("mode == first", "mode == second", False),  # both may name one value
        ("mode == default", "mode == 'amp'", False),  # which may be the default
        ("mode == 'amp'", "mode == 1", True),
        ("level == 1", "level == 1.0", False),  # one value, spelled twice
        ("level == 1", "level == 2", True),
        ("mode is None", "mode == 'amp'", True),
        ("mode == 'a == 1'", "mode == 'a == 2'", True),
        ("f(x)", "not f(x)", False),  # two calls, two answers
    ],
)
def test_which_conditions_exclude_one_another(one: str, two: str, apart: bool) -> None:
    facts = [facts_of(condition(text), True, lambda _: None) for text in (one, two)]
    assert exclude(*facts) is apart
    assert exclude(*reversed(facts)) is apart


def test_a_name_means_the_condition_it_was_assigned() -> None:
    meaning = {"self.amp": condition("cfg.amp and not cfg.half")}
    assert exclude(facts_of(condition("self.amp"), True, meaning.get), frozenset({("cfg.half", True)}))
    assert not exclude(facts_of(condition("self.amp"), False, meaning.get), frozenset({("cfg.half", True)}))


def test_a_name_that_means_itself() -> None:
    assert facts_of(condition("x"), True, {"x": condition("x or y")}.get) == {("x", True)}


SOURCE = """
if fast:
    for x in y:
        if slow:
            continue
        here(x)
    first()
else:
    second()
third()
"""


@pytest.mark.parametrize(
    ("called", "known"),
    [
        ("here", {("fast", True), ("slow", False)}),
        ("first", {("fast", True)}),
        ("second", {("fast", False)}),
        ("third", set()),
    ],
)
def test_what_is_known_at_a_place(called: str, known: set[tuple[str, bool]]) -> None:
    body = lower("m.py", SOURCE).body
    at = next(part.at for part in parts(body) if isinstance(part, ir.Name) and part.id == called)
    assert facts_at(body, at) == known
    assert facts_at(body, 10_000) == NO_FACTS


@pytest.mark.parametrize(
    ("before", "after", "known"),
    [
        ("pass", "pass", {("mode == 1", True)}),
        ("mode = given.lower()", "pass", {("mode == 1", True)}),
        ("pass", "mode = 2", set()),
        ("pass", "first, *mode = pair", set()),
        ("pass", "(mode := 2)", set()),
        ("pass", "mode.kind = 2", {("mode == 1", True)}),
        ("for mode in (1, 2): pass", "pass", set()),
        ("while mode: mode += 1", "pass", set()),
    ],
)
def test_a_test_tells_nothing_of_what_is_bound_after_it(before: str, after: str, known: set[tuple[str, bool]]) -> None:
    body = lower("m.py", f"{before}\nif mode == 1:\n    here()\n    {after}\n").body
    at = next(part.at for part in parts(body) if isinstance(part, ir.Name) and part.id == "here")
    assert facts_at(body, at) == known
    test = next(node.test for node in body if isinstance(node, ir.If))
    assert facts_of(test, True, lambda _: None, last_bindings(body)) == known
