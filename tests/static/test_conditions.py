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
from amp_audit.static.source.traverse import definitions
from amp_audit.static.walking import paths
from amp_audit.static.walking.hot import Heat
from amp_audit.static.walking.values import Condition
from amp_audit.static.walking.world import MAX_CASES, Case, World, simplified

HEAD = """
import torch
from torch import nn

def train(model, optimizer, loader, args, scaler=None):
    for step, x in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
"""


def rules(body: str) -> set[str]:
    source = HEAD + textwrap.indent(textwrap.dedent(body), " " * 8)
    raw, notes = paths.find(Project([lowering.lower("/project/main.py", source)], Path("/project")), rulebook.load())
    assert notes == []
    return {found.rule.id for found in raw}


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


@pytest.mark.parametrize(
    "call", ["trainer.step_all(scaler)", "trainer.step_all(model, scaler=scaler)", "advance(scaler)"]
)
def test_what_a_scaler_is_handed_to_may_step_it(call: str) -> None:
    body = f"""
        scaler.scale(loss).backward()
        {call}
        scaler.update()
    """
    assert rules(f"scaler = torch.amp.GradScaler('cuda')\n{textwrap.dedent(body)}") == set()
    other = body.replace(call, "print(scaler)")
    assert "AMP206" in rules(f"scaler = torch.amp.GradScaler('cuda')\n{textwrap.dedent(other)}")


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


@pytest.mark.parametrize("loop", ["while True:", "for x in loader:", "for x in tqdm(loader, total=9):"])
def test_what_a_loop_counts_by_hand_is_any_number_later_on(loop: str) -> None:
    body = f"""
        count = 0
        {loop}
            with torch.autocast("cuda"):
                loss = model(x).mean() / 4
            scaler.scale(loss).backward()
            count += 1
            if count % 4 == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    """
    assert rules(body) == set()
    assert rules(body.replace("scaler.unscale_(optimizer)", "pass")) == {"AMP202"}


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


@pytest.mark.parametrize(
    ("call", "followed"), [("text.split()", False), ("self.split()", True), ("text.divide()", True)]
)
def test_methods_that_strings_have_too_do_not_make_code_matter(call: str, followed: bool) -> None:
    source = f"""
class Trainer:
    def split(self):
        self.optimizer.zero_grad()

    def divide(self):
        self.optimizer.zero_grad()

    def read(self, text):
        return {call}
"""
    module = lowering.lower("/project/main.py", source)
    read = next(function for function, _ in definitions(module.body) if function.name == "read")
    assert Heat([module]).function(read) is followed


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


def test_a_function_that_is_handed_a_model_in_a_region_runs_it() -> None:
    source = """
import torch
from torch import nn

def compute(model, x):
    return model(x).mean(), {}

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in [1, 2]:
    with torch.autocast("cuda"):
        loss, info = compute(model, x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    raw, _ = paths.find(Project([lowering.lower("/project/main.py", source)], Path("/project")), rulebook.load())
    assert [found.rule.id for found in raw] == ["AMP201"]


def test_only_the_model_that_was_stepped_is_stale_in_a_region() -> None:
    source = """
import torch
from torch import nn

G, D = nn.Linear(4, 4), nn.Linear(4, 1)
opt_g, opt_d = torch.optim.SGD(G.parameters(), lr=0.1), torch.optim.SGD(D.parameters(), lr=0.1)
for x in [1, 2]:
    opt_g.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        fake = G(x)
        loss_g = D(fake).mean()
        loss_g.backward()
        opt_g.step()
        loss_d = D(fake.detach()).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
"""
    raw, _ = paths.find(Project([lowering.lower("/project/main.py", source)], Path("/project")), rulebook.load())
    assert {found.rule.id for found in raw} == {"AMP303"}


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("(step + 1) % n == 0", True),
        ("not (step + 1) % n", True),
        ("step % n == n - 1", True),
        ("(step + 1) % n == 0 or step + 1 == len(loader)", True),
        ("args.clip and (step + 1) % n == 0 or n == 1", True),
        ("args.debug", False),
        ("step > 0", False),
    ],
)
def test_a_boundary_test_is_known_in_whatever_way_it_is_written(test: str, found: bool) -> None:
    body = f"""
        n = args.accumulate
        scaler.scale(loss).backward()
        if {test}:
            scaler.step(optimizer)
            scaler.update()
    """
    assert rules(body) == ({"AMP223"} if found else set())


def ids(source: str) -> set[str]:
    module = lowering.lower("/project/main.py", textwrap.dedent(source))
    raw, _ = paths.find(Project([module], Path("/project")), rulebook.load())
    return {found.rule.id for found in raw}


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


def test_two_dicts_that_are_filled_alike_hold_different_things() -> None:
    source = """
    import torch
    class Agent:
        def __init__(self, models, schedules):
            self.scaler = torch.amp.GradScaler("cuda")
            self.models, self.optimizers, self.schedulers = models, {}, {}
            for uid in models:
                self.optimizers[uid] = torch.optim.Adam(models[uid].parameters())
                self.schedulers[uid] = schedules[uid](self.optimizers[uid])
        def update(self, batches):
            for uid in self.models:
                for x in batches:
                    with torch.autocast("cuda"):
                        loss = self.models[uid](x).mean()
                    self.optimizers[uid].zero_grad()
                    self.scaler.scale(loss).backward()
                    self.scaler.step(self.optimizers[uid])
                    self.scaler.update()
                self.schedulers[uid].step()
    """
    assert "AMP203" not in ids(source)
    assert "AMP203" in ids(source.replace("self.schedulers[uid].step()", "self.optimizers[uid].step()"))


PROBED = """
import torch
def run(cfg, batches):
    model = get_model(cfg)
    model.train()
    generator, discriminator = model.generator, model.discriminator
    opt_g = torch.optim.Adam(generator.parameters())
    opt_d = torch.optim.Adam(discriminator.parameters())
    for x in batches:  # one of each size, for the memory they take
        opt_d.zero_grad()
        model(x, False).backward()
        opt_g.zero_grad()
        model(x, True).backward()
    scaler = torch.amp.GradScaler("cuda")
    for x in batches:
        with torch.autocast("cuda"):
            loss_d = model(x, False)
        {}.zero_grad()
        scaler.scale(loss_d).backward()
        scaler.step(opt_d)
        with torch.autocast("cuda"):
            loss_g = model(x, True)
        opt_g.zero_grad()
        scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        scaler.update()
"""


def test_clearing_a_part_leaves_of_the_whole_nothing_that_is_known() -> None:
    assert "AMP204" not in ids(PROBED.format("opt_d"))


def test_a_gradient_that_is_dropped_under_a_test_is_not_all_of_them() -> None:
    source = """
    import torch
    def fit(loader):
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            for p in model.parameters():
                if p.requires_grad and not torch.isfinite(p.grad).all():
                    p.grad = None
            scaler.step(optimizer)
            scaler.update()
    """
    assert "AMP212" not in ids(source)
    assert "AMP212" in ids(source.replace("if p.requires_grad and not torch.isfinite(p.grad).all():", "if True:"))


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        ("nn.functional.mse_loss(model(x), x)", True),
        ("nn.functional.mse_loss(model(x), x) / n", False),
        ("model(x, n_accum)", False),
        ("nn.functional.mse_loss(model(x), x).sum()", False),
        ("nn.functional.mse_loss(model(x), x) * args.weight + model(x).mean()", True),
        ("args.loss_of(x)", False),
    ],
)
def test_losses_that_something_may_divide_are_not_said_to_be_summed(loss: str, found: bool) -> None:
    body = f"""
        n = args.accumulate
        n_accum = args.accumulate
        loss = {loss}
        scaler.scale(loss).backward()
        if (step + 1) % n == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    """
    head = HEAD.replace("        optimizer.zero_grad()\n", "").replace(
        "            loss = model(x).mean()\n", "            pass\n"
    )
    source = head + textwrap.indent(textwrap.dedent(body), " " * 8) + "    model.eval()\n"
    raw, notes = paths.find(Project([lowering.lower("/project/main.py", source)], Path("/project")), rulebook.load())
    assert notes == []
    assert {each.rule.id for each in raw} == ({"AMP223"} if found else set())


@pytest.mark.parametrize(
    ("count", "loss", "clears", "found"),
    [
        ("args.accumulate", "model(x).mean()", "", True),
        ("args.accumulate", "model(x).mean() / args.accumulate", "", False),
        ("args.accumulate", "model(x).mean() / args.accumulate", "optimizer.zero_grad()", True),
        ("args.crops", "model(x).mean()", "", False),
    ],
)
def test_a_loop_over_micro_batches_is_an_accumulation(count: str, loss: str, clears: str, found: bool) -> None:
    source = f"""
import torch

def train(model, optimizer, batches, args):
    model.train()
    scaler = torch.amp.GradScaler("cuda")
    while True:
        optimizer.zero_grad()
        for micro in range({count}):
            {clears or "pass"}
            x = next(batches)
            with torch.autocast("cuda"):
                loss = {loss}
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
    raw, notes = paths.find(Project([lowering.lower("/project/main.py", source)], Path("/project")), rulebook.load())
    assert notes == []
    assert {each.rule.id for each in raw} == ({"AMP223"} if found else set())


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


@pytest.mark.parametrize(
    ("gradient", "expected"),
    [
        ("scaler.scale(gradient)", set()),
        ("gradient=scaler.scale(gradient)", set()),
        ("gradient", {"AMP204"}),
        ("retain_graph=True", {"AMP204"}),
    ],
)
def test_a_backward_that_starts_with_a_scaled_gradient_is_scaled(gradient: str, expected: set[str]) -> None:
    source = f"""
    import torch
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler()
    for x in torch.randn(8, 3, 4):
        optimizer.zero_grad()
        features = model(x)
        gradient = torch.ones_like(features)
        features.backward({gradient})
        scaler.scale(torch.ones(1))
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    """
    assert ids(source) & {"AMP204", "AMP201"} == expected


def test_what_init_leaves_none_and_code_uses_is_set_out_of_sight() -> None:
    source = """
    import torch
    class Trainer:
        def __init__(self):
            self.scaler = torch.amp.GradScaler()
            self.optimizer = self.network = None

        def fit(self, loader):
            for x in loader:
                self.optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = self.network(x).mean()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
    """
    assert ids(source) == set()
    assert ids(source.replace("self.optimizer.zero_grad()", "pass")) == {"AMP223"}


@pytest.mark.parametrize(("stepped", "expected"), [("head_optimizer", set()), ("optimizer", {"AMP203"})])
def test_another_optimizer_may_step_what_the_scaler_has_not(stepped: str, expected: set[str]) -> None:
    source = f"""
    import torch
    def fit(model, head, optimizer, head_optimizer, loader):
        scaler = torch.amp.GradScaler()
        for x in loader:
            optimizer.zero_grad()
            head_optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            head.backward_by_hand(x)
            scaler.step(optimizer)
            scaler.update()
            {stepped}.step()
    """
    assert ids(source) & {"AMP203"} == expected
