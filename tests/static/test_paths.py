"""The path interpreter on small programs: which paths exist, what names keep their identity, what follows from it."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.model import Confidence
from amp_audit.static.binding.project import Project
from amp_audit.static.source import lowering
from amp_audit.static.walking import paths
from amp_audit.static.walking.liveness import Liveness
from amp_audit.static.walking.world import Limits

BASE = """
import torch
from torch import nn
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
loader = [(torch.randn(8, 4), torch.randn(8, 2))] * 4
"""

LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
"""


def found(*sources: str, names: tuple[str, ...] = ()) -> set[tuple[str, str, int]]:
    """(rule, file, line) of every finding in modules called main, then ``names``."""
    files = dict(zip((f"/project/{name}.py" for name in ("main", *names)), map(textwrap.dedent, sources)))
    modules = [lowering.lower(path, source) for path, source in files.items()]
    raw, notes = paths.find(Project(modules, Path("/project")), rulebook.load())
    assert notes == []
    place = {path: lowering.positions(source) for path, source in files.items()}
    return {(f.rule.id, Path(f.path).stem, place[f.path](f.at).line) for f in raw}


def line(source: str, text: str) -> int:
    lines = textwrap.dedent(source).split("\n")
    return next(n for n, each in enumerate(lines, 1) if text in each)


def rules(*sources: str, names: tuple[str, ...] = ()) -> set[str]:
    return {rule for rule, _, _ in found(*sources, names=names)}


def in_loop(*statements: str) -> str:
    return BASE + LOOP + textwrap.indent("\n".join(statements), "    ")


CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
UNSCALE = "scaler.unscale_(optimizer)"
STEP = "scaler.step(optimizer)"
UPDATE = "scaler.update()"


def test_the_textbook_order_is_clean() -> None:
    assert rules(in_loop(UNSCALE, CLIP, STEP, UPDATE)) == set()


def test_clip_of_scaled_gradients_stands_at_the_clip() -> None:
    source = in_loop(CLIP, STEP, UPDATE)
    assert found(source) == {("AMP202", "main", line(source, "clip_grad_norm_"))}


@pytest.mark.parametrize(
    ("unscale", "clip", "expected"),
    [
        ("if args.clip:", "if args.clip:", set()),
        ("if args.clip:", "if not args.clip:", {"AMP202"}),
        ("if args.clip > 0:", "if args.clip > 0:", set()),
        ("if args.clip or args.log:", "if args.clip:", set()),
        ("if args.clip and args.log:", "if args.clip:", {"AMP202"}),
        ("if args.clip is not None:", "if args.clip:", set()),
        ("if args.mode == 'clip':", "if args.mode == 'clip':", set()),
        ("if args.mode == 'clip':", "if args.mode != 'clip':", {"AMP202"}),
        ("if (step + 1) % 4 == 0:", "if (step + 1) % 4 == 0:", set()),
    ],
)
def test_a_condition_that_was_decided_stays_decided(unscale: str, clip: str, expected: set[str]) -> None:
    source = f"import sys\nargs, step = sys.argv[1], int(sys.argv[2])\n{BASE}{LOOP}"
    body = [unscale, f"    {UNSCALE}", clip, f"    {CLIP}", STEP, UPDATE]
    assert rules(source + textwrap.indent("\n".join(body), "    ")) == expected


def test_what_changes_from_round_to_round_is_not_kept() -> None:
    source = f"""{BASE}
for step, (x, y) in enumerate(loader):
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    if (step + 1) % 4 == 0:
        {STEP}
        {UPDATE}
        optimizer.zero_grad()
    if step % 4 == 0:
        {CLIP}
"""
    assert "AMP202" in rules(source)  # one round does not step, the next clips what is still scaled


def test_enabled_follows_its_flag() -> None:
    source = f"""
import argparse, torch
from torch import nn
args = argparse.ArgumentParser().parse_args()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
for x, y in []:
    optimizer.zero_grad()
    with torch.autocast("cuda", enabled=args.amp):
        loss = nn.functional.mse_loss(model(x), y)
    if args.amp:
        scaler.scale(loss).backward()
        {UNSCALE}
    else:
        loss.backward()
    {CLIP}
    {STEP}
    {UPDATE}
"""
    assert rules(source) == set()


def test_none_is_a_flag() -> None:
    source = f"""{BASE}
def train(model, optimizer, loader, scaler=None):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=scaler is not None):
            loss = nn.functional.mse_loss(model(x), y)
        if scaler is None:
            loss.backward()
        else:
            scaler.scale(loss).backward()
            {UNSCALE}
        {CLIP}
        if scaler is not None:
            {STEP}
            {UPDATE}
        else:
            optimizer.step()
"""
    assert rules(source) == set()


@pytest.mark.parametrize(
    "wrap",
    [
        "def clip(parameters):\n    nn.utils.clip_grad_norm_(parameters, 1.0)\n",
        "clip = lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0)\n",
        "import functools\nclip = functools.partial(nn.utils.clip_grad_norm_, max_norm=1.0)\n",
        "from torch.nn.utils import clip_grad_norm_ as shorten\ndef clip(p):\n    return shorten(p, 1.0)\n",
        "class Clipper:\n    def __call__(self, p):\n        nn.utils.clip_grad_norm_(p, 1.0)\nclip = Clipper()\n",
    ],
)
def test_calls_are_followed(wrap: str) -> None:
    body = textwrap.indent("\n".join(["clip(model.parameters())", STEP, UPDATE]), "    ")
    assert "AMP202" in rules(BASE + wrap + LOOP + body)


def test_attributes_keep_their_identity() -> None:
    source = """
import torch
from torch import nn

class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def clip(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.clip()
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""
    assert found(source) == {("AMP202", "main", line(source, "nn.utils.clip"))}


def test_a_wrapper_class_is_followed() -> None:
    source = """
import torch
from torch import nn

class NativeScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None):
        self._scaler.scale(loss).backward()
        if clip_grad is not None:
            self._scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, clip_grad)
        self._scaler.step(optimizer)
        self._scaler.update()

def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_scaler = NativeScaler()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
"""
    assert rules(source) == set()
    assert rules(source.replace("            self._scaler.unscale_(optimizer)\n", "")) == {"AMP202"}


def test_other_files_are_followed() -> None:
    main = """
import torch
from torch import nn
from engine import train_one_epoch

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    train_one_epoch(model, [], optimizer, torch.amp.GradScaler("cuda"))
"""
    engine = """
import torch
from torch import nn

def train_one_epoch(model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
    assert found(main, engine, names=("engine",)) == {("AMP214", "main", line(main, "GradScaler"))}
    kept = main.replace("for epoch", 'scaler = torch.amp.GradScaler("cuda")\nfor epoch')
    kept = kept.replace('optimizer, torch.amp.GradScaler("cuda"))', "optimizer, scaler)")
    assert rules(kept, engine, names=("engine",)) == set()


def test_a_context_manager_of_the_project_is_entered() -> None:
    source = (
        BASE
        + """
import contextlib

@contextlib.contextmanager
def mixed():
    with torch.autocast("cuda", dtype=torch.bfloat16):
        yield

for x, y in loader:
    optimizer.zero_grad()
    with mixed():
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
    optimizer.step()
"""
    )
    assert found(source) == {("AMP302", "main", line(source, "loss.backward()"))}


@pytest.mark.parametrize(
    "context",
    [
        'ctx = torch.autocast("cuda", dtype=torch.bfloat16)',
        'ctx = torch.autocast("cuda", dtype=torch.bfloat16) if len(loader) else contextlib.nullcontext()',
        'make = lambda: torch.autocast("cuda", dtype=torch.bfloat16)\nctx = make()',
    ],
)
def test_a_region_kept_in_a_name_is_one(context: str) -> None:
    source = f"""{BASE}
import contextlib
{context}
for x, y in loader:
    optimizer.zero_grad()
    with ctx:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
    optimizer.step()
"""
    assert rules(source) == {"AMP302"}


def test_a_region_ends_on_every_way_out() -> None:
    source = (
        BASE
        + """
def compute(x, y):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        if len(x) > 1:
            return nn.functional.mse_loss(model(x), y)
    return nn.functional.mse_loss(model(x), y)

for x, y in loader:
    optimizer.zero_grad()
    loss = compute(x, y)
    loss.backward()
    optimizer.step()
"""
    )
    assert rules(source) == set()


def test_a_decorator_is_a_region() -> None:
    source = (
        BASE
        + """
@torch.autocast("cuda", dtype=torch.bfloat16)
def train_step(x, y):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss

for x, y in loader:
    train_step(x, y)
    optimizer.step()
"""
    )
    assert found(source) == {("AMP302", "main", line(source, "loss.backward()"))}


def test_early_exits_leave_the_scaler_as_it_is() -> None:
    safe = in_loop("if not torch.isfinite(loss):", "    continue", UNSCALE, CLIP, STEP, UPDATE)
    assert rules(safe) == set()
    dirty = in_loop(UNSCALE, f"norm = {CLIP}", "if not torch.isfinite(norm):", "    continue", STEP, UPDATE)
    assert found(dirty) == {("AMP208", "main", line(dirty, "continue"))}


def test_finally_runs_on_every_way_out() -> None:
    source = in_loop(
        UNSCALE, "try:", "    if len(x) > 3:", "        continue", f"    {STEP}", "finally:", f"    {UPDATE}"
    )
    assert rules(source) == set()


def test_the_end_of_a_program_that_dies_says_nothing() -> None:
    source = in_loop("raise SystemExit", CLIP, STEP, UPDATE)
    assert rules(source) == set()


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


def test_the_path_is_told_in_order() -> None:
    module = lowering.lower("/project/main.py", in_loop(CLIP, STEP, UPDATE))
    raw, _ = paths.find(Project([module], Path("/project")), rulebook.load())
    told = [step.text for step in raw[0].related if step.rule is None]
    assert told.index("backward of the scaled loss") < told.index("gradients are clipped")


def test_too_many_paths_are_said_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amp_audit.static.walking.walk.FUEL", 5)
    module = lowering.lower("/project/main.py", in_loop(CLIP, STEP, UPDATE))
    _, notes = paths.find(Project([module], Path("/project")), rulebook.load())
    assert notes == ["/project/main.py: its own code has too many paths; it was not walked to the end"]


def _forked(*calls: str) -> str:
    """A loop that trains, behind eight switches of its own each of which builds another optimizer."""
    switches = [f"if args.s{n}: optimizer = torch.optim.SGD(model.parameters(), lr=0.{n + 1})" for n in range(8)]
    return BASE + "\n".join(switches) + "\n" + LOOP + textwrap.indent("\n".join(calls), "    ")


@pytest.mark.parametrize("width", [64, 8, 2])
def test_paths_that_are_left_out_are_said_and_those_that_are_followed_are_real(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr("amp_audit.static.walking.paths.WIDTHS", (width,))
    clip = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    step, update = "scaler.step(optimizer)", "scaler.update()"

    def ids(*calls: str) -> tuple[set[str], list[str]]:
        module = lowering.lower("/project/main.py", _forked(*calls))
        raw, notes = paths.find(Project([module], Path("/project")), rulebook.load())
        return {found.rule.id for found in raw}, notes

    found, notes = ids(clip, step, update)
    assert "AMP202" in found
    assert len(notes) == 1 and "were left out" in notes[0]
    found, _ = ids("scaler.unscale_(optimizer)", clip, step, update)
    assert not found & {"AMP202", "AMP203", "AMP204", "AMP205", "AMP206", "AMP207", "AMP209", "AMP212"}


def test_what_may_happen_on_a_path_that_is_left_out_is_not_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amp_audit.static.walking.paths.WIDTHS", (1,))
    update = "if not args.s1: scaler.update()"
    for extra, expected in (((), True), ((update,), False)):
        module = lowering.lower("/project/main.py", _forked("scaler.step(optimizer)", *extra))
        raw, _ = paths.find(Project([module], Path("/project")), rulebook.load())
        assert ("AMP205" in {found.rule.id for found in raw}) is expected


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


@pytest.mark.parametrize(
    "asked",
    [
        "any(p.grad is not None for p in group)",
        "any(any(p.grad is not None for p in g['params']) for g in optimizer.param_groups)",
        "not all(p.grad is None for p in group)",
    ],
)
def test_after_a_backward_there_are_gradients(asked: str) -> None:
    source = (
        BASE
        + LOOP
        + f"""
    for group, optimizer in split(model):
        if {asked}:
            scaler.step(optimizer)
    scaler.update()
"""
    )
    assert rules(source) == set()
    assert rules(source.replace(asked, "flag")) == {"AMP206"}


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


def test_a_loss_made_of_gradients_may_carry_their_scale() -> None:
    source = (
        BASE
        + """
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        representation = model(x).detach().requires_grad_()
        loss = nn.functional.mse_loss(representation, y)
    scaler.scale(loss).backward()
    with torch.autocast("cuda"):
        surrogate = torch.dot(model(x).flatten(), GRADIENT)
    surrogate.backward()
    scaler.step(optimizer)
    scaler.update()
"""
    )
    assert rules(source.replace("GRADIENT", "representation.grad.flatten()")) == set()
    assert rules(source.replace("GRADIENT", "y.flatten()")) == {"AMP204"}


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


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        ('torch.autocast("cpu")', {"AMP213"}),
        ('torch.autocast("cpu" if device == "mps" else device)', set()),
        ("torch.autocast(device, dtype=torch.bfloat16)", {"AMP213"}),
    ],
)
def test_the_default_dtype_of_a_fallback_device_says_nothing(region: str, expected: set[str]) -> None:
    source = in_loop(STEP, UPDATE).replace('torch.autocast("cuda")', region)
    assert rules(source.replace("model = nn", "device = pick()\nmodel = nn")) == expected


@pytest.mark.parametrize(("missing", "expected"), [("nothing", set()), (UNSCALE, {"AMP202"}), (UPDATE, {"AMP205"})])
def test_how_deep_a_project_lies_changes_nothing(missing: str, expected: set[str]) -> None:
    body = f"{LOOP}    {UNSCALE}\n    {CLIP}\n    {STEP}\n    {UPDATE}\n".replace(missing, "pass")
    head = "import torch\nfrom torch import nn\ndef train_one_epoch(model, optimizer, scaler, loader):\n"
    source = head + textwrap.indent(body, "    ")
    for folder in ("/project", "/home/somebody/" + "a_rather_long_folder_name/" * 9):
        raw, _ = paths.find(Project([lowering.lower(f"{folder}/main.py", source)], Path(folder)), rulebook.load())
        assert {found.rule.id for found in raw} == expected


def test_clipping_counts_as_too_early_only_when_a_backward_follows() -> None:
    source = f"""{BASE}
import sys
mode = sys.argv[1]
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = nn.functional.mse_loss(model(x), y)
    if mode == "plain":
        loss.backward()
    elif mode == "scaled":
        scaler.scale(loss).backward()
        {UNSCALE}
    {CLIP}
    if mode == "scaled":
        {STEP}
        {UPDATE}
    else:
        optimizer.step()
"""
    assert "AMP211" not in rules(source)
    early = in_loop(STEP, UPDATE).replace("    scaler.scale", f"    {CLIP}\n    scaler.scale")
    assert found(early) == {("AMP211", "main", line(early, "clip_grad_norm_"))}


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


def test_what_a_narrowed_walk_cut_is_walked_by_itself() -> None:
    """But not what a single path came to: by itself it would be walked as it was."""
    module = lowering.lower("/project/main.py", "pass")
    book = rulebook.load()
    project = Project([module], Path("/project"))
    walker = paths.Walker(
        project, paths.Watch(book, "static"), paths.Heat([module]), module.path, Counter(), Liveness()
    )
    walker.followed = {(module.path, 1), (module.path, 2)}
    walker.entered = Counter({(module.path, 1): 1, (module.path, 2): 5})

    def seen(width: int, cut: int) -> set[tuple[str, int]]:
        return paths._Attempt(walker, Limits(width, cut), 100, []).seen()

    assert seen(paths.WIDTHS[0], 7) == seen(4, 0) == walker.followed
    assert seen(4, 7) == {(module.path, 1)}
