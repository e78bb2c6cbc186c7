"""Which names may still be read, and what comes of it: fewer paths, the same findings."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.binding.project import Project
from amp_audit.static.source import ir, lowering
from amp_audit.static.source.traverse import statements
from amp_audit.static.walking import paths
from amp_audit.static.walking.liveness import Liveness


def lives(source: str) -> dict[str, set[str]]:
    """What may be read after each statement of a module that is a bare text, by that text."""
    module = lowering.lower("/project/main.py", textwrap.dedent(source))
    found = Liveness().of(module)
    marks: dict[str, set[str]] = {}
    for node in statements(module.body):
        if isinstance(node, ir.Evaluate) and isinstance(node.value, ir.Const):
            marks[str(node.value.value)] = set(found.after[id(node)])
    return marks


def test_a_name_lives_until_it_is_read_last_or_set_anew() -> None:
    marks = lives(
        """
        a, b = 1, 2
        "set"
        c = a
        "read"
        b = c
        "anew"
        print(b)
        "end"
        """
    )
    assert marks == {"set": {"a", "print"}, "read": {"c", "print"}, "anew": {"b", "print"}, "end": set()}


def test_what_a_loop_reads_lives_around_it() -> None:
    marks = lives(
        """
        for x in xs:
            "begin"
            use(seen, x)
            "middle"
            seen = x
            "last"
        "after"
        """
    )
    assert marks["begin"] == {"seen", "x", "use"}
    assert marks["middle"] == {"x", "use"}
    assert marks["last"] == {"seen", "use"}
    assert marks["after"] == set()


def test_leaving_a_loop_leads_to_what_is_behind_it() -> None:
    marks = lives(
        """
        while go():
            if stop():
                "out"
                break
            "on"
            continue
        else:
            print(done)
        print(left)
        """
    )
    assert marks["out"] == {"left", "print"}
    assert marks["on"] == {"go", "stop", "done", "left", "print"}


def test_handlers_and_definitions_keep_names_alive() -> None:
    marks = lives(
        """
        def later():
            own = 1
            return kept, own
        try:
            "tried"
            run()
            "ran"
        except OSError as error:
            print(caught, error)
        finally:
            "final"
            close(last)
        get = lambda item: also
        "end"
        """
    )
    assert marks["tried"] == {"run", "print", "caught", "close", "last", "kept", "also"}
    assert marks["ran"] == {"print", "caught", "close", "last", "kept", "also"}
    assert marks["final"] == {"close", "last", "kept", "also"}
    assert marks["end"] == {"kept", "also"}


def test_comprehensions_read_what_they_do_not_bind() -> None:
    assert lives("x = 1\n'set'\ny = [x for x in x if test(x, z)]")["set"] == {"x", "z", "test"}


@pytest.mark.parametrize("call", ["locals()", "exec(text)", "globals().update(more)"])
def test_names_that_are_not_spelled_may_be_read_at_any_time(call: str) -> None:
    module = lowering.lower("/project/main.py", f"a = 1\n{call}\n")
    assert Liveness().of(module).after == {}
    method = lowering.lower("/project/main.py", "a = 1\nmodel.eval()\n")
    assert Liveness().of(method).after != {}


RESUMED = """
import torch
from torch import nn

def train(args, loader):
    model = nn.Linear(4, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    {settings}
    for epoch in range(args.epochs):
        for step, x in enumerate(loader):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(x).sum()
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            {inside}
"""


def found(source: str) -> tuple[set[str], list[str]]:
    module = lowering.lower("/project/main.py", source)
    raw, notes = paths.find(Project([module], Path("/project")), rulebook.load())
    return {each.rule.id for each in raw}, notes


def test_settings_that_nobody_reads_again_make_no_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty states of a checkpoint that are put back before the loop begins, and every path to it is the same."""
    monkeypatch.setattr(paths, "WIDTHS", (4,))
    settings = "".join(
        f"""
    state{n} = torch.load(args.file{n}) if args.resume{n} else None
    if state{n}:
        model.load_state_dict(state{n})
        scaler.load_state_dict(state{n})
"""
        for n in range(20)
    )
    rules, notes = found(RESUMED.format(settings=settings, inside="pass"))
    assert "AMP202" in rules and notes == []


def nested(depth: int) -> str:
    """A loop in a loop in a loop ... that clips scaled gradients and, in later rounds, leaves them behind."""
    head = """
import torch
from torch import nn
model = nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
"""
    loops = "".join(f"{'    ' * level}for x{level} in loader{level}:\n" for level in range(depth))
    body = """
with torch.autocast("cuda", dtype=torch.float16):
    loss = model(x0).sum()
scaler.scale(loss).backward()
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()
"""
    return head + loops + textwrap.indent(body, "    " * depth)


def test_rounds_of_loops_in_loops_do_not_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six loops: sixty-four rounds, were each walked twice in each round of the one around it. What is left over from
    one round to the next is found all the same."""
    monkeypatch.setattr(paths, "WIDTHS", (64,))
    monkeypatch.setattr(paths, "FUEL", 400)
    rules, notes = found(nested(6))
    assert rules >= {"AMP202", "AMP223"} and notes == []


def test_long_code_of_few_paths_gets_more_fuel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "FUEL", 60)
    monkeypatch.setattr(paths, "PLENTY", 1)
    assert len(found(nested(3))[1]) == 1
    monkeypatch.setattr(paths, "PLENTY", 4)
    rules, notes = found(nested(3))
    assert rules >= {"AMP202", "AMP223"} and notes == []
