"""Calls that other paths have made alike: what they did is done once more, and is what walking them again would do."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.binding.project import Project
from amp_audit.static.source import lowering
from amp_audit.static.walking import echoes, paths
from amp_audit.static.walking.echoes import Call, Echoes
from amp_audit.static.walking.evaluate import Results
from amp_audit.static.walking.walk import Walker
from amp_audit.static.walking.world import World

BOOK = rulebook.load()
IDIOMS = sorted((Path(__file__).parent / "idioms").glob("n*.py"))
EXAMPLES = [
    pytest.param(example.code, id=f"{rule.id}-{number}")
    for rule in BOOK.rules.values()
    for number, example in enumerate(rule.examples, 1)
    if any(detector in rule.static for _, detector in BOOK.detectors("static", "event"))
]


def told(code: str) -> set[tuple[str, int, str]]:
    module = lowering.lower("/project/main.py", code)
    raw, _ = paths.find(Project([module], Path("/project")), BOOK)
    return {(found.rule.id, found.at, found.confidence.value) for found in raw}


def both_ways(code: str, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, int, str]]:
    """What is found, with the shortest calls kept as well, which must be what is found without."""
    with monkeypatch.context() as patch:
        patch.setattr(Echoes, "find", lambda self, call, world: None)
        plain = told(code)
    monkeypatch.setattr(echoes, "WORTH", 0)
    assert told(code) == plain
    return plain


@pytest.mark.parametrize("code", EXAMPLES)
def test_examples_are_found_as_without(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    both_ways(code, monkeypatch)


@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda path: path.stem)
def test_idioms_are_as_without(idiom: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_ways(idiom.read_text(encoding="utf-8"), monkeypatch)


HEAD = """
import torch
from torch import nn
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
loader = [(torch.randn(8, 4), torch.randn(8, 2))] * 4

def loss_of(x, y):
    with torch.autocast("cuda"):
        return nn.functional.mse_loss(model(x), y)
"""

FINISH = """
def finish(clip, unscale=True):
    if unscale:
        scaler.unscale_(optimizer)
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
"""Ends a step; what it does may depend on what it is given, and on names around."""

DIFFERENT = {
    "an argument": (
        FINISH,
        """
        if args.warm:
            finish(True)
        else:
            finish(True, {wrong})
        """,
        "False",
        "True",
    ),
    "one call, another argument": (
        FINISH,
        """
        early = {wrong}
        if args.warm:
            early = True
            optimizer.param_groups[0]["lr"] = 0.2
        finish(True, early)
        """,
        "False",
        "True",
    ),
    "a name of the module": (
        FINISH.replace("if unscale:", "if MODE == 1:"),
        """
        MODE = 1
        if args.warm:
            MODE = {wrong}
        finish(True)
        """,
        "2",
        "1",
    ),
    "an attribute": (
        "class Options: pass\noptions = Options()\n" + FINISH.replace("if unscale:", "if options.early:"),
        """
        options.early = True
        if args.warm:
            options.early = {wrong}
        finish(True)
        """,
        "False",
        "True",
    ),
    "an attribute that is spelled nowhere": (
        "class Options: pass\noptions = Options()\n" + FINISH.replace("if unscale:", "if getattr(options, name):"),
        """
        options.early = True
        name = "early"
        if args.warm:
            options.early = {wrong}
        finish(True)
        """,
        "False",
        "True",
    ),
    "a decision": (
        FINISH.replace("if unscale:", "if args.early:"),
        """
        if args.early:
            print("early")
        {wrong}
        finish(True)
        """,
        "pass",
        "if not args.early: scaler.unscale_(optimizer)",
    ),
    "what was done before": (
        FINISH,
        """
        if args.warm:
            scaler.unscale_(optimizer)
        {wrong}
        finish(True, False)
        """,
        "pass",
        "if not args.warm: scaler.unscale_(optimizer)",
    ),
    "objects it is given": (
        "def finish(net, opt):\n    nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n    scaler.step(opt)\n"
        "    scaler.update()\nsecond = nn.Linear(4, 2)\nother = torch.optim.SGD(second.parameters(), lr=0.1)\n",
        """
        with torch.autocast("cuda"):
            more = second(x).mean()
        scaler.scale(more).backward()
        scaler.unscale_(optimizer)
        for net, opt in ((model, optimizer), {wrong}):
            finish(net, opt)
        """,
        "(second, other)",
        "",
    ),
}


@pytest.mark.parametrize("about", DIFFERENT)
def test_what_differs_on_the_paths_is_walked_for_each(about: str, monkeypatch: pytest.MonkeyPatch) -> None:
    helper, step, wrong, right = DIFFERENT[about]
    loop = (
        "for x, y in loader:\n    optimizer.zero_grad()\n    loss = loss_of(x, y)\n    scaler.scale(loss).backward()\n"
    )
    body = textwrap.indent(textwrap.dedent(step), "    ")
    args = "import argparse\nargs = argparse.ArgumentParser().parse_args()\n"
    codes = [HEAD + args + helper + loop + body.format(wrong=each) for each in (wrong, right)]
    bad, good = ({rule for rule, _, _ in both_ways(code, monkeypatch)} for code in codes)
    assert "AMP202" in bad and "AMP202" not in good


EVALUATE = """
def evaluate(net, epoch):
    net.eval()
    total, count, worst = 0.0, 0, 0.0
    with torch.no_grad(), torch.autocast("cuda"):
        for x, y in loader:
            out = net(x)
            loss = nn.functional.mse_loss(out, y)
            if loss.item() > worst:
                worst = loss.item()
            total += loss.item()
            count += 1
            print(epoch, count)
    net.train()
    return total / count, worst
"""


@pytest.mark.parametrize("result", ["total / count, worst", "(total, out.detach(), *losses), worst"])
def test_what_only_looks_on_is_walked_for_few_of_the_paths(result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = 0

    def burn(walker: Walker) -> None:
        nonlocal statements
        statements += 1
        walker.fuel -= 1

    step = """
    if args.clip:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        print(evaluate(model, x))
    else:
        print(evaluate(model, x))
    scaler.step(optimizer)
    print(evaluate(model, x))
    scaler.update()
    print(evaluate(model, x))
"""
    loop = (
        "for x, y in loader:\n    optimizer.zero_grad()\n    loss = loss_of(x, y)\n    scaler.scale(loss).backward()\n"
    )
    args = "import argparse\nargs = argparse.ArgumentParser().parse_args()\n"
    code = HEAD + args + EVALUATE.replace("total / count, worst", result) + loop + step
    monkeypatch.setattr(Walker, "burn", burn)
    found = told(code)
    few, statements = statements, 0
    monkeypatch.setattr(Echoes, "find", lambda self, call, world: None)
    assert told(code) == found
    assert 2 * few < statements


LOOKS_ON = """
def prepared(net):
    net.eval()
    count = 0
    for p in net.parameters():
        count += p.numel()
    for kind in ("a", "b"):
        print(kind, count)
        print(count, kind)
    with torch.no_grad():
        print(net(torch.ones(1, 4)))
    print("done")
    print(count)
    return net
"""


def test_what_a_call_hands_back_is_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models that are built out of sight go through one function; each keeps its own optimizer and gradients."""
    code = """
import torch
from torch import nn
from models import first, second
{helper}
made_one, made_two = first(), second()
one, two = prepared(made_one), prepared(made_two)
opt_one = torch.optim.SGD(made_one.parameters(), lr=0.1)
opt_two = torch.optim.SGD(made_two.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in []:
    opt_one.zero_grad()
    opt_two.zero_grad()
    with torch.autocast("cuda"):
        loss = made_one(x).mean() + made_two(x).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(opt_one)
    {more}
    nn.utils.clip_grad_norm_(two.parameters(), 1.0)
    scaler.step(opt_one)
    scaler.step(opt_two)
    scaler.update()
"""
    for more, wrong in (("pass", True), ("scaler.unscale_(opt_two)", False)):
        found = {rule for rule, _, _ in both_ways(code.format(helper=LOOKS_ON, more=more), monkeypatch)}
        assert ("AMP202" in found) is wrong


def test_losses_of_two_models_lead_back_to_each(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        HEAD
        + """
other = nn.Linear(4, 2)
optimizer_of_other = torch.optim.SGD(other.parameters(), lr=0.1)

def measured(out, y):
    weight = 1.0
    for name in ("a", "b"):
        print(name)
        print(weight)
        weight = weight * 0.5
    print("x")
    print("y")
    with torch.autocast("cuda", enabled=False):
        total = nn.functional.mse_loss(out.float(), y)
    total = total * weight
    print("z")
    return total

for x, y in loader:
    optimizer.zero_grad()
    optimizer_of_other.zero_grad()
    loss_a = measured(model(x), y)
    loss_b = measured(other(x), y)
    scaler.scale(loss_a).backward()
    {backward}
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer_of_other)
    scaler.step(optimizer)
    scaler.step(optimizer_of_other)
    scaler.update()
"""
    )
    for backward, wrong in (("loss_b.backward()", True), ("scaler.scale(loss_b).backward()", False)):
        found = {rule for rule, _, _ in both_ways(code.format(backward=backward), monkeypatch)}
        assert ("AMP204" in found) is wrong


@pytest.mark.parametrize("first", ["args.clip", "None"])
def test_what_is_decided_on_a_path_rules_out_ways_of_a_walk_that_decided_both(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that only looks on asks for a condition: open at first, then decided by the paths that come to it."""
    walked = 0

    def listened(walker: Walker, call: Call, at: int, world: World) -> Results:
        nonlocal walked
        walked += call.func.function.name == "evaluate"
        return original(walker, call, at, world)

    original = Walker._listened
    looks = EVALUATE.replace("    return total", "    if args.clip:\n        return None\n    return total")
    step = f"""
    print(evaluate(model, {first}))
    if args.clip:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        print(evaluate(model, {first}))
    else:
        print(evaluate(model, {first}))
    scaler.step(optimizer)
    scaler.update()
"""
    loop = (
        "for x, y in loader:\n    optimizer.zero_grad()\n    loss = loss_of(x, y)\n    scaler.scale(loss).backward()\n"
    )
    args = "import argparse\nargs = argparse.ArgumentParser().parse_args()\n"
    code = HEAD + args + looks + loop + step
    assert both_ways(code, monkeypatch) == set()
    monkeypatch.setattr(Walker, "_listened", listened)
    assert told(code) == set()
    assert walked == 2


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize(
    "result",
    [
        "stop = False\n    if epoch.early:\n        stop = True",
        "kept = {'stop': False}\n    if epoch.early:\n        kept['stop'] = True\n    stop = kept['stop']",
    ],
)
def test_a_way_that_stands_for_both_sides_of_a_condition_is_not_taken_over(
    result: str, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that only looks on gives True on one side; where the other side is known, its walk tells nothing."""
    looks = EVALUATE.replace("    return total / count, worst", f"    {result}\n    return stop")
    train = f"""
def train(cfg):
    evaluate(model, cfg)
    if {"" if wrong else "not "}cfg.early:
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(x, y)
            scaler.scale(loss).backward()
            if evaluate(model, cfg):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
"""
    found = {rule for rule, _, _ in both_ways(HEAD + looks + train, monkeypatch)}
    assert ("AMP202" in found) is wrong


def test_what_is_known_by_cases_alone_is_no_less_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two paths have met, on neither of which the mode is the one under which the call gives True."""
    train = """
def train(mode):
    evaluate(model, mode)
    if mode == "x":
        clip = True
    elif mode == "y":
        clip = True
    else:
        return
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(x, y)
        if clip:
            scaler.scale(loss).backward()
        if evaluate(model, mode):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
    looks = EVALUATE.replace(
        "    return total", "    if epoch == 'z':\n        return True\n    return False\n    return total"
    )
    assert "AMP202" not in {rule for rule, _, _ in both_ways(HEAD + looks + train, monkeypatch)}
