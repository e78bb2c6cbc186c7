"""AMP102 beyond the rule's own examples: how apex is imported, and what else stands in its regions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.static.found import findings, lines

NAMES = "import torch\nfrom torch.nn.utils import clip_grad_norm_\nfrom apex import amp\n"


@pytest.mark.parametrize(
    ("source", "marked"),
    [
        ("import apex\napex.amp.initialize(m, o)\n", [2]),
        ("from apex.amp import initialize as prepare\nprepare(m, o)\n", [2]),
        ("try:\n    import apex.amp as A\nexcept ImportError:\n    A = None\nA.initialize(m, o)\n", [5]),
        ("from apex import amp\namp = None\nif amp:\n    amp.initialize(m, o)\n", []),
        ("from apex.parallel import convert_syncbn_model\nm = convert_syncbn_model(m)\n", []),
        ("from apex.fp16_utils import FP16_Optimizer\no = FP16_Optimizer(o)\n", [2]),
    ],
)
def test_however_it_is_imported(tmp_path: Path, source: str, marked: list[int]) -> None:
    assert lines(tmp_path, "AMP102", source) == marked


@pytest.mark.parametrize(
    ("body", "marked"),
    [
        ("        s.backward()\n    clip_grad_norm_(p, 1.0)\n    opt.step()\n", []),
        ("        s.backward()\n        clip_grad_norm_(p, 1.0)\n", [7]),
        ("        s.backward()\n        if clip:\n            clip_grad_norm_(p, 1.0)\n", [8]),
        ("        clip_grad_norm_(p, 1.0)\n        s.backward()\n", []),  # the gradients of the step before
        ("        loss.backward()\n", [6]),
        ("        s.backward()\n        other.step()\n", []),
        ("        s.backward()\n        def later():\n            clip_grad_norm_(p, 1.0)\n", []),
    ],
)
def test_what_stands_inside_scale_loss(tmp_path: Path, body: str, marked: list[int]) -> None:
    source = f"{NAMES}def step(loss, opt, p, clip, other):\n    with amp.scale_loss(loss, opt) as s:\n{body}"
    assert [line for line in lines(tmp_path, "AMP102", source) if line != 5] == marked


@pytest.mark.parametrize(
    ("before", "marked"),
    [
        ("m = torch.nn.DataParallel(m)\n", [5]),
        ("m = torch.nn.DataParallel(m)\nm = m.module\n", [6]),
        ("other = torch.nn.DataParallel(m)\n", [5]),
        ("", [4]),
    ],
)
def test_wrapped_before_initialize(tmp_path: Path, before: str, marked: list[int]) -> None:
    found = findings(tmp_path, "AMP102", f"{NAMES}{before}m, o = amp.initialize(m, o)\n")
    assert [each.location.line for each in found if each.location] == marked
    assert ("RuntimeError" in found[0].message) is (before == "m = torch.nn.DataParallel(m)\n")


def test_a_library_whose_users_initialize(tmp_path: Path) -> None:
    body = "def step(loss, optimizer):\n    with amp.scale_loss(loss, optimizer) as s:\n        s.backward()\n"
    assert lines(tmp_path, "AMP102", NAMES + body) == [5]


LOOP = "from apex import amp\nfor x in loader:\n    with amp.scale_loss(f(x), opt) as s:\n        s.backward()\n"


@pytest.mark.parametrize(
    ("rest", "marked"),
    [
        ("    opt.step()\n    scheduler.step()\n", [6]),
        ("    if i % 4 == 0:\n        opt.step()\n        warmup_scheduler.step()\n", [7]),
        ("    scheduler.step()\n    opt.step()\n", []),  # that of the round before is decided by then
        ("    opt.step()\nscheduler.step()\n", []),  # once an epoch
        ("    other.step()\n    scheduler.step()\n", []),
        ("    opt.step()\n    scheduler.step(n)\n", []),  # it is told where it stands
        ("    opt.step()\n    if not skipped:\n        scheduler.step()\n", []),
        ("    opt.step()\n    for s in schedulers:\n        s.step()\n", []),
    ],
)
def test_schedules_advance_after_steps_that_apex_may_leave_out(tmp_path: Path, rest: str, marked: list[int]) -> None:
    assert lines(tmp_path, "AMP217", LOOP + rest) == marked
