"""What paths remember of the conditions that were decided on them, also where they have met."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_audit import rulebook
from amp_audit.static.binding.project import Project
from amp_audit.static.source import lowering
from amp_audit.static.walking import paths
from amp_audit.static.walking.cases import MAX_CASES, Case, simplified
from amp_audit.static.walking.values import Condition
from amp_audit.static.walking.world import World
from tests.static.walked import HEAD, ids, rules


@pytest.mark.parametrize(
    "test",
    [
        "args.fp16 and args.scale",
        "args.fp16 and scaler is not None",
        "args.fp16 and step >= args.start",
        "not (args.fp32 or args.bf16)",
        "args.fp16 and args.scale and not args.debug",
    ],
)
def test_a_compound_condition_takes_the_same_arm_each_time(test: str) -> None:
    body = f"""
        if {test}:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if args.log:
            print(loss)
        if {test}:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if {test}:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    """
    assert rules(body) == set()
    assert "AMP202" in rules(body.replace("scaler.unscale_(optimizer)", "pass"))


def test_nested_conditions_take_the_same_arms_each_time() -> None:
    body = """
        if args.fp16:
            if args.scale:
                scaler.scale(loss).backward()
            else:
                loss.backward()
        else:
            loss.backward()
        if args.fp16:
            if args.scale:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
        else:
            optimizer.step()
    """
    assert rules(body) == set()
    other = body.replace("if args.scale:\n                scaler.step", "if args.other:\n                scaler.step")
    assert other != body and rules(other) & {"AMP203", "AMP204"}


def test_a_closure_gets_what_else_a_step_is_given() -> None:
    body = """
        def closure(x, late):
            with torch.autocast("cuda"):
                loss = model(x).mean()
            if late:
                loss.backward()
            else:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
        closure(x, args.late)
        if args.late:
            optimizer.step(closure, x, args.late)
        else:
            scaler.step(optimizer)
            scaler.update()
    """
    assert rules(body) == set()


CASES = st.sets(
    st.dictionaries(st.sampled_from("abcd"), st.booleans(), max_size=4).map(lambda case: frozenset(case.items())),
    min_size=1,
    max_size=10,
)


@given(CASES)
def test_simplified_cases_say_the_same_or_nothing(cases: set[Case]) -> None:
    found = simplified(set(cases))
    assert len(found) <= MAX_CASES
    for truths in itertools.product((True, False), repeat=4):
        whole = frozenset(zip("abcd", truths))
        before = any(case <= whole for case in cases)
        assert found == () or before == any(case <= whole for case in found)


@given(CASES, st.sampled_from("abcd"), st.booleans())
def test_a_decision_leaves_the_cases_that_agree(cases: set[Case], key: str, truth: bool) -> None:
    fitting = [case for case in cases if (key, not truth) not in case]
    world = World(cases=tuple(cases))
    world.decide(Condition(key), truth)
    if len(fitting) == 1:
        assert world.flags == {**dict(fitting[0]), key: truth} and world.cases == ()
    else:
        assert set(world.cases) == set(fitting) and world.flags == {key: truth}


def test_branches_that_do_not_matter_leave_no_conclusions() -> None:
    body = """
        shown = 0
        if args.log:
            if args.verbose:
                shown = 1
            else:
                shown = 2
        scaler.scale(loss).backward()
        if args.log and not args.verbose:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    """
    assert rules(body) == {"AMP202"}


def test_what_is_done_in_the_first_iteration_is_not_done_again() -> None:
    body = """
        scaler.scale(loss).backward()
        if step == 0:
            scaler.unscale_(optimizer)
        if step > 0:
            scaler.unscale_(optimizer)
        if not step:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    """
    assert rules(body) == set()


@pytest.mark.parametrize(("dtype", "expected"), [("bfloat16", {"AMP213"}), ("float16", set())])
@pytest.mark.parametrize("setting", ["args.dtype", "DTYPE"])
def test_a_scaler_that_is_on_for_bfloat16_alone_is_the_wrong_way_round(
    setting: str, dtype: str, expected: set[str]
) -> None:
    source = f"""
import sys, torch
from torch import nn
args, DTYPE = sys.argv[1], "float16"
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=({setting} == "{dtype}"))
for x in [1, 2]:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=getattr(torch, {setting})):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    raw, _ = paths.find(Project([lowering.lower("/project/main.py", source)], Path("/project")), rulebook.load())
    assert {found.rule.id for found in raw} == expected


def test_the_stage_that_a_scaler_keeps_of_an_optimizer_is_known() -> None:
    body = """
        scaler.scale(loss).backward()
        if args.norm:
            scaler.unscale_(optimizer)
        if scaler._per_optimizer_states[id(optimizer)]["stage"] is not OptState.UNSCALED:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    """
    import_stage = "from torch.amp.grad_scaler import OptState"
    source = import_stage + HEAD + textwrap.indent(textwrap.dedent(body), " " * 8)
    raw, _ = paths.find(Project([lowering.lower("/project/main.py", source)], Path("/project")), rulebook.load())
    assert {found.rule.id for found in raw} == set()


CHOICE = """
import sys, torch
from torch import nn
args = sys.argv[1]
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dtype, enabled = torch.float32, False
if args.dtype in ["bfloat16", "bf16"]:
    dtype, enabled = torch.bfloat16, True
elif args.dtype in ("float16", "fp16"):
    dtype, enabled = torch.float16, True
scaler = torch.amp.GradScaler("cuda", enabled={})
for x in [1, 2]:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=dtype, enabled=enabled):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("enabled", "expected"),
    [
        ('args.dtype in ["fp16", "float16"]', set()),  # the same two, in another order and display
        ('args.dtype == "fp16" or args.dtype == "float16"', set()),
        ('args.dtype not in ["bf16", "bfloat16"] and enabled', set()),
        ('args.dtype in ["bf16", "fp16"]', {"AMP213"}),
        ("enabled", {"AMP213"}),
    ],
)
def test_being_among_constants_is_decided_by_what_is_known_of_the_value(enabled: str, expected: set[str]) -> None:
    assert ids(CHOICE.format(enabled)) & {"AMP213"} == expected


def test_where_paths_met_what_a_case_says_of_other_constants_holds_too() -> None:
    """Two arms that leave the same dtype meet; one of them says of ``half`` only that it is something else."""
    source = """
import torch

def train(args, model, optimizer, loader):
    if args["precision"] == "brain":
        dtype = torch.bfloat16
    elif args["precision"] == "half":
        dtype = torch.float16
    elif args["precision"] == "brain with buffers":
        dtype = torch.bfloat16
    else:
        raise ValueError("precision")
    scaler = torch.amp.GradScaler() if args["precision"] == "half" else None
    for x in loader:
        with torch.autocast("cuda", dtype=dtype):
            loss = model(x).mean()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()
"""
    assert "AMP213" not in ids(source)
    assert "AMP213" in ids(
        source.replace('GradScaler() if args["precision"] == "half"', "GradScaler() if args['mode'] == 'half'")
    )
    assert "AMP213" in ids(
        source.replace('GradScaler() if args["precision"] == "half"', 'GradScaler() if args["precision"] != "half"')
    )


@pytest.mark.parametrize(("flag", "expected"), [("self.fp16", set()), ("self.other", {"AMP203"})])
def test_a_flag_that_built_the_scaler_is_known_where_the_scaler_is(flag: str, expected: set[str]) -> None:
    source = f"""
import torch
from torch import nn

class Trainer:
    def __init__(self, model, fp16, other):
        self.model, self.fp16, self.other, self.scaler = model, fp16, other, None
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def prepare(self):
        if self.fp16 and self.scaler is None:
            self.scaler = torch.amp.GradScaler("cuda")

    def train(self, loader):
        self.prepare()
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", enabled=self.fp16):
                loss = nn.functional.mse_loss(self.model(x), y)
            if self.scaler is not None:
                self.scaler.scale(loss).backward()
            else:
                loss.backward()
            if {flag}:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
"""
    assert ids(source) & {"AMP203"} == expected


CHOSEN = {
    "a dict": 'dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "half": torch.half}[args.dtype]',
    "get": 'DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}\ndtype = DTYPES.get(args.dtype, torch.float32)',
    "getattr": "dtype = getattr(torch, args.dtype)",
    "a function": """
def chosen(name):
    if name == "bf16":
        return torch.bfloat16
    return torch.float16
dtype = chosen(args.dtype)""",
    "a function that assigns": """
def chosen(name):
    if name in ("bf16", "bfloat16"):
        found = torch.bfloat16
    elif name == "fp16":
        found = torch.float16
    else:
        raise ValueError(name)
    return found
dtype = chosen(args.dtype)""",
}


@pytest.mark.parametrize("chosen", CHOSEN.values(), ids=CHOSEN)
@pytest.mark.parametrize(
    ("enabled", "expected"),
    [("True", {"AMP213"}), ("dtype == torch.float16", set()), ("dtype is torch.float16", set()), ("False", {"AMP201"})],
)
def test_a_dtype_that_a_setting_chooses_is_remembered(chosen: str, enabled: str, expected: set[str]) -> None:
    source = f"""
import sys, torch
from torch import nn
from options import args
{chosen}
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled={enabled})
for x in [1, 2]:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=dtype):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    raw, _ = paths.find(Project([lowering.lower("/project/main.py", source)], Path("/project")), rulebook.load())
    assert {found.rule.id for found in raw} & {"AMP201", "AMP213"} == expected


@pytest.mark.parametrize(
    ("inside", "expected"),
    [('config.get("amp", True)', set()), ('config["amp"]', set()), ('config.get("half", True)', {"AMP213"})],
)
def test_a_setting_that_is_read_again_in_a_loop_is_the_same(inside: str, expected: set[str]) -> None:
    source = f"""
import torch
from torch import nn

def run_epoch(model, loader, config, device, optimizer, scaler):
    enabled = bool({inside}) and device.type == "cuda"
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=enabled):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

def main(config, loader, device):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=bool(config.get("amp", True)) and device.type == "cuda")
    for epoch in range(int(config.get("epochs", 20))):
        run_epoch(model, loader, config, device, optimizer, scaler)
"""
    assert ids(source) & {"AMP201", "AMP213"} == expected


@pytest.mark.parametrize("loss", ["model(x).mean()", "task(x)['loss'] / count"])
def test_a_loss_that_is_sent_back_requires_gradients(loss: str) -> None:
    body = f"""
        loss = {loss}
        if loss.requires_grad:
            scaler.scale(loss).backward() if args.amp else loss.backward()
        if args.amp:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    """
    assert rules(body) == set()


@pytest.mark.parametrize(("test", "expected"), [("torch.isnan(p.grad).any()", set()), ("p.grad.sum() > 9", {"AMP210"})])
def test_gradients_that_are_printed_for_being_no_numbers_may_carry_the_scale(test: str, expected: set[str]) -> None:
    body = f"""
        scaler.scale(loss).backward()
        for name, p in model.named_parameters():
            if p.grad is not None and {test}:
                print(name, p.grad)
        scaler.step(optimizer)
        scaler.update()
    """
    assert rules(body) == expected


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        ('case "fp16": scaler.step(optimizer); scaler.update()\n            case _: optimizer.step()', {"AMP203"}),
        ('case "fp16" | "half": scaler.step(optimizer); scaler.update()\n            case _: optimizer.step()', set()),
        (
            'case "fp32" | "bf16": optimizer.step()\n            case _: scaler.step(optimizer); scaler.update()',
            {"AMP204"},
        ),
        (
            "case str(): optimizer.step()\n            case other: scaler.step(optimizer); scaler.update()",
            {"AMP203", "AMP204"},
        ),
        (
            'case "fp16" if x.any(): scaler.step(optimizer); scaler.update()\n            case _: optimizer.step()',
            {"AMP203", "AMP204"},
        ),
    ],
)
def test_a_case_is_taken_where_the_comparison_holds(cases: str, expected: set[str]) -> None:
    source = f"""
    import torch
    def train(model, optimizer, loader, mode):
        scaler = torch.amp.GradScaler("cuda")
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled=mode in ("fp16", "half")):
                loss = model(x).mean()
            if mode == "fp16" or mode == "half":
                scaler.scale(loss).backward()
            else:
                loss.backward()
            match mode:
                {cases.replace(chr(10) + "    ", chr(10) + "        ")}
    """
    assert ids(source) & {"AMP203", "AMP204"} == expected


UPDATED = """
import torch

def train(cfg, build, loader, schedule):
    model = build(cfg)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=cfg.mixed)
    for epoch in range(3):
        {update}
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", enabled={switch}):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""


@pytest.mark.parametrize(
    ("update", "switch", "expected"),
    [
        ("cfg, changed = schedule.update(cfg, epoch)", "cfg.mixed", set()),
        ("cfg = schedule.update(cfg)", "cfg.mixed", set()),
        ("cfg = schedule.update(cfg)", "not cfg.mixed", {"AMP213"}),
        ("cfg = schedule.update(epoch)", "cfg.mixed", {"AMP213"}),
    ],
)
def test_settings_that_a_call_is_handed_and_gives_back_are_the_same(
    update: str, switch: str, expected: set[str]
) -> None:
    assert ids(UPDATED.format(update=update, switch=switch)) & {"AMP201", "AMP213"} == expected
