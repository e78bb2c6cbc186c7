"""What an ``op`` detector can ask for; input of any kind."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from amp_audit import rulebook
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
