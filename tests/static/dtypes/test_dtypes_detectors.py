"""What an ``op`` detector can ask for; input of any kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.model import Confidence
from amp_audit.rulebook import Rulebook
from amp_audit.static import dtypes
from amp_audit.static.binding.project import Project
from amp_audit.static.source.lowering import lower, positions
from tests.static.dtypes.judging import TRAIN, find, messages, rule_of


def test_a_number_of_arguments_and_regions() -> None:
    own = rule_of(op=["sum"], inputs=["float16"], region={"live": False}, message="{op}")
    source = """
        import torch

        def f(x):
            y = x.half()
            with torch.autocast("cuda"):
                y.sum()
            return y.sum()
    """
    assert messages(source, own) == ["sum"]
    assert messages(source.replace("return y.sum()", "return y.float().sum()"), own) == []


@pytest.mark.parametrize("option", [{"constant": 1}, {"inputs": "float16"}, {"region": ["live"]}])
def test_options_of_the_wrong_kind_name_the_rule(option: dict[str, object]) -> None:
    with pytest.raises(rulebook.RuleError, match="X001: `"):
        messages("import torch\ntorch.zeros(1).half()", rule_of(op="add", **option))


ODD = """
    import torch
    from torch import nn
    from .nowhere import *
    from train import f as g

    class A(A): pass
    class B(nn.Module, metaclass=type):
        x: int
        def __init__(self, *a, k=lambda: 1, **kw):
            self.a, *self.b = a
            self.c = self.d = kw["c"]
            del self.c
        def forward(self): return self.forward() + self()
        async def go(self):
            async for i in self:
                await i
            async with torch.autocast("cuda") as (a, b):
                yield a
    def f(n):
        global z
        z = f(n - 1) if n else [f, *f(n)][0:n:2]
        while (n := n - 1): break
        else: return f"{n!r:>{z}}"
        match n:
            case {"a": [1, *_]} if n: return
            case B(x=0) | None: raise ValueError from None
        try: 1 / 0
        except* ValueError as e: e
        return z[...] @ n ** -1e308 ** 1e308, {**z, "k": -n}, {*z}, (lambda: (yield))(), not n, n if n else 1 < n < 2
    with torch.autocast("cuda"), torch.autocast(*[], **{}): f(f)
    torch.autocast("cuda")(f)(10 ** 400 + 1.5, "a" * 2, "a" % 3)
    torch.zeros(3).half() + 10 ** 400
    for f in f: f = f, f
"""


def test_odd_code_is_survived() -> None:
    assert find({"train.py": textwrap.dedent(ODD)}) == set()


def test_sources_of_torch_are_survived() -> None:
    torch = pytest.importorskip("torch")
    folder = Path(torch.__file__).parent / "nn" / "modules"
    files = {f"{name}.py": (folder / f"{name}.py").read_text() for name in ("transformer", "rnn", "adaptive")}
    files["train.py"] = textwrap.dedent(TRAIN).replace(
        "from model import Net", "from transformer import Transformer as Net"
    )
    assert find(files) == set()


REGIONS = """
    import torch
    from torch import nn

    def square(t):
        return t * 2

    def train(model, criterion, x):
        model.train()
        head = nn.Linear(8, 8)
        with torch.autocast("cuda"):
            h = head(x)
            out = model(x)
        with torch.autocast("cuda", enabled=False):
            y = square(h)
            z = out * 2
        return y.sum(), z, torch.zeros(3).add_(h), h.sum(-1), criterion(out)
"""


def places(own: Rulebook) -> list[int]:
    """The lines of what a rule finds in ``REGIONS``."""
    source = textwrap.dedent(REGIONS)
    where = positions(source)
    found = dtypes.find(Project([lower("/project/train.py", source)], Path("/project")), own)
    return [where(finding.at).line for finding in found if finding.confidence >= Confidence.MEDIUM]


@pytest.mark.parametrize(
    ("detector", "lines"),
    [
        ({"op": "mul", "inputs": ["float16"]}, [6]),
        ({"op": "mul", "inputs": ["float16"], "outputs": True}, [6, 16]),
        ({"op": "mul", "inputs": ["float16"], "region": {"live": True}}, []),
        ({"op": "mul", "inputs": ["float16"], "region": {"disabled": True}, "at": "call"}, [15]),
        ({"op": "mul", "inputs": ["float16"], "region": {"disabled": True}, "at": "region"}, [14]),
        ({"op": "mul", "takes": [{"dtype": ["float16"], "last": ["linear"]}]}, [6]),
        ({"op": "mul", "takes": [{"dtype": ["float16"], "last": ["conv2d"]}]}, []),
        ({"op": "sum", "inputs": ["float16"]}, [17, 17]),
        ({"op": "sum", "inputs": ["float16"], "whole": False, "takes": [{"last": ["mul"]}]}, []),
        ({"op": "add", "takes": [{"dtype": ["float16"], "origin": ["region"]}, {"dtype": ["float32"]}]}, [17]),
        ({"op": "add", "takes": [{"dtype": ["float16"], "first": True}]}, []),
        ({"op": "add", "takes": [{"dtype": ["float16"]}], "lacks": ["float32"]}, []),
        ({"op": "add", "takes": [{"dtype": ["float16"]}], "in_place": False}, []),
        ({"op": "call", "takes": [{"origin": ["model"]}], "outputs": True}, [17]),
        ({"op": "call", "takes": [{"origin": ["model"]}]}, []),
        ({"op": "linear", "region": {"live": True, "policy": "lower"}}, [12]),
        ({"op": "linear", "region": {"live": True, "dtype": "bfloat16"}}, []),
    ],
)
def test_what_a_detector_can_ask_for(detector: dict[str, object], lines: list[int]) -> None:
    assert places(rule_of(**detector)) == lines


def test_a_place_that_is_none_names_the_rule() -> None:
    with pytest.raises(rulebook.RuleError, match="X001: `at`"):
        places(rule_of(op="mul", at="elsewhere"))


def test_one_place_holds_the_rule_that_wins() -> None:
    data = {"name": "x", "severity": "error", "summary": "s", "why": "w", "fix": "f", "static": {"op": "linear"}}
    winner, loser = ({**data, "id": rule, **extra} for rule, extra in (("X001", {}), ("X002", {"yields_to": ["X001"]})))
    own = Rulebook({str(one["id"]): rulebook.parse_rule(one) for one in (winner, loser)})
    source = textwrap.dedent(REGIONS)
    found = dtypes.find(Project([lower("/project/train.py", source)], Path("/project")), own)
    assert [(finding.rule.id, [step.rule for step in finding.related]) for finding in found] == [("X001", ["X002"])]


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_order_of_sets_makes_no_difference(seed: str, tmp_path: Path) -> None:
    """Sets of texts are in another order in every process; what is said must not be."""
    source = """
        import torch
        from torch import nn

        def train(x, args):
            dtype = torch.float16 if args.half else torch.bfloat16
            region = torch.autocast("cuda", dtype=dtype) if args.a else torch.autocast("cuda", dtype=torch.bfloat16)
            head = nn.Linear(8, 8)
            with region:
                h = head(x)
            return nn.functional.cross_entropy(h, x)
    """
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(source))
    run = [sys.executable, "-m", "amp_audit", "check", "--format", "json", str(path)]
    done = subprocess.run(run, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed}, check=False)
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["rule"] == "AMP309"
    assert finding["message"].startswith("cross_entropy is computed outside of autocast on a bfloat16 output (linear)")
