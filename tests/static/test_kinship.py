"""Which names may mean one model: what wraps it, what holds it, what it is called out of sight."""

from __future__ import annotations

import pytest

from tests.static.walked import ids

HANDED_ON = """
import torch
from torch import nn
from models import build_model, wrap


class Scaler:
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer, parameters, norm):
        self.scaler.scale(loss).backward()
        {unscale}
        torch.nn.utils.clip_grad_norm_(parameters, norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        optimizer.zero_grad()


def main(loader, args, criterion):
    model = build_model(args)
    {wrapped}
    optimizer = torch.optim.SGD({optimized}.parameters(), lr=0.1)
    scaler = Scaler()
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = criterion({run}(x), y)
        scaler(loss, optimizer, {run}.parameters(), 1.0)
"""


@pytest.mark.parametrize(
    ("wrapped", "optimized", "run"),
    [
        ("model, ema, replica = wrap(model, args)", "model", "replica"),
        ("replica = wrap(model)", "model", "replica"),
        ("ready = wrap(model); replica = wrap(ready)[0]", "model", "replica"),
        ("model = wrap(model); bare = model.module", "bare", "model"),
        ("model = nn.parallel.DistributedDataParallel(model); bare = model.module", "bare", "model"),
        (
            "bare = model\n    if args.ddp:\n        model = nn.DataParallel(model)\n        bare = model.module",
            "bare",
            "model",
        ),
    ],
)
def test_what_a_model_was_made_into_may_be_the_model(wrapped: str, optimized: str, run: str) -> None:
    names = {"wrapped": wrapped, "optimized": optimized, "run": run}
    assert ids(HANDED_ON.format(unscale="self.scaler.unscale_(optimizer)", **names)) == set()
    assert "AMP202" in ids(HANDED_ON.format(unscale="pass", **names))


UNSEEN = """
import torch
from trainers import Base


class Trainer(Base):
    def __init__(self, rate):
        super().__init__()
        self.optimizer = torch.optim.SGD({optimized}.parameters(), lr=rate)
        self.scaler = torch.amp.GradScaler("cuda")

    def after(self, x):
        with torch.autocast("cuda"):
            loss = self.loss(x)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_({clipped}.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""


@pytest.mark.parametrize(
    ("optimized", "clipped"),
    [("self.network", "self.model"), ("self.network.trainable()", "self.model"), ("self.raw_model", "self.ddp_model")],
)
def test_plain_names_of_what_was_set_out_of_sight_may_mean_one_model(optimized: str, clipped: str) -> None:
    assert ids(UNSEEN.format(optimized=optimized, clipped=clipped)) == set()


def test_a_copy_is_another_model() -> None:
    source = HANDED_ON.format(
        unscale="self.scaler.unscale_(optimizer)",
        wrapped="other = copy.deepcopy(model)",
        optimized="model",
        run="other",
    )
    assert "AMP202" in ids(f"import copy\n{source}")


WHOLE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, x):
        return self.body(x)

    def parts(self):
        return nn.ModuleDict({{"net": self}})


class Trainer:
    def __init__(self, args):
        self.model = Net().cuda()
        self.optimizer = torch.optim.SGD({optimized}.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    @property
    def network(self):
        return self.model.module if hasattr(self.model, "module") else self.model

    def after(self, x):
        with torch.autocast("cuda"):
            loss = self.model(x).mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        {unscale}
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()


trainer = Trainer(None)
for x in []:
    trainer.after(x)
"""


@pytest.mark.parametrize(
    "optimized",
    ["self.network", "self.network.parts()", "self.model.parts()", "nn.ModuleList([self.model])", "self.model"],
)
def test_what_a_property_or_a_container_gives_is_the_model_that_is_held(optimized: str) -> None:
    assert ids(WHOLE.format(optimized=optimized, unscale="self.scaler.unscale_(self.optimizer)")) == set()
    assert "AMP202" in ids(WHOLE.format(optimized=optimized, unscale="pass"))


PAIR = """
import torch


class Pair:
    def __init__(self, generator, discriminator):
        self.g, self.d = generator, discriminator
        self.g_step = torch.optim.Adam(generator.parameters())
        self.d_step = torch.optim.Adam(discriminator.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def train(self, x, y):
        self.g_step.zero_grad()
        self.d_step.zero_grad()
        with torch.autocast("cuda"):
            loss = (self.d(self.g(x)) - y).float().abs().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.g_step)
        {between}
        self.scaler.step(self.d_step)
        self.scaler.update()
"""


@pytest.mark.parametrize(("between", "expected"), [("self.scaler.update()", {"AMP206"}), ("pass", set())])
def test_what_an_optimizer_has_the_parameters_of_is_a_model(between: str, expected: set[str]) -> None:
    """``self.d`` was handed over; that it is a model is only said of it under its other name."""
    assert ids(PAIR.format(between=between)) == expected


CHOSEN = """
import torch
from torch import nn
from parallel import is_parallel

judge = nn.Linear(4, 4)

class A(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.autocast("cuda", enabled=False):
            self.layer = nn.Linear(4, 4)
    def forward(self, x):
        return self.layer(x)
    def trained(self):
        return nn.ModuleDict({"a": self})

class B(A):
    def trained(self):
        return nn.ModuleDict({"b": self})

class Base:
    def __init__(self, cfg):
        self.cfg = cfg
        if cfg.name == "a":
            model = A()
        elif cfg.name == "b":
            model = B()
        else:
            raise NotImplementedError
        if cfg.parallel:
            self.model = nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[0])
        else:
            self.model = model.cuda()

    @property
    def network(self):
        return self.model.module if is_parallel(self.model) else self.model

class Trainer(Base):
    def __init__(self, cfg):
        super().__init__(cfg)
        self.optimizer = torch.optim.AdamW(self.network.trained().parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, x):
        self.optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = judge(self.model(x)).mean()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(MODEL.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""


@pytest.mark.parametrize(("clipped", "expected"), [("self.model", set()), ("judge", {"AMP202"})])
def test_one_of_several_models_is_one_model(clipped: str, expected: set[str]) -> None:
    """Whichever a setting chose, what it gives of itself is a part of it, and another model is none."""
    assert ids(CHOSEN.replace("MODEL", clipped)) & {"AMP202"} == expected
