"""Optimizers that a function is handed: nothing says whose parameters they have, and the order of calls says enough."""

from __future__ import annotations

import textwrap

import pytest

from tests.static.pathing import found, line

TWO = """
import torch

def train(G, D, loader, og, od):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        og.zero_grad()
        od.zero_grad()
        with torch.autocast("cuda"):
            loss = torch.nn.functional.mse_loss(G(x) + D(x), y)
        scaler.scale(loss).backward()
"""


def lines(*statements: str) -> tuple[str, set[tuple[str, int]]]:
    source = TWO + textwrap.indent("\n".join(statements), "        ") + "\n"
    return source, {(rule, at) for rule, _, at in found(source)}


@pytest.mark.parametrize(
    ("statements", "mark", "rule"),
    [
        (
            ("og.zero_grad()  # late", "od.zero_grad()", "scaler.step(og)", "scaler.step(od)", "scaler.update()"),
            "# late",
            "AMP212",
        ),
        (
            ("scaler.step(og)", "scaler.update()  # between", "scaler.step(od)", "scaler.update()"),
            "# between",
            "AMP206",
        ),
        (
            ("scaler.unscale_(og)", "scaler.step(og)", "scaler.update()  # between", "scaler.unscale_(od)"),
            "# between",
            "AMP206",
        ),
    ],
)
def test_the_order_of_its_own_calls_is_enough(statements: tuple[str, ...], mark: str, rule: str) -> None:
    source, found_here = lines(*statements)
    assert (rule, line(source, mark)) in found_here


@pytest.mark.parametrize(
    "statements",
    [
        ("scaler.step(og)", "scaler.step(od)", "scaler.update()"),
        ("scaler.step(og)", "og.zero_grad()", "scaler.step(od)", "scaler.update()"),
        ("od.zero_grad()", "scaler.step(og)", "scaler.update()"),
        (
            "scaler.step(og)",
            "scaler.update()",
            "loss = D(x).mean()",
            "scaler.scale(loss).backward()",
            "scaler.step(od)",
            "scaler.update()",
        ),
        ("scaler.unscale_(og)", "scaler.unscale_(od)", "scaler.step(og)", "scaler.step(od)", "scaler.update()"),
        (
            "scaler.unscale_(og)",
            "torch.nn.utils.clip_grad_norm_(G.parameters(), 1.0)",
            "scaler.step(og)",
            "scaler.unscale_(od)",
            "torch.nn.utils.clip_grad_norm_(D.parameters(), 1.0)",
            "scaler.step(od)",
            "scaler.update()",
        ),
    ],
)
def test_what_the_other_one_does_says_nothing_of_it(statements: tuple[str, ...]) -> None:
    assert lines(*statements)[1] == set()


def test_a_helper_that_may_go_backward_in_between() -> None:
    helped = ("scaler.step(og)", "scaler.update()", "criterion.backward_second(D(x), y, scaler)", "scaler.step(od)")
    assert lines(*helped)[1] == set()


def test_clearing_a_bad_batch_after_unscale() -> None:
    """The inf checks of unscale_ are there, and the step then does nothing: what was meant."""
    statements = (
        "scaler.unscale_(og)",
        "norm = torch.nn.utils.clip_grad_norm_(G.parameters(), 1.0)",
        "if not torch.isfinite(norm):",
        "    og.zero_grad()",
        "scaler.step(og)",
        "scaler.update()",
    )
    assert lines(*statements)[1] == set()


def test_steps_without_clearing_use_old_gradients() -> None:
    source = """
import torch

def train(G, D, loader, og, od):
    scaler = torch.amp.GradScaler("cuda")
    og.zero_grad()
    for x, y in loader:
        with torch.autocast("cuda"):
            loss = torch.nn.functional.mse_loss(G(x), y)
        scaler.scale(loss).backward()
        scaler.step(og)
        scaler.update()
"""
    assert ("AMP223", line(source, "step(og)")) in {(rule, at) for rule, _, at in found(source)}


def test_clipping_before_its_own_unscale_is_told_after_the_step_of_another_one() -> None:
    source = """
import torch

def train(G, D, loader, opt_g, opt_d):
    scaler = torch.amp.GradScaler("cuda")
    for real, z in loader:
        with torch.autocast("cuda"):
            fake = G(z)
            loss_d = D(fake.detach()).mean() - D(real).mean()
        opt_d.zero_grad()
        scaler.scale(loss_d).backward()
        scaler.unscale_(opt_d)
        torch.nn.utils.clip_grad_norm_(D.parameters(), 1.0)
        scaler.step(opt_d)
        with torch.autocast("cuda"):
            loss_g = -D(fake).mean()
        opt_g.zero_grad()
        scaler.scale(loss_g).backward()
        torch.nn.utils.clip_grad_norm_(G.parameters(), 1.0)
        scaler.step(opt_g)
        scaler.update()
"""
    assert {(rule, at) for rule, _, at in found(source)} == {("AMP202", line(source, "(G.parameters"))}
