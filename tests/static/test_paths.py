"""The path interpreter on small programs: which paths exist, what names keep their identity, what follows from it."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.binding.project import Project
from amp_audit.static.source import lowering
from amp_audit.static.walking import paths
from amp_audit.static.walking.liveness import Liveness
from amp_audit.static.walking.world import Limits
from tests.static.pathing import BASE, CLIP, LOOP, STEP, UNSCALE, UPDATE, found, in_loop, line, rules


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


def test_a_helper_that_returns_early_does_not_end_the_iteration() -> None:
    """What it returned from has not touched the scaler; it is unscaled twice for another reason."""
    evaluate = """
def evaluate(model, x, rank):
    with torch.autocast("cuda"):
        out = model(x)
    if rank:
        return None
    return out
"""
    loop = in_loop(UNSCALE, CLIP, "if args.ready:", f"    {STEP}", f"    {UPDATE}", "evaluate(model, x, 1)")
    source = evaluate + loop
    assert found(source) == {("AMP207", "main", line(source, UNSCALE))}
    step = f"""
def step(loss, args):
    scaler.scale(loss).backward()
    {UNSCALE}
    if args.bad:
        return
    {CLIP}
    {STEP}
    {UPDATE}
"""
    dirty = BASE + step + LOOP.replace("scaler.scale(loss).backward()", "step(loss, args)")
    assert found(dirty) == {("AMP208", "main", line(dirty, "        return"))}


def test_finally_runs_on_every_way_out() -> None:
    source = in_loop(
        UNSCALE, "try:", "    if len(x) > 3:", "        continue", f"    {STEP}", "finally:", f"    {UPDATE}"
    )
    assert rules(source) == set()


def test_the_end_of_a_program_that_dies_says_nothing() -> None:
    source = in_loop("raise SystemExit", CLIP, STEP, UPDATE)
    assert rules(source) == set()


def test_the_path_is_told_in_order() -> None:
    module = lowering.lower("/project/main.py", in_loop(CLIP, STEP, UPDATE))
    raw, _ = paths.find(Project([module], Path("/project")), rulebook.load())
    told = [step.text for step in raw[0].related if step.rule is None]
    assert told.index("backward of the scaled loss") < told.index("gradients are clipped")


def test_too_many_paths_are_said_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amp_audit.static.walking.paths.FUEL", 5)
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


def test_a_function_that_only_builds_the_scaler_has_paths_of_its_own() -> None:
    """Nothing trains in ``main``; whether there is a scaler where it trains is decided there."""
    source = """
import torch
from setup import build, make_optimizer, on_cpu

def main(args):
    model = build(args)
    optimizer = make_optimizer(model)
    scaler = None
    if args.gpus >= 1:
        if args.amp:
            scaler = torch.amp.GradScaler("cuda")
        model = model.cuda()
    else:
        model = on_cpu(model)
    epoch(model, optimizer, args, scaler)

def epoch(model, optimizer, args, scaler):
    for x in args.loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=scaler is not None):
            loss = model(x).mean()
        if scaler is not None:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()

main(parse())
"""
    assert found(source) == {("AMP202", "main", line(source, "clip_grad_norm_"))}
    clip = "        torch.nn.utils"
    unscaled = source.replace(clip, f"        if scaler:\n            {UNSCALE}\n{clip}")
    assert found(unscaled) == set()


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        ("self.dtype = pick(args.dtype)", {"AMP213"}),
        ("self.dtype = torch.bfloat16 if args.bf16 else torch.float32", {"AMP213"}),
        ("self.dtype = torch.float16", set()),
        ("self.dtype = other.pick(args)", set()),
    ],
)
def test_a_method_that_notes_the_dtype_is_followed(noted: str, expected: set[str]) -> None:
    source = f"""
import torch

def pick(name):
    if name == "bf16":
        return torch.bfloat16
    elif name == "fp16":
        return torch.float16
    raise ValueError(name)

class Trainer:
    def setup(self, args):
        self.args = args
        {noted}

    def run(self, args, model, loader):
        self.setup(args)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for x in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=self.dtype):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""
    assert rules(source) == expected


HANDED = """
import torch

class Schedule:
    def __init__(self, optimizer, params, limit):
        self.optimizer, self.params, self.limit = optimizer, params, limit

    def step(self, grad_scaler=None):
        if self.limit is not None:
            torch.nn.utils.clip_grad_norm_(self.params, self.limit)
        if grad_scaler is None:
            self.optimizer.step()
        else:
            grad_scaler.step(self.optimizer)
            grad_scaler.update()
"""


def test_what_steps_a_scaler_out_of_sight_of_the_backward_clips_scaled_gradients() -> None:
    """Where nothing in the project unscales, whatever calls it has left the gradients scaled."""
    clip = "torch.nn.utils.clip_grad_norm_(self.params, self.limit)"
    assert found(HANDED) == {("AMP202", "main", line(HANDED, clip))}
    assert rules(HANDED, "def prepare(scaler, optimizer):\n    scaler.unscale_(optimizer)\n", names=("other",)) == set()
    alone = HANDED.replace("self.limit is not None", "grad_scaler is None and self.limit")
    assert rules(alone) == set()
    later = HANDED.replace(clip, "pass") + f"        if self.limit is not None:\n            {clip}\n"
    assert "AMP202" not in rules(later)
