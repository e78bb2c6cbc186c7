"""Repairs of the training step: run before, the mistake shows; run after, it is gone, and so is the finding."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.static.fixes.mended import mended, printed, rules

SETUP = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
data = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(3)]
"""


def program(step: str, end: str = "print(float(model.weight.detach().abs().max()))\n") -> str:
    return SETUP + "for x, y in data:\n" + textwrap.indent(textwrap.dedent(step).strip("\n") + "\n", "    ") + end


def repaired(folder: Path, rule: str, before: str) -> str:
    """The program after its repair; the finding was there, needed ``unsafe``, and is gone."""
    assert mended(folder, before) == before
    assert rule in rules(folder)
    after = mended(folder, before, unsafe=True)
    assert rule not in rules(folder)
    return after


def number(text: str) -> float:
    return float(re.findall(r"[-+.\de]+", text)[-1])


def test_clip_before_unscale(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = program(
        """
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if True:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # keep
        scaler.step(optimizer)
        scaler.update()
        """,
        "print(float(norm))\n",
    )
    after = repaired(tmp_path, "AMP202", before)
    assert "        scaler.unscale_(optimizer)\n        norm = nn.utils" in after
    assert number(printed(before)) > 1000 > 10 > number(printed(after))


def test_plain_step_after_scaled_backward(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = program("""
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        optimizer.step()
        """)
    after = repaired(tmp_path, "AMP203", before)
    assert "    scaler.step(optimizer)\n    scaler.update()\n" in after
    assert number(printed(before)) > 5 > 1 > number(printed(after))


def test_unscaled_backward_with_scaler(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = program(
        """
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            extra = out.float().square().mean()
        scaler.scale(loss).backward(retain_graph=True)
        (extra * 0.5).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
        "print(model.weight.detach().flatten()[:6].tolist())\n",
    )
    after = repaired(tmp_path, "AMP204", before)
    plain = re.sub(
        r"scaler\.scale\((.+?)\)\.backward",
        r"(\1).backward",
        after.replace("scaler.step(optimizer)", "optimizer.step()"),
    )
    exact = eval(
        printed(plain.replace("torch.float16", "torch.bfloat16, enabled=False").replace("scaler.update()", ""))
    )
    off = [abs(a - b) for a, b in zip(eval(printed(before)), exact)]
    near = [abs(a - b) for a, b in zip(eval(printed(after)), exact)]
    assert max(near) < 1e-5 < 1e-4 < max(off)


def test_missing_scaler_update(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = program("""
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # once an iteration
        """)
    after = repaired(tmp_path, "AMP205", before)
    assert "    scaler.step(optimizer)  # once an iteration\n    scaler.update()\n" in after
    assert "step() has already been called" in printed(before) and "Error" not in printed(after)


def test_backward_inside_autocast(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = program("""
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)

            scaler.scale(
                loss
            ).backward()
            if x.sum() > 0:
                print("positive")
        scaler.step(optimizer)
        scaler.update()
        """)
    after = repaired(tmp_path, "AMP302", before)
    assert "\n    scaler.scale(\n        loss\n    ).backward()\n    if x.sum() > 0:\n        print(" in after
    assert printed(before).count("positive") == printed(after).count("positive") and "Error" not in printed(after)


def test_a_text_over_several_lines_keeps_the_region_as_it_is(tmp_path: Path) -> None:
    before = program('''
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            print("""
            its own lines""")
        scaler.step(optimizer)
        scaler.update()
        ''')
    assert mended(tmp_path, before, unsafe=True) == before and rules(tmp_path) == ["AMP302"]


@pytest.mark.parametrize(
    ("made", "used"),
    [
        ("criterion = nn.BCELoss()", "loss = criterion(torch.sigmoid(model(x)), t)"),
        (
            "criterion = None",
            "prob = model(x).sigmoid()\n            loss = nn.functional.binary_cross_entropy(prob, t)",
        ),
    ],
)
def test_bce_under_autocast(tmp_path: Path, made: str, used: str) -> None:
    pytest.importorskip("torch")
    cuda = program(
        f"""
        t = torch.nn.functional.one_hot(y, 4).float()
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            {used}
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        """,
        "print(float(loss.detach()))\n",
    ).replace("data =", f"{made}\ndata =")
    after = repaired(tmp_path, "AMP315", cuda)
    assert "sigmoid" not in after and ("BCEWithLogitsLoss()" in after or "binary_cross_entropy_with_logits(" in after)
    assert number(printed(after)) == pytest.approx(number(printed(cuda)), rel=1e-5)


def test_half_model_with_autocast(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = program(
        """
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        """,
        "print(model.weight.dtype, model.weight.device)\n",
    )
    before = before.replace("optimizer = ", 'model.to("cpu", torch.bfloat16)\noptimizer = ')
    after = repaired(tmp_path, "AMP401", before)
    assert 'model.to("cpu")\n' in after
    assert printed(before).startswith("torch.bfloat16 cpu") and printed(after).startswith("torch.float32 cpu")


def test_constant_overflows_half(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = program(
        """
        with torch.autocast("cpu", dtype=torch.float16):
            scores = model(x)
            scores = scores.masked_fill(scores > 0.5, value=-1e9)
            weights = scores.softmax(-1)
        """,
        "print(bool(weights.isnan().any()), scores.dtype)\n",
    )
    after = repaired(tmp_path, "AMP501", before)
    assert "value=torch.finfo(scores.dtype).min)" in after
    assert "without overflow" in printed(before) and printed(after) == "False torch.float16\n"


@pytest.mark.parametrize(
    ("array", "instead"),
    [
        ("out.detach().cpu().numpy()", "out.detach().cpu().float().numpy()"),
        ("np.asarray(out.detach())", "np.asarray(out.detach().float())"),
    ],
)
def test_bfloat16_to_numpy(tmp_path: Path, array: str, instead: str) -> None:
    pytest.importorskip("torch")
    before = program(
        f"""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        array = {array}
        """,
        "print(array.dtype)\n",
    ).replace("import torch\n", "import numpy as np\nimport torch\n", 1)
    after = mended(tmp_path, before)
    assert f"array = {instead}\n" in after and "AMP407" not in rules(tmp_path)
    assert "TypeError" in printed(before) and printed(after) == "float32\n"


ACCELERATED = """\
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)


def step(x, y):
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""


def test_accelerate_bypassed(tmp_path: Path) -> None:
    """Loss scaling under Accelerate needs a GPU, so that this program cannot run here."""
    after = repaired(tmp_path, "AMP803", ACCELERATED)
    wanted = (
        "        accelerator.backward(loss, retain_graph=True)\n"
        "        if accelerator.sync_gradients:\n"
        "            accelerator.clip_grad_norm_(model.parameters(), 1.0)\n"
    )
    assert wanted in after


# What is not surely meant


@pytest.mark.parametrize(
    ("rule", "step"),
    [
        # which optimizer?
        (
            "AMP202",
            """
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).sum()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_([*model.parameters(), *other.parameters()], 1.0)
            scaler.step(optimizer)
            scaler.step(second)
            scaler.update()
            """,
        ),
        # on every micro-batch: unscaling there would come twice
        (
            "AMP202",
            """
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).sum() / 2
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if int(y[0]) % 2:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            """,
        ),
    ],
)
def test_a_repair_that_is_a_guess_or_does_not_help_is_not_made(tmp_path: Path, rule: str, step: str) -> None:
    before = program(step).replace(
        "scaler =", "other = nn.Linear(16, 4)\nsecond = torch.optim.SGD(other.parameters(), lr=0.01)\nscaler ="
    )
    assert mended(tmp_path, before, unsafe=True) == before
    assert rule in rules(tmp_path)
