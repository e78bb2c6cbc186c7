"""The texts of rules: prose fits any width, code stays as it was written."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import pytest

from amp_audit import rulebook
from amp_audit.report.layout import beginning, flowed

RULES = rulebook.load().rules


def test_prose_loses_its_line_breaks_and_code_keeps_them() -> None:
    text = "Write this\ninstead:\n\nwith region:\n    forward()\n\n  a  -> b\n  cc -> d\n\nOr leave\nit.\n"
    assert flowed(text) == ("Write this instead:\nwith region:\n    forward()\n  a  -> b\n  cc -> d\nOr leave it.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('It raises "Nothing here. Stop." at once. More.', 'It raises "Nothing here. Stop." at once. More.'),
        ("Short. " + "Long" * 90 + ".", "Short. " + "Long" * 90 + "."),
        ("Enough" * 20 + ". " + "Long" * 90 + ".", "Enough" * 20 + "."),
        ("One. Two.\n\nThree.", "One. Two."),
    ],
)
def test_the_beginning_is_of_whole_sentences_and_says_something(text: str, expected: str) -> None:
    assert beginning(text) == expected


@pytest.mark.parametrize("rule", sorted(RULES))
def test_no_rule_mixes_code_into_prose(rule: str) -> None:
    told = flowed(RULES[rule].fix).splitlines()
    for paragraph in RULES[rule].fix.split("\n\n"):
        lines = paragraph.splitlines()
        if len(lines) > 1 and any(_statements(line) for line in lines):
            assert set(lines) <= set(told), paragraph


def _statements(line: str) -> Sequence[ast.stmt]:
    """The statements that a line is, but for words that happen to be a name."""
    try:
        body = ast.parse(line.strip()).body
    except SyntaxError:
        return ()
    return [each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Name))]
