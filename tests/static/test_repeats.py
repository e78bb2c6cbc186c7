"""Methods that loops call on one object again and again, and those of which another one comes in between."""

from __future__ import annotations

import textwrap

import pytest

from tests.static.pathing import found, rules
from tests.static.walked import ids

WRAPPER = """
import torch


class Scaling:
    def __init__(self, info):
        self.scaler = torch.amp.GradScaler("cuda", enabled=info.half)

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def clip(self, model, optimizer, most):
        norm = -1.0
        if most != 0.0:
            self.scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), most).item()
        return norm

    def step(self, optimizer):
        self.scaler.step(optimizer)

    def update(self):
        self.scaler.update()


def train(model, optimizer, loader, info, load):
    scaling = load(info.name)(info)
    for x in loader:
        with torch.autocast("cuda", enabled=info.half):
            loss = model(x).mean()
        scaling.backward(loss)
        scaling.clip(model, optimizer, info.most)
        scaling.step(optimizer)
        scaling.update()
        optimizer.zero_grad()
"""

OTHER = """
def elsewhere(meters, x):
    for _ in range(3):
        meters.update()
        meters.clip(x, x, 1.0)
"""


@pytest.mark.parametrize("name", ["scaling", "scaler", "grad_scaler"])
@pytest.mark.parametrize("more", ["", OTHER])
def test_the_parts_of_a_step_are_not_called_twice_in_a_row(name: str, more: str) -> None:
    assert ids(WRAPPER.replace("scaling", name) + more) == set()


TRAINER = """
import torch


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def one_step(self, x):
        with torch.autocast("cuda"):
            loss = self.model(x).mean()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def report(self, x):
        print(x)


def run(trainer, loader):
    for x in loader:
        trainer.one_step(x)
        {more}
"""


@pytest.mark.parametrize("more", ["pass", "trainer.report(x)"])
def test_a_whole_step_that_a_loop_calls_meets_its_next_round(more: str) -> None:
    """``unscale_`` again, with no ``update`` since: only the second round shows it."""
    assert "AMP207" in ids(textwrap.dedent(TRAINER).format(more=more))


EPOCHS = """
import torch


class Runner:
    def __init__(self, config):
        self.config = config

    def train_fn(self, loader, model, optimizer):
        scaler = torch.cuda.amp.GradScaler()
        for step, x in enumerate(loader):
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    def valid_fn(self, loader, model, losses):
        for step, x in enumerate(loader):
            with torch.no_grad(), torch.autocast("cuda"):
                losses.update(model(x).mean())
        {more}


def run(runner, loaders, model, optimizer, losses):
    for epoch in range(9):
        runner.train_fn(loaders[0], model, optimizer)
        runner.valid_fn(loaders[1], model, losses)
"""


@pytest.mark.parametrize(("more", "expected"), [("pass", True), ("self.config.optimizer.step()", False)])
def test_an_evaluation_is_no_part_of_a_step(more: str, expected: bool) -> None:
    """Each epoch makes a scaler anew (AMP214): only the second round shows it, whatever is evaluated in between."""
    assert ("AMP214" in ids(textwrap.dedent(EPOCHS).format(more=more))) is expected


OWN_SCALING = """
def train(model, optimizer, scaler, loader):
    for x in loader:
        loss = scaler.scale(model(x).mean())
        loss.backward()
        {check}
        optimizer.step(scale=1.0 / scaler.loss_scale)
        scaler.update()
        optimizer.zero_grad()
"""


def test_a_scaler_with_methods_of_its_own_is_none_of_torch() -> None:
    assert ids(OWN_SCALING.format(check="scaler.check_overflow(1.0)")) == set()
    assert "AMP203" in ids(OWN_SCALING.format(check="pass"))


REPEATED = """
import torch
from torch import nn

class Trainer:
    def __init__(self, args):
        self.args = args

    def fit_epoch(self, loader, model, optimizer):
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("for epoch in range(9): trainer.fit_epoch(loader, model, optimizer)", {"AMP214"}),
        ("while True: trainer.fit_epoch(loader, model, optimizer)", {"AMP214"}),
        ("trainer.fit_epoch(loader, model, optimizer)", set()),
        (
            "for fold in folds:\n    model, optimizer = build(fold)\n    trainer.fit_epoch(loader, model, optimizer)",
            set(),
        ),
        ("for fold in folds:\n    trainer = build(fold)\n    trainer.fit_epoch(loader, model, optimizer)", set()),
    ],
)
def test_what_a_loop_elsewhere_calls_on_something_out_of_sight(loop: str, expected: set[str]) -> None:
    main = "from registry import build\ndef main(loader, model, optimizer, folds, name):\n    trainer = build(name)\n"
    source = main + textwrap.indent(loop, "    ")
    assert {rule for rule, _, _ in found(REPEATED, source, names=("other",))} == expected


@pytest.mark.parametrize("loop", ["for x in loader: net.eval(); net.train()", "while True: net.train(True)"])
def test_setting_a_model_to_training_repeats_no_method_of_that_name(loop: str) -> None:
    source = REPEATED.replace("fit_epoch(self, loader", "train(self, loader")
    assert rules(source + f"\ndef prepare(net, loader):\n    {loop}\n") == set()
    assert rules(source + "\ndef run(trainer):\n    while True: trainer.train(loader, model, optimizer)\n") == {
        "AMP214"
    }


def test_a_function_repeats_for_no_method_of_its_name() -> None:
    source = """
import torch
from torch import nn

def update(loader, model, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
    assert rules(source) == set()
