"""Settings that choose paths: which of them fork any, which may be off, and which stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.binding.project import Project
from amp_audit.static.source import lowering
from amp_audit.static.walking import paths
from tests.static.walked import ids


def test_arms_that_end_in_an_error_fork_no_paths() -> None:
    """Twelve settings that choose what is built, each of several or an error: 4 ** 12 paths if each were followed."""
    parts = "\n".join(
        f"""
    if args.part{number} == "a":
        layers["{number}"] = A()
    elif args.part{number} == "b":
        layers["{number}"] = B()
    elif args.part{number} == "c":
        layers["{number}"] = C()
    else:
        raise ValueError(args.part{number})"""
        for number in range(12)
    )
    source = f"""
import torch
from torch import nn
from options import args
class A(nn.Module):
    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            return x
class B(A):
    pass
class C(A):
    pass
def build():
    layers = {{}}
    {parts}
    return nn.ModuleDict(layers)
model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in [1, 2]:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
    raw, notes = paths.find(Project([lowering.lower("/project/main.py", source)], Path("/project")), rulebook.load())
    assert notes == []
    assert {found.rule.id for found in raw} == {"AMP202"}


def test_a_setting_whose_other_values_are_refused_stays_decided() -> None:
    source = """
import torch
from torch import nn
from options import args
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
if args.clip and not args.unscale:
    raise SystemExit("clipping needs unscaled gradients")
for x in [1, 2]:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    if args.unscale:
        scaler.unscale_(optimizer)
    if args.clip:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
    assert ids(source) == set()
    assert ids(source.replace("    raise SystemExit", "    print")) == {"AMP202"}


@pytest.mark.parametrize("imported", ["from options import args", "from absl import flags\nargs = flags.FLAGS"])
@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("args.unscale", {"AMP202"}),
        ("args.unscale is not None", {"AMP202"}),
        ("torch.version.hip", {"AMP202"}),
        ("torch.backends.cudnn.enabled", {"AMP202"}),
        ("nn.Linear", set()),
        ("torch.float16 is not None", set()),
    ],
)
def test_a_setting_that_was_not_found_may_be_off(imported: str, test: str, expected: set[str]) -> None:
    source = f"""
import torch
from torch import nn
{imported}
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x in [1, 2]:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    if {test}:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
    assert ids(source) == expected


def test_a_scaler_that_a_setting_of_another_file_switches_is_off_with_it() -> None:
    source = """
import torch
from torch import nn
from absl import flags
FLAGS = flags.FLAGS
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=FLAGS.half)
for x in [1, 2]:
    optimizer.zero_grad()
    with torch.autocast("cuda", enabled=FLAGS.half):
        loss = model(x).mean()
    if FLAGS.half:
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
    else:
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
    assert ids(source) == set()
    assert ids(source.replace("    if FLAGS.half:", "    if FLAGS.accelerated:")) >= {"AMP204"}


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ('args.precision.startswith("16")', set()),
        ('"mixed" in args.precision.lower().split("-")', set()),
        ("args.schedule.advance()", {"AMP202"}),
    ],
)
def test_methods_of_texts_give_the_same_whenever_they_are_called(test: str, expected: set[str]) -> None:
    source = f"""
import torch
from torch import nn
from options import load
args = load()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda") if {test} else None
for x in [1, 2]:
    optimizer.zero_grad()
    with torch.autocast("cuda", enabled=scaler is not None):
        loss = model(x).mean()
    if scaler is not None:
        scaler.scale(loss).backward()
    else:
        loss.backward()
    if {test}:
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
"""
    assert ids(source) & {"AMP202"} == expected
