"""Models, optimizers, scalers and gradients that are handed on, held by other things, or dealt with out of sight."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.binding.project import Project
from amp_audit.static.source import lowering
from amp_audit.static.walking import paths
from tests.static.walked import ids, rules


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
    assert {found.rule.id for found in raw} == {"AMP302", "AMP303"}


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
        unused = scaler.scale(torch.ones(1))
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


@pytest.mark.parametrize(("second", "expected"), [("create_model()", set()), ("model", {"AMP221"})])
def test_two_calls_of_a_factory_out_of_sight_make_two_models(second: str, expected: set[str]) -> None:
    source = f"""
import torch
from factory import create_model

def train(loader):
    model = create_model().cuda()
    other = {second}
    one, two = torch.optim.Adam(model.parameters()), torch.optim.Adam(other.parameters())
    first, last = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
    for x in loader:
        one.zero_grad()
        two.zero_grad()
        with torch.autocast("cuda"):
            loss, loss2 = model(x).mean(), other(x).mean()
        first.scale(loss).backward()
        last.scale(loss2).backward()
        first.step(one)
        first.update()
        last.step(two)
        last.update()
"""
    raw, _ = paths.find(Project([lowering.lower("/project/main.py", source)], Path("/project")), rulebook.load())
    assert {found.rule.id for found in raw} & {"AMP221"} == expected


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        ("pass", {"AMP220"}),
        ("encoder.eval()", {"AMP220"}),
        ("for p in encoder.last.parameters(): p.requires_grad = True", set()),
        ("encoder.last.requires_grad_()", set()),
        ("encoder.last.weight.requires_grad = tuned", set()),
        ("encoder.last = nn.Linear(8, 8)", set()),
        ("encoder.add_module('adapter', nn.Linear(8, 8))", set()),
        ("setattr(encoder, 'last', nn.Linear(8, 8))", set()),
        ("encoder = wrapped_by_a_library(encoder)", set()),
        ("tune_last(encoder, 2)", set()),
        ("[m.requires_grad_(True) for m in encoder.modules() if isinstance(m, nn.LayerNorm)]", set()),
    ],
)
def test_a_frozen_model_is_so_until_a_part_of_it_may_be_trained_again(again: str, expected: set[str]) -> None:
    source = f"""
    import torch
    from torch import nn
    from library import tune_last, wrapped_by_a_library

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.last(self.first(x))

    def train(loader, tuned):
        encoder, head = Encoder(), nn.Linear(8, 2)
        for p in encoder.parameters():
            p.requires_grad = False
        {again}
        slow = torch.optim.SGD(encoder.parameters(), lr=0.1)
        fast = torch.optim.SGD(head.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler()
        for x in loader:
            slow.zero_grad(), fast.zero_grad()
            with torch.autocast("cuda"):
                loss = head(encoder(x)).mean()
            scaler.scale(loss).backward()
            scaler.step(fast)
            scaler.step(slow)
            scaler.update()
    """
    assert ids(source) == expected


SWEEP = """
import torch
from settings import parse_args
from models import build_model


def run(args, loader):
    model = build_model(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda", enabled=args.amp):
            loss = model(x).mean()
        if args.amp:
            scaler.scale(loss).backward()
            if x.last:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        else:
            loss.backward()
            if x.last:
                optimizer.step()
                optimizer.zero_grad()


def main(loader, sets):
    for one in sets:
        args = {parsed}
        run(args, loader)
"""


def test_settings_that_are_parsed_in_a_round_stay_as_they_are_within_it() -> None:
    assert "AMP204" not in ids(SWEEP.format(parsed="parse_args(one)"))
    assert "AMP204" in ids(SWEEP.format(parsed="parse_args(one)").replace("args.amp:", "x.amp:"))


ZIPPED = """
import torch
from torch import nn


def train(loader, heads, scalers, optimizers, criterion):
    for x, y in loader:
        with torch.autocast("cuda"):
            outputs = [head(x) for head in heads]
        losses = [criterion(o, y) for o in outputs]
        {scaled}
        [s.step(o) for s, o in zip(scalers, optimizers)]
        [s.update() for s in scalers]
        [o.zero_grad() for o in optimizers]


def main(loader, settings, criterion):
    heads = [nn.Linear(4, 4).cuda() for _ in settings]
    optimizers, scalers = [], []
    for head, keys in zip(heads, settings):
        optimizers += [torch.optim.AdamW(head.parameters(), **keys)]
        scalers += [torch.amp.GradScaler("cuda")]
    train(loader, heads, scalers, optimizers, criterion)
"""


def test_scalers_zipped_with_losses() -> None:
    assert ids(ZIPPED.format(scaled="[s.scale(l).backward() for s, l in zip(scalers, losses)]")) == set()
    assert ids(ZIPPED.format(scaled="[l.backward() for l in losses]")) & {"AMP209", "AMP201", "AMP204"}


def test_what_two_dicts_hold_by_the_same_name_is_not_the_same() -> None:
    """Dicts that a loop fills, or not: the schedules of agents are no optimizers of theirs."""
    source = """
    import torch

    class Agent:
        def __init__(self, uids, policies, cfg):
            self.policies, self.cfg = policies, cfg
            self.scaler = torch.amp.GradScaler("cuda", enabled=cfg.mixed_precision)
            self.optimizers = {}
            self.schedulers = {}
            for uid in uids:
                policy = policies[uid]
                if policy is not None:
                    self.optimizers[uid] = torch.optim.Adam(policy.parameters(), lr=cfg.lr)
                    self.schedulers[uid] = cfg.scheduler[uid](self.optimizers[uid])

        def update(self, uid, x):
            policy = self.policies[uid]
            for batch in x:
                with torch.autocast("cuda", enabled=self.cfg.mixed_precision):
                    loss = policy(batch).mean()
                self.optimizers[uid].zero_grad()
                self.scaler.scale(loss).backward()
                self.scaler.unscale_(self.optimizers[uid])
                self.scaler.step(self.optimizers[uid])
                self.scaler.update()
            if self.cfg.scheduler[uid]:
                self.ADVANCED[uid].step()
    """
    assert ids(source.replace("ADVANCED", "schedulers")) == set()
    assert "AMP203" in ids(source.replace("ADVANCED", "optimizers"))


_STEPPED = """
import torch

def main(factory, model, loader):
    optimizer = factory.{make}()
    second = factory.{make}()
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.unscale_({other})
        scaler.step(optimizer)
        scaler.step({other})
        scaler.update()
        optimizer.zero_grad()
        second.zero_grad()
"""


@pytest.mark.parametrize("make", ["create_optimizer", "build", "MagicMock"])
def test_a_maker_out_of_sight_makes_another_one_in_each_call(make: str) -> None:
    assert ids(_STEPPED.format(make=make, other="second")) == set()
    assert "AMP207" in ids(_STEPPED.format(make=make, other="optimizer"))


@pytest.mark.parametrize(("before", "expected"), [("", set()), ("second.unscale_(optimizer)", {"AMP207"})])
def test_a_getter_of_the_scaler_gives_the_same_one_again(before: str, expected: set[str]) -> None:
    source = f"""
import torch

def train(engine, model, optimizer, loader):
    first = engine.get_scaler()
    second = engine.get_scaler()
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        first.scale(loss).backward()
        {before}
        second.unscale_(optimizer)
        second.step(optimizer)
        first.update()
"""
    assert ids(source) == expected


@pytest.mark.parametrize(("name", "expected"), [("lr_scheduler", set()), ("second", {"AMP203"})])
def test_what_is_called_a_scheduler_is_no_optimizer_whatever_made_it(name: str, expected: set[str]) -> None:
    source = """
import torch

def train(model, optimizer, {name}, loader):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        {name}.step()

def main(factory, model, loader):
    optimizer, other = factory.part(), factory.part()
    train(model, optimizer, other, loader)
"""
    assert ids(source.format(name=name)) - {"AMP217"} == expected


@pytest.mark.parametrize(
    ("made", "unscale", "expected"),
    [
        ("partial(nn.utils.clip_grad_norm_, max_norm=cfg.norm)", "pass", {"AMP202"}),
        ("nn.utils.clip_grad_value_", "pass", {"AMP202"}),
        ("partial(nn.utils.clip_grad_norm_, max_norm=cfg.norm)", "self.scaler.unscale_(self.optimizer)", set()),
        ("partial(print, cfg.norm)", "pass", set()),
    ],
)
def test_a_function_that_another_one_chose_clips_where_it_is_called(
    made: str, unscale: str, expected: set[str]
) -> None:
    source = f"""
from functools import partial
import torch
from torch import nn

def clipper(cfg):
    clip = None
    if cfg.norm is not None:
        clip = {made}
    return clip

class Manager:
    def __init__(self, model, cfg):
        self.model = model
        self.clip = clipper(cfg)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def train(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = self.model(x).mean()
            self.scaler.scale(loss).backward()
            if self.clip is not None:
                {unscale}
                self.clip(self.model.parameters())
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""
    assert ids(source) == expected


NAMED_OPTIMIZER = """
import torch

def fit(model, loader, name, {given}):
    scaler = torch.amp.GradScaler("cuda")
    {made}
    plan = getattr(torch.optim.lr_scheduler, name)(optimizer)
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        plan.step()

def folds(build, loader, name):
    optimizer = getattr(torch.optim, name)(build().parameters())
    for fold in range(4):
        model = build()
        fit(model, loader, name, optimizer)
"""


@pytest.mark.parametrize(
    ("given", "made", "expected"),
    [
        ("optimizer", "pass", {"AMP214"}),
        ("_", "optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)", set()),
    ],
)
def test_an_optimizer_whose_class_a_setting_names_is_another_one_each_time(
    given: str, made: str, expected: set[str]
) -> None:
    assert ids(NAMED_OPTIMIZER.format(given=given, made=made)) - {"AMP217"} == expected


def test_a_step_that_takes_a_batch_is_no_optimizers() -> None:
    source = """
import torch


class Trainer:
    def __init__(self, model):
        self.model, self.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def epoch(self, loader):
        for batch in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = self.step(batch)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""
    assert ids(source) == set()
    assert ids(source.replace("self.step(batch)", "self.step(self.optimizer)")) >= {"AMP303"}


CRITERION = """
import torch
from torch import nn

class GANLoss(nn.Module):
    pass

class Trainer:
    def __init__(self):
        self.criterion = GANLoss()
        self.optimizer_G = torch.optim.Adam(self.G.parameters())
        self.optimizer_D = torch.optim.Adam(self.D.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self):
        loss_G = self.criterion(self.D(self.fake), True)
        self.scaler.scale(loss_G).backward()
        self.scaler.step(self.optimizer_G)
        {first}
        with torch.autocast("cuda"):
            loss_D = self.criterion({guess}, True)
        self.scaler.scale(loss_D).backward()
        {then}
        self.scaler.step(self.optimizer_D)
        self.scaler.update()
"""
CLEAR = "self.optimizer_D.zero_grad()"


@pytest.mark.parametrize(
    ("first", "guess", "then", "expected"),
    [
        (CLEAR, "self.guess", "pass", set()),
        (CLEAR, "self.nets['D'](self.real)", "pass", set()),
        (CLEAR, "self.D(self.real)", "pass", set()),
        ("pass", "self.D(self.real)", CLEAR, {"AMP212"}),
    ],
)
def test_a_criterion_leads_back_to_where_its_inputs_come_from(
    first: str, guess: str, then: str, expected: set[str]
) -> None:
    assert ids(CRITERION.format(first=first, guess=guess, then=then)) & {"AMP212"} == expected
