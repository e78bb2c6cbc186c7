"""Dry runs: a step of a model that the machine could not hold, with the operators and dtypes of a real one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.runtime.drive import audited

torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("there is a CUDA device: it is used, not emulated", allow_module_level=True)

PROGRAM = """
import resource, sys, torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        return x + self.drop(self.out(mixed.transpose(1, 2).flatten(2)))

width, layers, length = map(int, sys.argv[1:])
model = nn.Sequential(nn.Embedding(512, width), *[Block(width) for _ in range(layers)], nn.Linear(width, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for step in range(2):
    ids = torch.randint(512, (2, length)).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), ids.flatten())
    scaler.scale(loss).backward()
    scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
    assert bool((ids < 512).all()) and loss.item() == loss.item()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def _rows(folder: Path, arguments: list[str], *, dry: bool) -> list[tuple[object, ...]]:
    (folder / "train.py").write_text(PROGRAM)
    run = audited(["train.py", *arguments], folder, emulate="cuda", dry=dry, steps=1)
    assert run.code == 0, run.stderr.decode()[-2000:]
    (step,) = run.trace.steps
    assert run.trace.header.dry is dry and run.trace.header.policy == "cuda"
    kept = [row for row in step.ops if row.phase != "other"]  # a dry run measures nothing between the steps
    return [(r.phase, r.op, r.inputs, r.output, r.place.line, r.autocast, r.calls, r.elements, r.flops) for r in kept]


def test_operators_dtypes_and_work_are_those_of_a_real_run(tmp_path: Path) -> None:
    """The same small model: with its tensors above the size from which nothing is computed, and really run."""
    sizes = ["128", "2", "320"]
    for name in ("dry", "real"):
        (tmp_path / name).mkdir()
    dry = _rows(tmp_path / "dry", sizes, dry=True)
    real = _rows(tmp_path / "real", sizes, dry=False)
    assert set(dry) == set(real)
    assert any(row[1].startswith("aten._scaled_dot_product_flash_attention") for row in dry)


@pytest.mark.skipif(sys.platform != "linux", reason="memory that is only promised is counted otherwise elsewhere")
def test_a_model_larger_than_the_machine(tmp_path: Path) -> None:
    """100 layers of 8192: 27 billion parameters, 400 GiB with gradients and Adam's moments, in less than 2 GiB."""
    (tmp_path / "train.py").write_text(PROGRAM)
    run = audited(["train.py", "8192", "100", "1024"], tmp_path, emulate="cuda", dry=True, steps=1, go_on=True)
    assert run.code == 0, run.stderr.decode()[-2000:]
    assert int(run.stdout.split()[-1]) * 1024 < 2 * 2**30
    work = sum(row.flops or 0 for row in run.trace.steps[0].ops if row.phase == "forward" and "mm" in row.op)
    layer = 2 * 2 * 1024 * 8192 * 4 * 8192  # tokens by inputs by outputs of the two projections
    assert work == 100 * layer + 2 * 2 * 1024 * 8192 * 512
    assert not [number for number in run.trace.steps[0].numbers if number.name in ("underflow", "lost_updates")]


def test_ranks_take_a_step_without_computing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("""
import os, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl", init_method=f"file://{os.getcwd()}/store", rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(nn.Linear(512, 512).cuda(), device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.ones(2, 512, device="cuda")).sum().backward(); optimizer.step(); optimizer.zero_grad()
""")
    watched = audited(["train.py"], tmp_path, emulate="cuda", dry=True, steps=1)
    assert watched.code == 0, watched.stderr.decode()[-2000:]
    assert len(watched.trace.steps) == 1
    assert "aten.mm" in {row.op for row in watched.trace.steps[0].ops}
