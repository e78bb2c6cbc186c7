"""Optimizers and schedules that are handed to other code and come back, perhaps with something around them."""

from __future__ import annotations

import pytest

from tests.static.walked import ids

HARNESS = """
import torch
from torch import nn
from schedules import cosine


class Stepper(torch.optim.Optimizer):
    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler = optimizer, scaler

    def step(self, closure=None):
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Harness:
    def __init__(self):
        {scaler}

    def backward(self, loss):
        {backward}

    def prepare(self, *things):
        ready = tuple(self.ready(thing) for thing in things)
        return ready if len(ready) > 1 else ready[0]

    def ready(self, thing):
        return Stepper(thing, self.scaler) if isinstance(thing, torch.optim.Optimizer) else thing


def train(loader, model):
    harness = Harness()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = cosine(optimizer)
    {prepare}
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        harness.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
"""
OWN = {"scaler": 'self.scaler = torch.amp.GradScaler("cuda")', "backward": "self.scaler.scale(loss).backward()"}


@pytest.mark.parametrize(
    "prepare",
    [
        "optimizer = harness.prepare(optimizer)",
        "model, optimizer = harness.prepare(model, optimizer)",
        "optimizer, schedule = harness.prepare(optimizer, schedule)",
        "things = harness.prepare(optimizer, loader)\n    optimizer = things[0]",
    ],
)
def test_an_optimizer_that_an_object_with_a_scaler_gave_back_may_step_through_that(prepare: str) -> None:
    assert "AMP203" not in ids(HARNESS.format(prepare=prepare, **OWN))


@pytest.mark.parametrize(
    "prepare",
    [
        "pass",
        "loader = harness.prepare(loader)",  # not the optimizer
        "harness.prepare(optimizer)",  # what came back is left lying
        "optimizer = cosine(optimizer)",  # a function that has no scaler
    ],
)
def test_the_bare_optimizer_steps_past_the_scaler(prepare: str) -> None:
    assert "AMP203" in ids(HARNESS.format(prepare=prepare, **OWN))


def test_an_object_that_has_no_scaler_wraps_none_around_an_optimizer() -> None:
    plain = {"scaler": "self.scaler = None", "backward": 'torch.amp.GradScaler("cuda").scale(loss).backward()'}
    assert "AMP203" in ids(HARNESS.format(prepare="optimizer = harness.prepare(optimizer)", **plain))


def test_a_schedule_that_went_with_its_optimizer_may_wait_for_it() -> None:
    both = "optimizer, schedule = harness.prepare(optimizer, schedule)"
    alone = "optimizer = harness.prepare(optimizer)"
    assert "AMP217" not in ids(HARNESS.format(prepare=both, **OWN))
    assert "AMP217" in ids(HARNESS.format(prepare=alone, **OWN))


HANDED = """
import torch
from torch import nn
from engine import {imported}


def train(loader, model, args{given}):
    scaler = torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {exchange}
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        {scaled}.scale(loss).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("given", "exchange", "scaled"),
    [
        ("", "optimizer = wrap(optimizer, scaler)", "scaler"),
        ("", "optimizer, scaler = wrap(optimizer, scaler=scaler)", "scaler"),
        (", engine", "optimizer = engine.prepare(optimizer)", "engine.scaler"),
    ],
)
def test_code_out_of_sight_that_knows_the_scaler_may_have_put_both_together(
    given: str, exchange: str, scaled: str
) -> None:
    assert "AMP203" not in ids(HANDED.format(imported="wrap", given=given, exchange=exchange, scaled=scaled))


@pytest.mark.parametrize(
    ("given", "exchange", "scaled"),
    [
        ("", "optimizer = wrap(optimizer)", "scaler"),
        (", engine", "optimizer = engine.prepare(optimizer)", "scaler"),
        (", engine", "pass", "engine.scaler"),
    ],
)
def test_code_that_does_not_know_the_scaler_has_not(given: str, exchange: str, scaled: str) -> None:
    assert "AMP203" in ids(HANDED.format(imported="wrap", given=given, exchange=exchange, scaled=scaled))


def test_what_builds_an_optimizer_from_settings_was_handed_none() -> None:
    source = """
        import torch
        from torch import nn
        from optimizers import Factory


        class Trainer(Factory):
            def __init__(self, model, args):
                self.model = model
                self.scaler = torch.amp.GradScaler("cuda")
                self.optimizer = self.choose(args.optimizer, model)

            def step(self, x, y):
                self.optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.mse_loss(self.model(x), y)
                self.scaler.scale(loss).backward()
                self.optimizer.step()
        """
    assert "AMP203" in ids(source)


LATER = """
import contextlib
import torch
from torch import nn
from background import later, report


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for number, (x, y) in enumerate(loader):
        with contextlib.ExitStack() as stack:
            {handed}
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
"""


@pytest.mark.parametrize(
    "handed",
    [
        "stack.callback(scaler.update); stack.callback(optimizer.zero_grad)",
        "stack.callback(lambda: (scaler.update(), optimizer.zero_grad()))",
        "later(scaler.update, optimizer.zero_grad)",
    ],
)
def test_a_method_that_is_handed_away_may_be_called_later(handed: str) -> None:
    assert ids(LATER.format(handed=handed)) == set()


@pytest.mark.parametrize(
    "handed",
    [
        "pass",
        "report(step=number, update=x)",
        "stack.callback(lambda: report.update(number))",
        "later(model.update, x.step)",
    ],
)
def test_what_is_handed_away_and_is_none_of_them_changes_nothing(handed: str) -> None:
    assert ids(LATER.format(handed=handed)) >= {"AMP205"}
