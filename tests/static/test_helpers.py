"""Functions without a telling word: what they do where they are called, and what they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.static.found import lines
from tests.static.walked import ids

START = """
import copy
import torch
from torch import nn

net = nn.Linear(4, 3).cuda()
opt = torch.optim.SGD(net.parameters(), 0.1)
gs = torch.amp.GradScaler("cuda")
"""

STEP = """
for x in torch.randn(9, 2, 4).cuda():
    opt.zero_grad()
    {before}
    with torch.autocast("cuda", dtype=torch.float16):
        {inside}
    gs.scale(loss).backward()
    {between}
    gs.step(opt)
    gs.update()
"""


def program(helper: str, before: str = "pass", inside: str = "loss = net(x).mean()", between: str = "pass") -> str:
    return START + helper + STEP.format(before=before, inside=inside, between=between)


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        ("torch.tensor(a + b, requires_grad=True)", {"AMP204"}),
        ("torch.tensor(a + b)", set()),
        ("(a + b).clone()", set()),
        ("torch.zeros(3, requires_grad=True).sum() + a + b", set()),  # a term that somebody trains
    ],
)
def test_a_helper_gives_a_leaf_back(returned: str, found: set[str]) -> None:
    helper = f"def combine(a, b):\n    return {returned}\n"
    assert ids(program(helper, inside="o = net(x); loss = combine(o.mean(), o.abs().mean())")) == found


CLIP = """
def adaptive_clip(params, limit=0.01):
    for p in params:
        gn, pn = p.grad.norm(), p.detach().norm()
        if gn > limit * pn:
            p.grad.mul_(limit * pn / gn)
"""


@pytest.mark.parametrize(
    ("between", "found"),
    [
        ("adaptive_clip(net.parameters())", {"AMP210"}),
        ("adaptive_clip(p for p in net.parameters())", {"AMP210"}),
        ("gs.unscale_(opt); adaptive_clip(net.parameters())", set()),
    ],
)
def test_a_helper_goes_through_the_gradients_it_is_given(between: str, found: set[str]) -> None:
    assert ids(program(CLIP, between=between)) == found


SYNC = """
target = copy.deepcopy(net)

{decorator}
def sync():
    for a, b in zip(target.parameters(), net.parameters()):
        a.data.mul_(0.99).add_(b.data, alpha=0.01)
"""


@pytest.mark.parametrize("decorator", ["", "@torch.no_grad()"])
@pytest.mark.parametrize(
    ("inside", "found"),
    [
        ("a = target(x); sync(); loss = (net(x) - a - target(x)).mean()", {"AMP304"}),
        ("sync(); loss = (net(x) - target(x)).mean()", set()),  # nothing is cached yet
        ("loss = (net(x) - target(x)).mean(); sync()", set()),  # nothing is computed any more
    ],
)
def test_a_helper_writes_weights_inside_the_region(decorator: str, inside: str, found: set[str]) -> None:
    assert ids(program(SYNC.format(decorator=decorator), inside=inside)) == found


def test_a_function_without_gradients_leaves_the_region_around_its_call_open() -> None:
    helper = "@torch.no_grad()\ndef measure(x):\n    for p in net.parameters():\n        p.grad.norm()\n"
    source = program(helper, inside="measure(x); loss = net(x).mean()").replace("gs.scale(loss)", "loss")
    assert "AMP316" not in ids(source)


PREDICT = """
class Noise:
    def __init__(self, model):
        self.model = model

    def predict(self, x):
        noise = torch.randn_like(x)
        return self.model(x + noise), noise

    def clear(self):
        self.model.zero_grad()

def predict(x):
    noise = torch.randn_like(x)
    return net(x + noise), noise

def prepare(x):
    return x * 2, torch.randn_like(x)

noisy = Noise(net)
"""


@pytest.mark.parametrize(
    ("before", "inside", "found"),
    [
        ("out, n = predict(x)", "loss = nn.functional.mse_loss(out, n)", {"AMP316"}),
        ("out, n = noisy.predict(x)", "loss = nn.functional.mse_loss(out, n)", {"AMP316"}),
        ("pass", "out, n = predict(x); loss = nn.functional.mse_loss(out, n)", set()),
        ("out, n = prepare(x)", "loss = nn.functional.mse_loss(net(out), n)", set()),
    ],
)
def test_a_helper_runs_a_model_outside_of_the_region(before: str, inside: str, found: set[str]) -> None:
    assert ids(program(PREDICT, before=before, inside=inside)) == found


COMPARE = """
def compare(out, x):
    with torch.autocast("cuda", dtype=torch.float16):
        return ce(out, x)

def build(x):
    with torch.autocast("cuda", dtype=torch.float16):
        return ce(net(x), x)
"""


@pytest.mark.parametrize(
    ("made", "before", "loss", "found"),
    [
        ("nn.CrossEntropyLoss()", "out = net(x)", "compare(out, x)", {"AMP316"}),
        ("nn.MSELoss(reduction='none').cuda()", "out = net(x)", "compare(out, x).mean()", {"AMP316"}),
        ("nn.CrossEntropyLoss()", "pass", "build(x)", set()),
        ("lpips.LPIPS()", "out = net(x)", "compare(out, x)", set()),  # a model of its own
        ("nn.Linear(3, 1)", "out = net(x)", "compare(out, x).mean()", set()),
    ],
)
def test_a_loss_of_torch_is_no_forward_whatever_it_is_called(
    made: str, before: str, loss: str, found: set[str]
) -> None:
    source = program(f"import lpips\nce = {made}\n{COMPARE}", before=before, inside="pass")
    source = source.replace("gs.scale(loss)", f"gs.scale({loss})")
    assert ids(source) == found


@pytest.mark.parametrize(
    ("between", "found"),
    [
        ("norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm() / gs.get_scale()", set()),
        ("norm = nn.utils.clip_grad_norm_(net.parameters(), float('inf')); log(norm / gs.get_scale())", set()),
        ("inv = 1.0 / gs.get_scale(); norm = [p.grad.norm() for p in net.parameters()][0] * inv", set()),
        ("norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm() * gs.get_scale()", {"AMP210"}),
        ("norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm() / len(x)", {"AMP210"}),
    ],
)
def test_measures_of_gradients_may_be_divided_by_the_scale(between: str, found: set[str]) -> None:
    assert ids(program("", between=between)) == found
    without = between.replace("norm = ", "with torch.no_grad(): norm = ").replace("; with", "\n    with")
    assert ids(program("", between=without)) == found


OPTIMIZER = """
class Opt:
    def __init__(self, every):
        self.o = torch.optim.AdamW(net.parameters())
        self.{name} = torch.amp.GradScaler("cuda")
        self.every, self.n = every, 0

    def backward(self, loss):
        self.{name}.scale(loss / self.every).backward()
        self.n += 1

    def maybe_step(self):
        if self.n % self.every == 0:
            self.{name}.step(self.o)
            {update}
            self.o.zero_grad()

    def end(self):
        {end}

o = Opt(4)
for x in torch.randn(9, 2, 4).cuda():
    with torch.autocast("cuda"):
        loss = net(x).mean()
    o.backward(loss)
    o.maybe_step()
    o.end()
"""


@pytest.mark.parametrize("name", ["scaler", "sc", "precision"])
def test_a_scaler_of_any_name_is_one_where_it_is_only_updated(name: str) -> None:
    bad = OPTIMIZER.format(name=name, update="pass", end=f"self.{name}.update()")
    good = OPTIMIZER.format(name=name, update=f"self.{name}.update()", end="pass")
    assert "AMP206" in ids(START + bad) and not ids(START + good) & {"AMP205", "AMP206"}


TWO = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))

pair = Net().cuda()
one = torch.optim.AdamW({one}, lr=1e-3)
two = torch.optim.SGD({two}, lr=1e-2)
for x in torch.randn(9, 2, 4).cuda():
    one.zero_grad()
    two.zero_grad()
    with torch.autocast("cuda"):
        loss = pair(x).mean()
    gs.scale(loss).backward()
    gs.step(one)
    gs.step(two)
    gs.update()
"""


@pytest.mark.parametrize(
    ("one", "two", "found"),
    [
        ("pair.parameters()", "pair.head.parameters()", {"AMP221"}),
        ("pair.head.parameters()", "pair.parameters()", {"AMP221"}),
        ("pair.parameters()", "[{'params': pair.head.parameters()}]", {"AMP221"}),
        ("pair.body.parameters()", "pair.head.parameters()", set()),
        ("[p for n, p in pair.named_parameters() if 'body' in n]", "pair.head.parameters()", set()),
        ("net.parameters()", "pair.head.parameters()", set()),
    ],
)
def test_two_optimizers_share_a_part_of_a_model(one: str, two: str, found: set[str]) -> None:
    assert ids(START + TWO.format(one=one, two=two)) & {"AMP221"} == found


@pytest.mark.parametrize(
    ("dtype", "found"), [("torch.float16", {"AMP201"}), ("torch.bfloat16", set()), ("torch.float32", set())]
)
@pytest.mark.parametrize("decorator", ["@property", "@functools.cached_property"])
def test_a_property_gives_a_region_of_the_dtype_that_its_class_names(
    dtype: str, found: set[str], decorator: str
) -> None:
    source = f"""
import functools
import torch
from torch import nn

class Trainer:
    dtype = {dtype}

    def __init__(self):
        self.net = nn.Linear(4, 3).cuda()
        self.opt = torch.optim.AdamW(self.net.parameters())

    {decorator}
    def region(self):
        return torch.autocast("cuda", dtype=self.dtype)

    def step(self, x):
        with self.region:
            loss = self.net(x).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()

t = Trainer()
for x in torch.randn(9, 2, 4).cuda():
    t.step(x)
"""
    assert ids(source) & {"AMP201"} == found


PARALLEL = """
import torch
from torch import nn

class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cuda"):
            return {loss}

net = nn.{wrapper}(WithLoss().cuda())
opt = torch.optim.SGD(net.parameters(), 0.1)
gs = torch.amp.GradScaler("cuda")
for x in torch.randn(9, 8, 4).cuda():
    losses = net(x)
    opt.zero_grad()
    gs.scale({given}).mean().backward()
    gs.step(opt)
    gs.update()
"""


@pytest.mark.parametrize(
    ("wrapper", "loss", "given", "marked"),
    [
        ("DataParallel", "(self.fc(x) - x.half()).abs().mean()", "losses", [20]),
        ("DataParallel", "(self.fc(x) - x.half()).abs().mean()", "losses.mean()", []),
        ("DataParallel", "(self.fc(x) - x).abs().mean()", "losses", []),  # float32 by promotion
        ("DataParallel", "nn.functional.mse_loss(self.fc(x), x)", "losses", []),  # float32 by the op list
        ("parallel.DistributedDataParallel", "(self.fc(x) - x.half()).abs().mean()", "losses", []),
    ],
)
def test_data_parallel_gathers_the_losses_of_its_devices(
    tmp_path: Path, wrapper: str, loss: str, given: str, marked: list[int]
) -> None:
    assert lines(tmp_path, "AMP219", PARALLEL.format(wrapper=wrapper, loss=loss, given=given)) == marked


TRAINER = """
import torch
import torch.nn.functional as F

class Trainer:
    def __init__(self, net, opt, config):
        self.net, self.opt, self.config = net, opt, config

    def forward_pass(self, x):
        return self.net(x)

    def compute_loss(self, x, y):
        out = self.forward_pass(x)
        return F.cross_entropy(out, y), out

    def step(self, x, y):
        self.net.train()
        self.opt.zero_grad()
        with torch.autocast("cuda", dtype={dtype}):
            loss, _ = self.compute_loss(x, y)
        loss.backward()
        self.opt.step()
"""


@pytest.mark.parametrize(("dtype", "found"), [("torch.float16", {"AMP201"}), ("torch.bfloat16", set())])
def test_a_model_out_of_sight_is_run_by_a_helper_of_a_helper(dtype: str, found: set[str]) -> None:
    assert ids(TRAINER.format(dtype=dtype)) == found
    without = TRAINER.format(dtype=dtype).replace("self.forward_pass(x)", "self.lookup(x)")
    assert ids(without) == set()  # nobody knows what that is


CONFIG = """
class Config:
    precision: str = "bf16"

    @property
    def dtype(self):
        {body}

"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return torch.float16 if self.precision == 'fp16' else torch.bfloat16", {"AMP201"}),
        ("return torch.bfloat16 if self.precision == 'bf16' else torch.float32", set()),
        ("return getattr(torch, self.precision)", set()),
    ],
)
@pytest.mark.parametrize("annotated", [True, False])
def test_the_dtype_of_a_config_that_is_known_by_its_annotation(body: str, found: set[str], annotated: bool) -> None:
    source = TRAINER.format(dtype="self.config.dtype").replace(
        "class Trainer", CONFIG.format(body=body) + "class Trainer"
    )
    field = source.replace("class Trainer:\n", "class Trainer:\n    config: Config\n", 1).replace(
        "def __init__(self, net, opt, config):\n        self.net, self.opt, self.config = net, opt, config", "pass"
    )
    given = source.replace("opt, config):", "opt, config: Config):")
    for each in (field, given) if annotated else (source,):
        assert ids(each) == (found if annotated else set())


def test_a_sum_of_losses_that_begins_with_zero_is_computed_where_its_terms_are() -> None:
    source = """
import torch

def train(model, opt, loader, weights, dtype_name):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            outs = model(x)
            loss = 0.0
            if weights.ctc:
                loss += outs[0].mean()
            if weights.attention:
                loss += outs[1].mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
"""
    assert ids(source) == {"AMP213"}
    assert ids(source.replace("bfloat16", "float16")) == set()


WRAPPED = """
import torch

def train(model, accel, opt, scheduler, loader):
    for x in loader:
        with accel.autocast():
            loss = model(x).mean()
        opt.zero_grad()
        accel.backward(loss)
        {unscale}
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        accel.step(opt)
        {advance}
        accel.update()
"""


@pytest.mark.parametrize(
    ("unscale", "advance", "found"),
    [
        ("accel.scaler.unscale_(opt)", "scheduler.step()", {"AMP217"}),
        ("accel.grad_scaler.unscale_(opt)", "scheduler.step()", {"AMP217"}),
        ("accel.scaler.unscale_(opt)", "if not accel.skipped: scheduler.step()", set()),
        ("accel.unscale_gradients(opt)", "scheduler.step()", set()),  # nobody knows whether it has a scaler
    ],
)
def test_the_step_of_what_holds_a_scaler_goes_through_it(unscale: str, advance: str, found: set[str]) -> None:
    assert ids(WRAPPED.format(unscale=unscale, advance=advance)) == found


SCHEDULES = """
import torch

class Trainer:
    def __init__(self, model, opt, scheduler, warmup_scheduler):
        self.model, self.opt = model, opt
        self.scheduler, self.warmup_scheduler = scheduler, warmup_scheduler
        self.scaler = torch.amp.GradScaler("cuda")

    def advance(self):
        {body}

    def step(self, x):
        self.opt.zero_grad()
        with torch.autocast("cuda"):
            loss = self.model(x).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.advance()
"""


@pytest.mark.parametrize(
    ("body", "marked"),
    [
        ("self.scheduler.step()", [20]),
        ("self.scheduler.step(); self.warmup_scheduler.step()", [20]),  # one place to mend, one finding
        ("if self.scheduler is not None: self.scheduler.step()", [20]),
        ("self.scheduler.step(); print(self.scheduler.get_last_lr())", [11]),
    ],
)
def test_a_helper_that_only_advances_schedules_is_marked_where_it_is_called(
    tmp_path: Path, body: str, marked: list[int]
) -> None:
    assert lines(tmp_path, "AMP217", SCHEDULES.format(body=body)) == marked


RUNNER = """
import torch
from torch import nn

class Runner:
    def __init__(self, schedule):
        self.schedule = schedule

    def __call__(self, model, x, condition):
        return compare(x, condition) if model is None else model(self.schedule(x), condition)

net, embed = nn.Bilinear(4, 4, 4), nn.Embedding(3, 4)
runner = Runner(print)
optimizer = torch.optim.SGD([*net.parameters(), *embed.parameters()], lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for x, c in loader:
    optimizer.zero_grad()
    condition = embed(c)
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(runner({model}, x, condition), x)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(("model", "expected"), [("net", set()), ("None", {"AMP316"})])
def test_an_object_that_is_called_with_a_model_in_a_region_may_run_it_there(model: str, expected: set[str]) -> None:
    assert ids(RUNNER.format(model=model)) == expected


DECAYED = (
    START
    + """
HELPER

for x in torch.randn(9, 2, 4).cuda():
    opt.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = net(x).mean()
    total = LOSS
    total.backward()
    gs.step(opt)
    gs.update()
"""
)
WEIGHTS = [
    "def size(model):\n    return sum(p.pow(2).sum() for p in model.parameters())",
    "def size(model):\n    found = 0\n    for name, p in model.named_parameters():\n"
    "        if 'bias' not in name:\n            found = found + p.norm()\n    return found",
    "def size(model):\n    return torch.cat([p.abs().flatten() for p in model.parameters()]).sum()",
]


@pytest.mark.parametrize("helper", WEIGHTS)
@pytest.mark.parametrize(
    ("loss", "found"),
    [
        ("gs.scale(loss) + 1e-4 * size(net)", {"AMP204"}),
        ("gs.scale(loss + 1e-4 * size(net))", set()),
        ("gs.scale(loss) + gs.scale(1e-4 * size(net))", set()),
    ],
)
def test_a_penalty_that_a_function_computes(helper: str, loss: str, found: set[str]) -> None:
    assert ids(DECAYED.replace("HELPER", helper).replace("LOSS", loss)) == found


def test_a_function_that_counts_parameters_gives_no_term_of_a_loss() -> None:
    helper = "def size(model):\n    return sum(p.numel() for p in model.parameters())"
    assert ids(DECAYED.replace("HELPER", helper).replace("LOSS", "gs.scale(loss) * size(net)")) == set()
