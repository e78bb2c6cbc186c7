"""AMP312 and AMP319 beyond the rules' own examples: decorators, casts, and what counts as using the gradient."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit.model import Confidence
from amp_audit.static.check import check
from tests.static.found import BOOK, findings, lines

HEAD = "import torch\nfrom torch.autograd import Function\nregion = torch.autocast('cuda')\n"


def function(forward: str, backward: str, decorator: str = "", head: str = HEAD) -> str:
    mark = f"    {decorator}\n" if decorator else ""
    return (
        f"{head}class F(Function):\n    @staticmethod\n{mark}    def forward(ctx, x, w):\n"
        f"        ctx.save_for_backward(x, w)\n        {forward}\n    @staticmethod\n{mark}    def backward(ctx, g):\n"
        f"        x, w = ctx.saved_tensors\n        {backward}\n"
    )


@pytest.mark.parametrize(
    ("forward", "backward", "decorator", "marked"),
    [
        ("return x @ w", "return g @ w.t(), x.t() @ g", "", [4]),
        ("return torch.mm(x, w)", "return torch.mm(g, w.t()), torch.mm(x.t(), g)", "", [4]),
        ("return x * w", "return g * w, g * x", "", []),
        ("return x @ w", "return g.float() @ w.t(), x.t() @ g", "", []),
        ("return x @ w", "return g @ g.t(), None", "", []),
        ("return x @ w", "return g @ w.t(), x.t() @ g", "@somebodys.own", []),
        ("return torch.nn.functional.embedding(x, w)", "return None, x.t() @ g", "", []),
        ("return torch.nn.functional.embedding(x, w) @ w", "return None, x.t() @ g", "", [4]),
        ("return x @ w", "return g @ w.t(), x.t() @ g", "@torch.autograd.function.once_differentiable", [4]),
    ],
)
def test_matmuls_in_backward(tmp_path: Path, forward: str, backward: str, decorator: str, marked: list[int]) -> None:
    assert lines(tmp_path, "AMP312", function(forward, backward, decorator)) == marked


def test_no_autocast_no_mismatch(tmp_path: Path) -> None:
    source = function("return x @ w", "return g @ w.t(), x.t() @ g", head=HEAD.replace("autocast", "no_grad"))
    assert lines(tmp_path, "AMP312", source + "half = torch.float16\n") == []


def test_decorators_that_an_import_may_bring_from_either_place(tmp_path: Path) -> None:
    head = (
        HEAD
        + "try:\n    from torch.amp import custom_bwd\nexcept ImportError:\n    from torch.cuda.amp import custom_bwd\n"
    )
    source = function("return x * w", "return g * w, g * x", head=head).replace(
        "    def backward", "    @custom_bwd\n    def backward"
    )
    assert len(lines(tmp_path, "AMP312", source)) == 1


@pytest.mark.parametrize(
    ("backward", "found"),
    [
        ("return x, None", True),
        ("return x * g, None", False),
        ("return torch.zeros_like(x), None", False),
        ("return None, None", False),
        ("raise NotImplementedError", False),
        ("return (None,) * 2", False),
        ("return 2 * x, None", True),
        ("return torch.zeros_like(x) * 2, None", False),
        ("return tuple(map(lambda t: t * g, (x, w)))", False),
        ("(lambda: g)()\n        return x, None", False),
        ("found = [None]\n        found.extend(None for _ in range(1))\n        return tuple(found)", False),
        ("found = [None]\n        found.extend(2 * t for t in (x,))\n        return tuple(found)", True),
        ("found = []\n        found.append(2 * x)\n        return (*found, None)", True),
        ("return ctx.portal.use_grad(), None", False),
        ("return ctx.grad_from_pipeline, None", False),
        ("return ctx.made.mul(2) if ctx.needs_input_grad[0] else x, None", True),
    ],
)
def test_what_counts_as_using_the_gradient(tmp_path: Path, backward: str, found: bool) -> None:
    source = function("return x", backward) + "scaler = torch.amp.GradScaler('cuda')\n"
    assert bool(lines(tmp_path, "AMP319", source)) is found


def test_a_gradient_that_forward_made_is_not_left_by_others(tmp_path: Path) -> None:
    source = function("ctx.grad_x = 2 * x\n        return x.square().sum()", "return ctx.grad_x, None")
    assert lines(tmp_path, "AMP319", source + "scaler = torch.amp.GradScaler('cuda')\n") == [11]


def test_without_a_scaler_it_is_a_guess(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, "AMP319", function("return x", "return x, None"))
    assert finding.confidence is Confidence.LOW


CHECKPOINT = """
import torch
class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x):
        ctx.run, ctx.x = run, x
        with torch.no_grad():
            return run(x)
    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            y = ctx.run(ctx.x.detach().requires_grad_())
        torch.autograd.backward(y, g)
"""


@pytest.mark.parametrize(
    ("body", "marked"),
    [
        ("with torch.no_grad(), torch.autocast('cuda'):\n        return model(x)", []),
        ("with torch.inference_mode(), torch.autocast('cuda'):\n        return model(x)", []),
        ("with torch.autocast('cuda'):\n        return model(x)", [12]),
        ("with torch.autocast('cuda'):\n        y = model(x)\n    y.sum().backward()", [12]),
        ("torch.set_grad_enabled(False)\n    with torch.autocast('cuda'):\n        return model(x)", []),
    ],
)
def test_where_autocast_is_for_sampling_alone_nothing_is_recomputed_in_it(
    tmp_path: Path, body: str, marked: list[int]
) -> None:
    other = f"import torch\nfrom train import Again\ndef run(model, x):\n    {body}\n"
    assert lines(tmp_path, "AMP707", CHECKPOINT, other=other) == marked


@pytest.mark.parametrize(("folder", "marked"), [("seg", []), ("diffusion", [12])])
def test_a_program_in_autocast_that_has_nothing_to_do_with_a_checkpoint_says_nothing_of_it(
    tmp_path: Path, folder: str, marked: list[int]
) -> None:
    texts = {
        "diffusion/nn.py": f"{CHECKPOINT}\ndef to_half(model):\n    return model.half()\n",
        "diffusion/train.py": "from nn import Again\ndef run(f, x):\n    Again.apply(f, x).sum().backward()\n",
        "seg/net.py": "from torch import nn\nclass Net(nn.Module): pass\n",
        f"{folder}/fit.py": "import torch\nfrom net import Net\ndef run(model, x):\n    with torch.autocast('cuda'):\n"
        "        y = model(x)\n    y.sum().backward()\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text if folder == "seg" else text.replace("from net import Net", "import train"))
    found = check([tmp_path], BOOK).findings
    assert [each.location.line for each in found if each.rule == "AMP707" and each.location] == marked


ROOT = "def root(x, w):\n    return F.apply(x, w)\ndef distance(x, w):\n    return root(x, w).sum()\n"


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("", False),
        ("class Net(torch.nn.Module):\n    def forward(self, x):\n        return distance(x, x)\n", True),
        ("def train(x):\n    with torch.autocast('cuda'):\n        distance(x, x).backward()\n", True),
        ("class Report:\n    def __call__(self, x):\n        return distance(x, x)\n", False),
        ("with torch.autocast('cuda'):\n    distance(x, x)\n", True),
    ],
)
def test_what_leads_to_no_region_does_not_run_in_one(tmp_path: Path, use: str, found: bool) -> None:
    source = function("return x @ w", "return g @ w.t(), x.t() @ g") + ROOT + use
    assert bool(lines(tmp_path, "AMP312", source)) is found


@pytest.mark.parametrize(("program", "marked"), [("import torch\nimport train\n", [10]), ("import torch\n", [])])
def test_a_loss_scale_comes_to_what_the_program_with_the_scaler_runs(
    tmp_path: Path, program: str, marked: list[int]
) -> None:
    source = function("return x", "return x, None")
    other = f"{program}scaler = torch.amp.GradScaler('cuda')\n"
    assert lines(tmp_path, "AMP319", source, other=other) == marked
