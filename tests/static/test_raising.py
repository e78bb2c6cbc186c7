"""Which handler what is raised between unscale_ and update goes to; the answers are checked against Python itself."""

from __future__ import annotations

import pytest

from tests.static.pathing import BASE, CLIP, LOOP, STEP, UNSCALE, UPDATE, line, rules
from tests.static.pathing import found as findings

CLASSES = """
class Skip(RuntimeError): pass
class Worse(Skip): pass
class Plain(Exception): pass
"""


def _program(raised: str, handlers: str, before: str = CLASSES) -> str:
    body = f"""
    {UNSCALE}
    try:
        if {CLIP} > 100:
            raise {raised}
        {STEP}
        {UPDATE}
{handlers}
"""
    return before + BASE + LOOP + body


def _handlers(first: str, second: str) -> str:
    """One that updates and one that does not."""
    return f"    except {first}:\n        {UPDATE}\n    except {second}:\n        print('second')\n"


@pytest.mark.parametrize("raised", ["Skip", "Worse('x')", "Plain", "ValueError", "UnicodeError()", "KeyboardInterrupt"])
@pytest.mark.parametrize("first", ["RuntimeError", "Skip", "Plain", "(OSError, Skip)", "ValueError", "Exception"])
def test_python_says_which_handler_takes_what_is_raised(raised: str, first: str) -> None:
    taken: list[str] = []
    source = f"try:\n    raise {raised}\nexcept {first}:\n    taken.append('first')\nexcept BaseException:\n    pass\n"
    exec(CLASSES + source, {"taken": taken})
    source = _program(raised, _handlers(first, "BaseException"))
    assert ("AMP208" in rules(source)) is (taken == [])


@pytest.mark.parametrize(
    ("before", "raised", "first", "expected"),
    [
        # nobody can tell whether the first handler takes it
        ("from errors_of_others import Skip\n", "Skip", "RuntimeError", set()),
        ("from errors_of_others import Skip\nclass Own(Skip): pass\n", "Own", "RuntimeError", set()),
        ("from errors_of_others import Trouble\n", "ValueError", "Trouble", set()),
        ("from errors_of_others import Trouble\n", "ValueError", "(KeyError, Trouble)", set()),
        ("errors = (ValueError, KeyError)\n", "ValueError", "errors", set()),
        ("import pickle\nerror = pickle.loads(b'')\n", "error", "RuntimeError", set()),
        ("try:\n    from o import S\nexcept ImportError:\n    S = RuntimeError\n", "RuntimeError", "S", set()),
        # it surely does
        ("from errors_of_others import Skip\n", "Skip", "Skip", set()),
        ("import errors_of_others as e\n", "e.Skip('x')", "(OSError, e.Skip)", set()),
        # it surely does not
        (CLASSES, "ValueError", "Skip", {"AMP208"}),
        (CLASSES, "Skip", "Plain", {"AMP208"}),
    ],
)
def test_what_a_handler_may_take_or_not_goes_nowhere(before: str, raised: str, first: str, expected: set[str]) -> None:
    assert rules(_program(raised, _handlers(first, "Exception"), before)) == expected


@pytest.mark.parametrize(("only", "expected"), [("get_errors()[0]", set()), ("Exception", {"AMP208"})])
def test_what_is_raised_again_has_no_name_that_equals_another_one(only: str, expected: set[str]) -> None:
    """Of a bare ``raise`` only a handler of every exception is known to take it."""
    assert rules(_program("", f"    except {only}:\n        print('skipped')\n")) == expected


def test_a_class_that_a_function_defines_or_imports_is_known_there() -> None:
    source = f"""
{BASE}
def train():
    class Skip(RuntimeError):
        pass
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        {UNSCALE}
        try:
            if {CLIP} > 100:
                raise Skip
            {STEP}
            {UPDATE}
        except FIRST:
            {UPDATE}
        except Exception:
            print("second")
train()
"""
    assert rules(source.replace("FIRST", "RuntimeError")) == set()
    bad = source.replace("FIRST", "ValueError")
    assert findings(bad) == {("AMP208", "main", line(bad, "raise Skip"))}


def test_paths_that_begin_a_try_together_are_walked_once() -> None:
    """Those that become one within it stand between unscale_ and update there; they began before both."""
    source = f"""
for x, y in loader:
    optimizer.zero_grad()
    clip = torch.nn.utils.clip_grad_norm_ if len(x) > 4 else torch.nn.utils.clip_grad_value_
    try:
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        {UNSCALE}
        clip(model.parameters(), 1.0)
        {STEP}
        {UPDATE}
    except Skip:
        print("skipped")
"""
    assert rules(CLASSES + BASE + source) == set()
