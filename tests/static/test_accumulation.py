"""Loops over micro-batches: what counts them, which tests end them, and what may divide their losses."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.binding.project import Project
from amp_audit.static.source import lowering
from amp_audit.static.walking import paths
from tests.static.walked import HEAD, ids, rules


@pytest.mark.parametrize("loop", ["while True:", "for x in loader:", "for x in tqdm(loader, total=9):"])
def test_what_a_loop_counts_by_hand_is_any_number_later_on(loop: str) -> None:
    body = f"""
        count = 0
        {loop}
            with torch.autocast("cuda"):
                loss = model(x).mean() / 4
            scaler.scale(loss).backward()
            count += 1
            if count % 4 == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    """
    assert rules(body) == set()
    assert rules(body.replace("scaler.unscale_(optimizer)", "pass")) == {"AMP202"}


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("(step + 1) % n == 0", True),
        ("not (step + 1) % n", True),
        ("step % n == n - 1", True),
        ("(step + 1) % n == 0 or step + 1 == len(loader)", True),
        ("args.clip and (step + 1) % n == 0 or n == 1", True),
        ("args.debug", False),
        ("step > 0", False),
    ],
)
def test_a_boundary_test_is_known_in_whatever_way_it_is_written(test: str, found: bool) -> None:
    body = f"""
        n = args.accumulate
        scaler.scale(loss).backward()
        if {test}:
            scaler.step(optimizer)
            scaler.update()
    """
    assert rules(body) == ({"AMP223"} if found else set())


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        ("nn.functional.mse_loss(model(x), x)", True),
        ("nn.functional.mse_loss(model(x), x) / n", False),
        ("model(x, n_accum)", False),
        ("nn.functional.mse_loss(model(x), x).sum()", False),
        ("nn.functional.mse_loss(model(x), x) * args.weight + model(x).mean()", True),
        ("args.loss_of(x)", False),
        ("args.normalize(nn.functional.mse_loss(model(x), x), n_accumulation=n)", False),
        ("args.normalize(nn.functional.mse_loss(model(x), x), n_accum)", False),
        ("args.normalize(nn.functional.mse_loss(model(x), x), eps=n)", True),
    ],
)
def test_losses_that_something_may_divide_are_not_said_to_be_summed(loss: str, found: bool) -> None:
    body = f"""
        n = args.accumulate
        n_accum = args.accumulate
        loss = {loss}
        scaler.scale(loss).backward()
        if (step + 1) % n == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    """
    head = HEAD.replace("        optimizer.zero_grad()\n", "").replace(
        "            loss = model(x).mean()\n", "            pass\n"
    )
    source = head + textwrap.indent(textwrap.dedent(body), " " * 8) + "    model.eval()\n"
    raw, notes = paths.find(Project([lowering.lower("/project/main.py", source)], Path("/project")), rulebook.load())
    assert notes == []
    assert {each.rule.id for each in raw} == ({"AMP223"} if found else set())


@pytest.mark.parametrize(
    ("count", "loss", "clears", "found"),
    [
        ("args.accumulate", "model(x).mean()", "", True),
        ("args.accumulate", "model(x).mean() / args.accumulate", "", False),
        ("args.accumulate", "model(x).mean() / args.accumulate", "optimizer.zero_grad()", True),
        ("args.crops", "model(x).mean()", "", False),
    ],
)
def test_a_loop_over_micro_batches_is_an_accumulation(count: str, loss: str, clears: str, found: bool) -> None:
    source = f"""
import torch

def train(model, optimizer, batches, args):
    model.train()
    scaler = torch.amp.GradScaler("cuda")
    while True:
        optimizer.zero_grad()
        for micro in range({count}):
            {clears or "pass"}
            x = next(batches)
            with torch.autocast("cuda"):
                loss = {loss}
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
    raw, notes = paths.find(Project([lowering.lower("/project/main.py", source)], Path("/project")), rulebook.load())
    assert notes == []
    assert {each.rule.id for each in raw} == ({"AMP223"} if found else set())


def test_a_test_that_came_true_in_another_round_is_no_boundary_of_this_one() -> None:
    """What the generator's loss leaves on the discriminator waits for no count; only the log does."""
    source = """
    import torch

    def train(loader, G, D, opt_g, opt_d, scaler, args, count):
        for x in loader:
            with torch.autocast("cuda"):
                fake = G(x)
                loss_d = D(fake.detach()).mean() - D(x).mean()
            opt_d.zero_grad()
            scaler.scale(loss_d).backward()
            scaler.step(opt_d)
            with torch.autocast("cuda"):
                loss_g = -D(fake).mean()
            opt_g.zero_grad()
            scaler.scale(loss_g).backward()
            scaler.step(opt_g)
            scaler.update()
            if count % args.log_interval == 0:
                scaler.unscale_(opt_d)
                print(torch.nn.utils.get_total_norm([p.grad for p in D.parameters()]))
            count += 1

    def main(loader, args, G, D):
        opt_g, opt_d = torch.optim.Adam(G.parameters()), torch.optim.Adam(D.parameters())
        scaler = torch.amp.GradScaler("cuda")
        count = (load(args) - 1) * len(loader)
        for epoch in range(3):
            train(loader, G, D, opt_g, opt_d, scaler, args, count)
    """
    assert "AMP223" not in ids(source)


@pytest.mark.parametrize(("given", "found"), [("args.accumulate", False), ("args.weight", True)])
def test_a_short_helper_that_is_told_the_number_of_micro_batches_may_divide_by_it(given: str, found: bool) -> None:
    source = f"""
import torch
from torch import nn

def weighted(loss, n):
    if n > 1:
        loss = loss / n
    return loss

def train(model, optimizer, loader, args):
    model.train()
    scaler = torch.amp.GradScaler("cuda")
    for step, x in enumerate(loader):
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x), x)
        loss = weighted(loss, {given})
        scaler.scale(loss).backward()
        if (step + 1) % args.accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
    assert ids(source) == ({"AMP223"} if found else set())


LOOP = """
import torch


def train(model, optimizer, loader, criterion, accumulate):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        {before}
        try:
            with torch.autocast("cuda"):
                loss = criterion(model(x), y) / accumulate
            scaler.scale(loss).backward()
            if (i + 1) % accumulate == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        except RuntimeError as error:
            print(error)
            {after}
"""
INVALID = "invalid = False\n{0}for t in x:\n{0}    if t.isnan().any():\n{0}        invalid = True\n{0}if invalid:"


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("optimizer.zero_grad()", "continue", True),
        ("", "optimizer.zero_grad()\n            continue", False),
        (f"{INVALID.format(' ' * 8)}\n            optimizer.zero_grad()\n            continue", "raise", False),
        ("if accumulate > 1:\n            optimizer.zero_grad()", "raise", True),
    ],
)
def test_what_clears_the_gradients_of_a_batch_that_failed_does_not_do_so_for_every_one(
    before: str, after: str, found: bool
) -> None:
    assert ("AMP223" in ids(LOOP.format(before=before or "pass", after=after))) is found


REUSED = """
import torch
import torch.nn.functional as F
from torch import nn
from utils import reset_grads


class Learner:
    def __init__(self, policy, accumulation=4):
        self.policy = policy.cuda()
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
        self.scaler = torch.amp.GradScaler("cuda")
        self.accumulation = accumulation

    def update(self, memory, epochs, keep_gradients=False):
        for epoch in range(epochs):
            {outside}
            for i, batch in enumerate(memory):
                {before}
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = -(self.policy(batch["observation"]) * batch["advantage"]).mean() / self.accumulation
                self.scaler.scale(loss).backward()
                {step}
                {after}
"""
STEP = "self.scaler.step(self.optimizer); self.scaler.update()"
CLEAR = "self.optimizer.zero_grad()"
BOUNDARY = "if (i + 1) % self.accumulation == 0: "


def reused(outside: str = "pass", before: str = "pass", step: str = STEP, after: str = "pass") -> bool:
    return "AMP223" in ids(REUSED.format(outside=outside, before=before, step=step, after=after))


def test_gradients_that_are_cleared_less_often_than_they_are_used() -> None:
    assert reused(outside=CLEAR)
    assert reused(before=BOUNDARY + CLEAR)
    assert reused(before="if i % self.accumulation == 0: " + CLEAR)
    assert reused(after=BOUNDARY + CLEAR)
    assert reused(outside=CLEAR, step=f"self.scaler.unscale_(self.optimizer); {STEP}")


@pytest.mark.parametrize(
    "clears",
    [
        {"before": CLEAR},
        {"after": CLEAR},
        {"outside": CLEAR, "before": CLEAR},
        {"step": f"{BOUNDARY}{STEP}; {CLEAR}"},
        {"outside": CLEAR, "step": f"{BOUNDARY}{STEP}", "after": BOUNDARY + CLEAR},
        {"before": "if i % self.accumulation == 0: " + CLEAR, "step": BOUNDARY + STEP},
        {"before": "self.policy.zero_grad()"},
        {"outside": CLEAR, "after": "for p in self.policy.parameters(): p.grad = None"},
        {"outside": CLEAR, "after": "for p in self.policy.parameters(): p.grad.zero_()"},
        {"outside": CLEAR, "after": "for p in self.policy.parameters(): p.grad.mul_(0.9)"},
        {"outside": CLEAR, "after": "reset_grads(self.optimizer)"},
        {"outside": CLEAR, "after": "self.clear(self.policy)"},
        {"outside": CLEAR, "before": f"if not keep_gradients: {CLEAR}"},
        {"before": f"if epoch == 0 or not self.carry: {CLEAR}"},
    ],
)
def test_gradients_that_are_cleared_for_each_step_or_kept_by_choice(clears: dict[str, str]) -> None:
    assert not reused(**clears)


EPOCHS = """
import torch


def train(model, loader, optimizer, scaler):
    for i, (x, y) in enumerate(loader):
        if {first}:
            optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean() / 4
        scaler.scale(loss).backward()
        if (i + 1) % 4 == 0{last}:
            scaler.step(optimizer)
            scaler.update()


def main(model, loader, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(epochs):
        train(model, loader, optimizer, scaler)
"""


@pytest.mark.parametrize(
    ("first", "last", "found"),
    [
        ("i % 4 == 0", " or i + 1 == len(loader)", False),
        ("i % 4 == 0", " or i == len(loader) - 1", False),
        ("not i % 4", " or len(loader) == i + 1", False),
        ("(i + 1) % 4 == 0", " or i + 1 == len(loader)", True),
    ],
)
def test_a_window_begins_with_the_first_round_and_ends_with_the_last(first: str, last: str, found: bool) -> None:
    assert ("AMP223" in ids(EPOCHS.format(first=first, last=last))) is found


_KINDS = """
    import sys

    import torch
    from torch import nn

    kind = sys.argv[1]


    def compare(out, y):
        if y.numel() == 0:
            return torch.tensor(0.0, requires_grad=True)
        return nn.functional.mse_loss(out, y)


    model = nn.Linear(4, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        for x, y in torch.load("data.pt"):
            if kind == "one":
                {one}
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    out = model(x)
                loss = compare(out, y)
            elif kind == "two":
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    out = model(x)
                optimizer.zero_grad()
                loss = compare(out, y)
            loss.backward()
            optimizer.step()
"""


@pytest.mark.parametrize(("one", "found"), [("optimizer.zero_grad()", False), ("pass", True)])
def test_a_round_that_makes_no_loss_has_none_to_go_back_from(one: str, found: bool) -> None:
    assert ("AMP223" in ids(_KINDS.format(one=one))) is found


@pytest.mark.parametrize(("indent", "expected"), [(16, {"AMP202"}), (20, {"AMP223"})])
def test_a_clip_that_is_wrong_with_a_scaler_is_told_of_once(indent: int, expected: set[str]) -> None:
    """Without the scaler it comes too early in the window; beside one its limit is compared with scaled gradients."""
    source = f"""
        import torch
        from torch import nn

        def train(model, optimizer, loader, args):
            scaler = torch.amp.GradScaler("cuda") if args.fp16 else None
            for step, x in enumerate(loader):
                with torch.autocast("cuda", enabled=args.fp16 or args.bf16):
                    loss = model(x).mean() / args.n
                if args.fp16:
                    scaler.scale(loss).backward()
                else:
                    loss.backward()
{" " * indent}nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if (step + 1) % args.n == 0:
                    if args.fp16:
                        scaler.step(optimizer)
                        scaler.update()
                    else:
                        optimizer.step()
                    optimizer.zero_grad()
    """
    assert ids(source) == expected


_LAST = """
    import torch

    def train(cfg, model, loader, optimizer):
        scaler = torch.amp.GradScaler("cuda")
        model.train()
        for step, x in enumerate(loader):
            with torch.autocast("cuda"):
                loss = model(x).mean(){divided}
            scaler.scale(loss).backward()
            if {test}:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "test",
    [
        "(step + 1) % cfg.grad_accum == 0 or step + 1 == len(loader)",
        "(step + 1) % cfg.grad_accum == 0 or step == len(loader) - 1",
        "step == len(loader) - 1 or (step + 1) % cfg.grad_accum == 0",
    ],
)
@pytest.mark.parametrize(("divided", "expected"), [("", {"AMP223"}), (" / cfg.grad_accum", set())])
def test_a_window_that_the_end_of_the_data_closes_as_well(test: str, divided: str, expected: set[str]) -> None:
    assert ids(_LAST.format(divided=divided, test=test)) == expected


@pytest.mark.parametrize("name", ["log_every", "accumulate"])
def test_a_step_after_such_a_test_is_one_of_every_round(name: str) -> None:
    source = _LAST.format(divided="", test=f"(step + 1) % cfg.{name} == 0 or step + 1 == len(loader)")
    stepped = source[source.index("                scaler") :]
    logged = source.replace(
        stepped, f"                print(step)\n{textwrap.indent(textwrap.dedent(stepped), ' ' * 12)}"
    )
    assert ids(logged) == set()


_CLEARED = """
    import torch

    def train(cfg, model, loader, optimizer):
        scaler = torch.amp.GradScaler("cuda")
        model.train()
        for step, x in enumerate(loader):
            with torch.autocast("cuda"):
                loss = model(x).mean() / cfg.n
            scaler.scale(loss).backward()
            if {test}:
                scaler.step(optimizer)
                scaler.update()
{indent}optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("test", "indent", "expected"),
    [
        ("(step + 1) % cfg.n == 0", 12, {"AMP223"}),
        ("(step + 1) % cfg.n == 0", 16, set()),
        ("(step + 1) % cfg.every == 0", 12, set()),
        ("(step + 1) % cfg.accumulate == 0", 12, {"AMP223"}),
        ("loss < cfg.limit", 12, set()),
    ],
)
def test_gradients_that_are_cleared_at_the_end_of_every_round(test: str, indent: int, expected: set[str]) -> None:
    assert ids(_CLEARED.format(test=test, indent=" " * indent)) == expected


@pytest.mark.parametrize("leaves", ["break", "print(step)"])
@pytest.mark.parametrize("counter", ["(step + 1)", "cfg.step"])
def test_what_is_left_of_a_window_may_be_cleared_after_the_loop(leaves: str, counter: str) -> None:
    source = _CLEARED.format(test=f"{counter} % cfg.n == 0", indent=" " * 16)
    asked = f"            if cfg.debug and step == cfg.batches:\n                {leaves}\n"
    assert ids(f"{source}{asked}        optimizer.zero_grad()\n") == set()


@pytest.mark.parametrize(
    ("limit", "found"), [("1e9", set()), ("float('inf')", set()), ("1e6", set()), ("10.0", {"AMP223"})]
)
def test_a_limit_that_no_norm_comes_to_only_measures(limit: str, found: set[str]) -> None:
    source = f"""
        import torch
        from torch import nn

        def train(model, optimizer, loader, n):
            for step, x in enumerate(loader):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = model(x).mean() / n
                loss.backward()
                print(nn.utils.clip_grad_norm_(model.parameters(), {limit}))
                if (step + 1) % n == 0:
                    optimizer.step()
                    optimizer.zero_grad()
    """
    assert ids(source) == found
