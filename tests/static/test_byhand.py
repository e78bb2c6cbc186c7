"""Gradients that are clipped by hand, in lists, by functions over lists, by a coefficient."""

from __future__ import annotations

import textwrap

import pytest

from tests.static.walked import ids

PROGRAM = """
import torch
from torch import nn

net = nn.Linear(16, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for x, y in loader():
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
{body}
    scaler.step(opt)
    scaler.update()
"""
LISTED = "grads = [p.grad for p in net.parameters() if p.grad is not None]\n"
COEFFICIENT = "total = torch.stack([g.norm() for g in grads]).norm()\ncoef = (1.0 / (total + 1e-6)).clamp(max=1.0)\n"
APPENDED = """
grads = []
for p in net.parameters():
    if p.grad is not None:
        grads.append(p.grad)
total = torch.norm(torch.stack([torch.norm(g) for g in grads]))
torch._foreach_div_(grads, total.clamp(min=1.0))
"""
SUMMED = """
total = 0.0
for p in net.parameters():
    total += p.grad.data.norm(2).item() ** 2
total = total ** 0.5
coef = 1.0 / (total + 1e-6)
if coef < 1:
    for p in net.parameters():
        p.grad.data.mul_(coef)
"""
AUGMENTED = """
total = torch.norm(torch.stack([p.grad.norm() for p in net.parameters()]))
for p in net.parameters():
    p.grad *= min(1.0, 1.0 / (total + 1e-6))
"""
EACH = "total = torch.stack(torch._foreach_norm(grads)).norm()\n"


def broken(body: str) -> set[str]:
    return ids(PROGRAM.format(body=textwrap.indent(body, "    ")))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (LISTED + COEFFICIENT + "for g in grads:\n    g.mul_(coef)", {"AMP210"}),
        (LISTED + COEFFICIENT + "for g in grads:\n    g *= coef", {"AMP210"}),
        (LISTED + EACH + "torch._foreach_mul_(grads, (1.0 / total).clamp(max=1.0))", {"AMP210"}),
        (LISTED + "torch._foreach_clamp_max_(grads, 1.0)", {"AMP202"}),
        (LISTED + "for p, g in zip(net.parameters(), grads):\n    g.clamp_(-1, 1)", {"AMP202"}),
        (
            APPENDED,
            {"AMP210"},
        ),
        (
            SUMMED,
            {"AMP210"},
        ),
        (
            AUGMENTED,
            {"AMP210"},
        ),
        (
            LISTED + "total = torch.nn.utils.get_total_norm(grads)\n"
            "torch.nn.utils.clip_grads_with_norm_(net.parameters(), 1.0, total)",
            {"AMP202"},
        ),
    ],
)
def test_scaled_gradients_are_clipped(body: str, found: set[str]) -> None:
    assert found <= broken(body) <= {"AMP202", "AMP210"}
    assert broken("scaler.unscale_(opt)\n" + body) == set()


@pytest.mark.parametrize(
    "change", ["torch._foreach_div_(grads, 4)", "for g in grads:\n    all_reduce(g)\n    g.div_(2)\n    g /= 2"]
)
def test_gradients_of_a_list_are_averaged(change: str) -> None:
    assert broken(LISTED + change) == set()


@pytest.mark.parametrize(
    "coefficient",
    [
        "1.0 / (total / scaler.get_scale())",
        "1.0 * scaler.get_scale() / total",
        "1.0 / (total * (1.0 / scaler.get_scale())).item()",
    ],
)
def test_scaled_gradients_are_clipped_by_a_limit_that_knows_the_scale(coefficient: str) -> None:
    assert broken(LISTED + EACH + f"torch._foreach_mul_(grads, min(1.0, {coefficient}))") == set()


def test_gradients_of_a_list_are_only_looked_at() -> None:
    assert broken(LISTED + "if not all(torch.isfinite(g).all() for g in grads):\n    print('overflow')") == set()
    assert broken(LISTED + "flat = torch.cat([g.view(-1) for g in grads])\nflat.div_(2)") == set()


CLEARED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.trunk(x))

def cancel(epoch, model):
    for name, weight in model.named_parameters():
        if "head" in name:
            weight.grad = None

def train({argument}loader):
    {made}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch, x in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        if epoch < 2:
            {clear}
        optimizer.step()
"""


@pytest.mark.parametrize(("argument", "made"), [("", "model = Net().cuda()"), ("model, ", "pass")])
@pytest.mark.parametrize(
    ("clear", "expected"),
    [
        ("cancel(epoch, model)", set()),
        ("for p in model.trunk.parameters(): p.grad = None", set()),
        ("model.trunk.zero_grad()", set()),
        ("for p in model.parameters(): p.grad = None", {"AMP212"}),
        ("for name, p in model.named_parameters(): p.grad = None", {"AMP212"}),
        ("model.zero_grad()", {"AMP212"}),
    ],
)
def test_a_part_whose_gradients_are_dropped_leaves_the_others_to_the_step(
    argument: str, made: str, clear: str, expected: set[str]
) -> None:
    assert ids(CLEARED.format(argument=argument, made=made, clear=clear)) == expected


SCALED = """
import torch
from torch import nn

class Scaled:
    def __init__(self, factor=2.0**16):
        self.{name}, self.good = factor, 0

    def backward(self, loss):
        (loss * self.{name}).backward()

    def step(self, opt, params):
        for p in params:
            p.grad.div_(self.{name})
        if not all(torch.isfinite(p.grad).all() for p in params):
            self.{name} {smaller}
            return
        opt.step()

net = nn.Linear(16, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaled = Scaled({factor})
for x, y in loader():
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    scaled.backward(loss)
    scaled.step(opt, list(net.parameters()))
"""


@pytest.mark.parametrize(
    ("name", "factor", "smaller", "found"),
    [
        ("loss_scale", "", "/= 2", set()),
        ("loss_scale", "", "= max(self.loss_scale / 2, 1.0)", set()),
        ("weight", "0.5", "= 0.25", {"AMP201"}),
    ],
)
def test_a_scale_that_changes_by_hand_is_known_by_its_name(
    name: str, factor: str, smaller: str, found: set[str]
) -> None:
    assert ids(SCALED.format(name=name, factor=factor, smaller=smaller)) == found


HELPED = """
import torch
from torch import nn

LOSS_SCALE = 2.0**14
WEIGHT = 0.5

def scaled(value):
    return value * {factor}

class Scaling:
    def __init__(self):
        self.{kept} = 2**15

    def __call__(self, value):
        return value * self.{kept}

net = nn.Linear(16, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaling = Scaling()
for x, y in loader():
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    {helper}(loss).backward()
    for p in net.parameters():
        p.grad.div_(LOSS_SCALE)
    opt.step()
"""


@pytest.mark.parametrize(
    ("helper", "factor", "kept", "found"),
    [
        ("scaled", "LOSS_SCALE", "cur_scale", set()),
        ("scaling", "WEIGHT", "cur_scale", set()),
        ("scaled", "WEIGHT", "cur_scale", {"AMP201"}),
        ("scaling", "LOSS_SCALE", "weight", {"AMP201"}),
    ],
)
def test_a_helper_may_scale_the_loss(helper: str, factor: str, kept: str, found: set[str]) -> None:
    assert ids(HELPED.format(helper=helper, factor=factor, kept=kept)) == found
