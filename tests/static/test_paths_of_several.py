"""Several models, optimizers and scalers: which of them is meant, and where one stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.model import Confidence
from amp_audit.static.binding.project import Project
from amp_audit.static.source import lowering
from amp_audit.static.walking import paths
from tests.static.pathing import BASE, LOOP, STEP, UNSCALE, UPDATE, found, line, rules


def test_two_networks_are_kept_apart() -> None:
    source = """
import torch
from torch import nn
G, D = nn.Linear(4, 4), nn.Linear(4, 1)
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())
scaler = torch.amp.GradScaler("cuda")
for x in []:
    opt_d.zero_grad()
    with torch.autocast("cuda"):
        fake = G(x)
        loss_d = D(fake.detach()).mean() - D(x).mean()
    scaler.scale(loss_d).backward()
    scaler.unscale_(opt_d)
    nn.utils.clip_grad_norm_(D.parameters(), 1.0)
    scaler.step(opt_d)
    opt_g.zero_grad()
    with torch.autocast("cuda"):
        loss_g = -D(fake).mean()
    scaler.scale(loss_g).backward()
    scaler.unscale_(opt_g)
    nn.utils.clip_grad_norm_(G.parameters(), 1.0)
    scaler.step(opt_g)
    scaler.update()
"""
    assert rules(source) == set()
    missing = source.replace("    scaler.unscale_(opt_d)\n", "")
    assert found(missing) == {("AMP202", "main", line(missing, "D.parameters(), 1.0"))}


def test_optimizers_in_a_loop_are_different_ones() -> None:
    source = """
import torch

def step_all(models, optimizers, scaler, losses):
    for loss in losses:
        scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
"""
    assert rules(source) == set()


def test_only_a_grad_scaler_is_one() -> None:
    source = """
from sklearn.preprocessing import StandardScaler
import torch
from torch import nn

def prepare(frame, model, optimizer):
    scaler = StandardScaler()
    frame = scaler.fit_transform(frame)
    loss = model(frame).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""
    assert rules(source) == set()


def test_a_borrowed_scaler_lowers_confidence() -> None:
    source = """
import torch
from torch import nn

def train_step(model, optimizer, scaler, x, y):
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
    module = lowering.lower("/project/main.py", source)
    raw, _ = paths.find(Project([module], Path("/project")), rulebook.load())
    assert [(f.rule.id, f.confidence) for f in raw] == [("AMP202", Confidence.MEDIUM)]


@pytest.mark.parametrize("parameters", ["model.head.parameters()", "model.parameters()", "model.body.parameters()"])
@pytest.mark.parametrize("made", ["Net()", "build(Net)"])
def test_an_optimizer_of_a_part_is_fed_by_the_whole(parameters: str, made: str) -> None:
    source = f"""
import torch
from torch import nn
from library import build

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))

model = {made}
model.train()
optimizer = torch.optim.SGD({parameters}, lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, y in [(1, 2)]:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    {UNSCALE}
    nn.utils.clip_grad_norm_({parameters}, 1.0)
    {STEP}
    {UPDATE}
"""
    assert rules(source) == set()
    missing = source.replace(f"    {UNSCALE}\n", "")
    assert rules(missing) == {"AMP202"}


def test_whose_gradients_were_unscaled_is_not_known_of_several_unknown_optimizers() -> None:
    source = (
        BASE
        + LOOP
        + """
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
"""
    )
    assert rules(source.replace("optimizer = torch", "optimizers = build(model); optimizer = torch")) == set()


@pytest.mark.parametrize(
    ("step", "expected"),
    [("self.scaler.step(self.optimizer, closure)", set()), ("self.optimizer.step(closure)", {"AMP203", "AMP206"})],
)
def test_an_optimizer_class_that_hands_its_step_to_a_scaler_is_followed(step: str, expected: set[str]) -> None:
    source = f"""
import torch
from torch import nn

class Wrapped(torch.optim.Optimizer):
    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler = optimizer, scaler

    def step(self, closure=None):
        {step}
        self.scaler.update()

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

model = nn.Linear(4, 2)
scaler = torch.amp.GradScaler("cuda")
optimizer = Wrapped(torch.optim.SGD(model.parameters(), lr=0.1), scaler)
for x, y in [(1, 2)]:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    optimizer.step()
"""
    assert rules(source) == expected


FACTORY = """
import torch
from torch import nn


def build():
    model = nn.Linear(4, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def make():
    return nn.Linear(4, 4)


def main(x):
    {built}
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda"):
        loss = one(x).mean() + two(x).mean()
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
"""


OPTIMIZERS = "first, second = torch.optim.SGD(one.parameters(), 0.1), torch.optim.SGD(two.parameters(), 0.1)"


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        ("(one, first), (two, second) = build(), build()", set()),
        (f"one, two = make(), make(); {OPTIMIZERS}", set()),
        (f"one = two = nn.Linear(4, 4); {OPTIMIZERS}", {"AMP221"}),
    ],
)
def test_what_a_factory_builds_for_two_callers_are_two_things(built: str, expected: set[str]) -> None:
    text = FACTORY.replace("{built}", built)
    raw, _ = paths.find(Project([lowering.lower("/project/main.py", text)], Path("/project")), rulebook.load())
    assert {found.rule.id for found in raw} == expected


@pytest.mark.parametrize("length", range(150, 250, 7))
def test_a_model_with_a_long_history_is_one_model(length: int) -> None:
    source = f"""
import torch
from elsewhere import build


def train(settings, loader):
    model = build(settings.{"x" * length})
    model.train()
    optimizer = make(model)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def make(net):
    return torch.optim.SGD(net.parameters(), lr=0.1)
"""
    raw, _ = paths.find(Project([lowering.lower("/project/main.py", source)], Path("/project")), rulebook.load())
    assert {found.rule.id for found in raw} == {"AMP202"}


SHARED = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1))
weights = torch.optim.SGD({}, lr=0.1)
biases = torch.optim.Adam([p for p in model.parameters() if p.ndim < 2])
for x in torch.randn(8, 3, 4):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).mean()
    loss.backward()
    {}.zero_grad()
    {}.step()
    biases.zero_grad()
    weights.zero_grad()
"""


@pytest.mark.parametrize(
    ("group", "cleared", "stepped", "expected"),
    [
        ("[p for p in model.parameters() if p.ndim > 1]", "biases", "weights", set()),
        ("[p for p in model.parameters() if p.ndim > 1]", "weights", "biases", set()),
        ("model.parameters()", "biases", "weights", set()),
        ("model.parameters()", "weights", "biases", {"AMP212"}),
    ],
)
def test_an_optimizer_of_some_parameters_clears_no_others(
    group: str, cleared: str, stepped: str, expected: set[str]
) -> None:
    assert rules(SHARED.format(group, cleared, stepped)) == expected


ASKED = """
import torch
from torch import nn

def make_scaler(device="cuda", **options):
    return torch.amp.GradScaler(device, **options)

def the_scaler():
    return torch.amp.GradScaler("cuda")

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    scaler = {}
    for x in [1, 2]:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("make_scaler(init_scale=8.0)", "scaler = make"),
        ("the_scaler()", 'return torch.amp.GradScaler("cuda")'),
        ("torch.amp.GradScaler()", "scaler = torch"),
    ],
)
def test_a_scaler_stands_where_it_is_asked_for(call: str, text: str) -> None:
    source = ASKED.format(call)
    assert found(source) == {("AMP214", "main", line(source, text))}


TRAINED = """
import torch, models

model = models.build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in [1, 2]:
    optimizer.zero_grad()
    loss = model(x).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ("def build():\n    return REGISTRY['net']()", {"AMP215"}),
        ("import torch\ndef build():\n    return torch.autocast('cuda')(REGISTRY['net']())", set()),
        ("import torch\ndef build():\n    return REGISTRY['net']().to(torch.float16)", set()),
    ],
)
def test_a_scaler_stands_alone_only_where_nothing_in_the_project_speaks_of_half_precision(
    models: str, expected: set[str]
) -> None:
    modules = [lowering.lower(f"/project/{name}.py", code) for name, code in (("main", TRAINED), ("models", models))]
    raw, _ = paths.find(Project(modules, Path("/project")), rulebook.load())
    assert {found.rule.id for found in raw} & {"AMP215"} == expected


@pytest.mark.parametrize("scaled", [True, False])
def test_of_optimizers_built_out_of_sight_the_second_is_clipped_in_time(scaled: bool) -> None:
    each = "[p for group in optimizer.param_groups for p in group['params']]"
    source = f"""
import torch
from torch import nn
from elsewhere import build
model, optimizers = build()
for x in []:
    for optimizer in optimizers:
        optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.{"float16" if scaled else "bfloat16"}):
        loss = model(x).mean()
    {"scaler.scale(loss)" if scaled else "loss"}.backward()
    for optimizer in optimizers:
        {"scaler.unscale_(optimizer)" if scaled else "pass"}
        nn.utils.clip_grad_norm_({each}, 1.0)
        {"scaler.step(optimizer)" if scaled else "optimizer.step()"}
    {"scaler.update()" if scaled else ""}
"""
    source = source.replace(
        "build()\n", 'build()\nscaler = torch.amp.GradScaler("cuda")\n' if scaled else "build()\n", 1
    )
    assert "AMP211" not in rules(source)


EPOCHS = """
import torch
from torch import nn

def epoch(model: nn.Module, criterion: nn.Module, loader, optimizer, args):
    scaler = torch.amp.GradScaler("cuda")
    model.train()
    criterion.train()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

def main(args, loader):
    model, criterion = build(args)
    optimizer = torch.optim.AdamW(model.parameters())
    {other}
    for _ in range(args.epochs):
        epoch(model, criterion, loader, optimizer, args)
"""


@pytest.mark.parametrize(
    ("other", "crossed"), [("pass", False), ("later = torch.optim.AdamW(criterion.parameters())", True)]
)
def test_gradients_that_no_optimizer_has_are_no_other_scalers(other: str, crossed: bool) -> None:
    text = EPOCHS.format(other=other)
    raw, _ = paths.find(Project([lowering.lower("/project/main.py", text)], Path("/project")), rulebook.load())
    assert ("AMP221" in {found.rule.id for found in raw}) is crossed


HELD = """
import torch

class Trainer:
    def start(self):
        model, other = self.build(), self.build()
        return {{"scaler": torch.amp.GradScaler("cuda"), "optimizer": torch.optim.SGD(model.parameters(), 0.1),
                 "model": {model}}}

    def train(self, loader):
        state = self.start()
        scaler, optimizer, model = state["scaler"], state["optimizer"], state["model"]
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
"""


@pytest.mark.parametrize(("model", "clipped"), [("model", False), ("other", True)])
def test_a_model_that_a_dict_of_states_holds_is_that_model(model: str, clipped: bool) -> None:
    text = HELD.format(model=model)
    raw, _ = paths.find(Project([lowering.lower("/project/main.py", text)], Path("/project")), rulebook.load())
    assert ("AMP202" in {found.rule.id for found in raw}) is clipped
