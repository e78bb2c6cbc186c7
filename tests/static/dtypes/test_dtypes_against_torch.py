"""Dtypes as the walk sees them against dtypes as torch makes them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from amp_audit.static.binding.project import Project
from amp_audit.static.dtypes.values import NAMES, Opaque, Tensor, rounded
from amp_audit.static.dtypes.walk import Walk
from amp_audit.static.source.lowering import lower

PROGRAMS = {
    "layers": """
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.1))
        conv, norm, batch = nn.Conv1d(4, 4, 1), nn.LayerNorm(8), nn.BatchNorm1d(4)
        with torch.autocast("cpu", dtype=torch.float16):
            a = net(x)
            b = conv(x)
            c = norm(x)
            d = norm(a)
            e = a + x
            f = a + b
            g = batch(x)
            h = nn.Softmax(-1)(a)
            i = nn.MSELoss()(a, x)
    """,
    "operators": """
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = x @ x.transpose(1, 2)
            b = a * 2 + 1
            c = 1 / a
            d = a ** 2
            e = -a
            f = a > 0
            g = a * f
            h = 1 - a
            i = a / x.mean()
            j = ids + 1
            k = ids / 2
            l = ids.sum()
            m = a.sum(-1)
            a += 1
            n = a.pow(2).mean(-1)
            o = nn.LSTM(8, 8, batch_first=True)(x)[0]
            p = a + torch.tensor(1.5)
            q = a.sum() + x.sum()
    """,
    "casts": """
        with torch.autocast("cpu", dtype=torch.float16):
            a = torch.matmul(x, x.mT)
            b = a.float()
            c = b.to(a.dtype)
            d = a.to(x)
            e = a.type_as(x)
            f = x.half().double()
            g = torch.softmax(a, -1, dtype=torch.float32)
            h = torch.zeros_like(a)
            i = torch.zeros(3, dtype=a.dtype)
            j = a.new_zeros(3)
            k = torch.arange(4)
            l = torch.arange(4, dtype=torch.float16)
            m = a.to("cpu")
            n = a.to(torch.float64)
            o = torch.full((2,), 1.0)
    """,
    "structure": """
        with torch.autocast("cpu", dtype=torch.bfloat16):
            q, k, v = nn.Linear(8, 24)(x).chunk(3, dim=-1)
            scores = q @ k.transpose(-2, -1)
            top, index = scores.topk(2)
            peak = scores.max(dim=-1).values
            parts = [part.relu() for part in (q, k)]
            joined = torch.cat([*parts, x], dim=-1)
            stacked = torch.stack(parts)
            table = {"q": q, "x": x}
            picked = table["q"]
            other = table["x"]
            first, *rest = q, x, x
            chosen = torch.where(scores > 0, scores, 0.0)
            flat = scores.flatten(1)[:, :2]
            length = q.norm(dim=-1)
            unit = F.normalize(q, dim=-1)
            total = scores.exp().cumsum(-1)
    """,
    "einsum": """
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = torch.einsum("bij,bkj->bik", x, x)
            b = torch.einsum("bij,bij->bij", x, x)
            c = torch.einsum("i,j->ij", torch.ones(3), torch.ones(4))
            d = torch.einsum("i,j", a.flatten(), torch.ones(4))
            e = torch.einsum("...n,d->...nd", a, torch.arange(4, dtype=torch.float64))
            f = torch.einsum("bij,k->bik", x, torch.ones(4))
            g = torch.einsum("bij,bij->b", x, x)
    """,
    "nesting": """
        with torch.autocast("cpu", dtype=torch.float16):
            a = x @ x.mT
            with torch.autocast("cpu", enabled=False):
                b = a @ a.mT
                c = x @ x.mT
                d = a + c
            e = F.binary_cross_entropy_with_logits(a, a)
            f = F.cross_entropy(a.flatten(1), ids[:, 0])
            g = F.mse_loss(a, a)
            h = F.smooth_l1_loss(a, a)
        i = a * x[:, :, :4]
        j = x @ x.mT
    """,
    "functions": """
        def halve(t, factor=0.5):
            if factor > 0:
                return t * factor
            return t

        def make(kind):
            return {"a": lambda t: t @ t.mT, "b": lambda t: t}[kind]

        class Block(nn.Module):
            scale = 2.0

            def __init__(self, dim, depth=2):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(dim, dim) for _ in range(depth)])
                self.gain = nn.Parameter(torch.ones(dim))
                self.register_buffer("table", torch.ones(dim))

            @property
            def width(self):
                return self.gain * self.scale

            def inner(self, t):
                for layer in self.layers:
                    t = layer(t).relu()
                return t

            def forward(self, t):
                t = self.inner(t)
                return t, t * self.table, self.width

        with torch.autocast("cpu", dtype=torch.float16):
            a, b, c = Block(8)(x)
            d = halve(a)
            e = halve(t=x)
        f = halve(a, factor=2)
    """,
}
PREFIX = """
import torch
import torch.nn.functional as F
from torch import nn

x = torch.rand(2, 4, 8)
ids = torch.ones(2, 3, dtype=torch.int64)
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_dtypes_are_those_of_a_run(name: str) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    source = PREFIX + textwrap.dedent(PROGRAMS[name])
    real: dict[str, object] = {}
    exec(compile(source, name, "exec"), real)
    module = lower("/project/program.py", source)
    walk = Walk(Project([module], Path("/project")))
    seen = walk.run_module(module)
    known = {}
    for variable, value in real.items():
        if isinstance(value, torch.Tensor):
            claim = seen[variable]
            assert isinstance(claim, (Tensor, Opaque)), (variable, claim)
            known[variable] = claim.dtypes
    expected = {variable: _dtype(real[variable]) for variable in known}
    wrong = {v: (known[v], expected[v]) for v in known if "?" not in known[v] and known[v] != {expected[v]}}
    assert wrong == {}
    assert sum("?" not in claim for claim in known.values()) >= 0.9 * len(known), known


def _dtype(tensor: object) -> str:
    return NAMES[str(tensor.dtype).removeprefix("torch.")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_torchs(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    values = [
        s * v for v in (0.0, 1e-8, 2.0**-25, 2.9e-8, 3.1e-8, 1 - 1e-7, 1 - 3e-4, 1.00390625, 1.01, 1e9) for s in (1, -1)
    ]
    for value in [*values, 65504.0, 65519.9, 65520.0, 3.3e38, 3.4e38, 1e-45, float("inf")]:
        assert rounded(value, dtype) == torch.tensor(value, dtype=torch.float64).to(getattr(torch, dtype)).item(), value
