"""Ten programs on a real CUDA device and on the emulated one: every operator row of their traces compared.

    python benchmarks/emulation.py [--program NAME ...] [--emulate cuda:sm90]

Needs a machine with a CUDA device and a torch built for it; the emulated runs hide the device from that same torch. A
row is a phase, an operator, the dtypes of its inputs and output, the module, the line and the autocast dtype; programs
are seeded, run in one process each, and do not branch on values. Operators whose name depends on a library (cuDNN) are
told under one name. Prints the rows that only one side has, and exits with 1 if there are any.

``--only-emulated`` needs no device: it shows that the programs run, and how many rows they have.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE))

from amp_audit.trace import reader  # noqa: E402

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
torch.backends.cudnn.benchmark = False

def train(model, make, loss_of, *, dtype=torch.float16, steps=3, cls=torch.optim.AdamW, **options):
    model = model.cuda()
    optimizer = cls(model.parameters(), lr=1e-3, **options)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16, init_scale=1024.0)
    for step in range(steps):
        inputs = [x.cuda(non_blocking=True) for x in make()]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype):
            loss = loss_of(model, *inputs)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

def classify(model, x, y):
    return F.cross_entropy(model(x), y)
"""

PROGRAMS = {
    "mlp": """
model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 8))
train(model, lambda: (torch.randn(16, 32), torch.randint(8, (16,))), classify)
""",
    "cnn": """
model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                      nn.Conv2d(16, 16, 3, groups=4), nn.GroupNorm(4, 16), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
                      nn.Flatten(), nn.Linear(16, 8))
train(model, lambda: (torch.randn(8, 3, 16, 16), torch.randint(8, (8,))), classify, cls=torch.optim.SGD, momentum=0.9)
""",
    "transformer": """
layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True, norm_first=True)
model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, 8))
train(model, lambda: (torch.randn(4, 16, 64), torch.randint(8, (4, 16))),
      lambda m, x, y: F.cross_entropy(m(x).flatten(0, 1), y.flatten()), dtype=torch.bfloat16)
""",
    "gpt": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
    def forward(self, x):
        q, k, v = (p.view(*p.shape[:2], 4, 16).transpose(1, 2) for p in self.qkv(self.norm(x)).split(64, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        return x + self.out(y.transpose(1, 2).flatten(2))
model = nn.Sequential(nn.Embedding(128, 64), Block(), Block(), nn.LayerNorm(64), nn.Linear(64, 128, bias=False))
train(model, lambda: (torch.randint(128, (4, 32)),), lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()),
      dtype=torch.bfloat16, fused=True)
""",
    "masked attention": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 8)
    def forward(self, x, mask):
        q, k, v = (p.view(*p.shape[:2], 4, 16).transpose(1, 2) for p in self.qkv(x).split(64, 2))
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
train(Net(), lambda: (torch.randn(4, 16, 64), torch.ones(16, 16).tril().bool()),
      lambda m, x, mask: m(x, mask).square().mean())
""",
    "losses": """
def loss(m, x, y):
    p = m(x)
    parts = [F.mse_loss(p, y), F.smooth_l1_loss(p, y), F.l1_loss(p, y), F.huber_loss(p, y),
             F.binary_cross_entropy_with_logits(p, y.sigmoid()), F.kl_div(p.log_softmax(-1), y.softmax(-1)),
             F.cosine_similarity(p, y).mean(), p.exp().sum().log(), p.norm(), (p ** 2).cumsum(-1).mean(),
             F.softplus(p).prod(-1).mean(), F.normalize(p).sum(), torch.cdist(p, y).mean()]
    return torch.stack(parts).sum()
train(nn.Linear(16, 8), lambda: (torch.randn(4, 16), torch.randn(4, 8)), loss)
""",
    "autoencoder": """
model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.LeakyReLU(), nn.ConvTranspose2d(8, 8, 2, stride=2),
                      nn.InstanceNorm2d(8), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(8, 3, 1), nn.Tanh())
train(model, lambda: (torch.randn(2, 3, 8, 8),),
      lambda m, x: (m(x) - F.interpolate(x, scale_factor=2)).square().mean())
""",
    "checkpointing": """
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.RMSNorm(32)) for _ in range(3))
    def forward(self, x):
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=False)
        return x
train(Net(), lambda: (torch.randn(4, 32),), lambda m, x: m(x).pow(2).mean(), dtype=torch.bfloat16)
""",
    "half weights": """
model = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 8)).to(torch.bfloat16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    x = torch.randn(4, 32, device="cuda", dtype=torch.bfloat16)
    model(x).softmax(-1).log().mean().backward()
    optimizer.step(); optimizer.zero_grad()
""",
    "gan": """
make, judge = nn.Linear(8, 16).cuda(), nn.Sequential(nn.Linear(16, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).cuda()
one, two = torch.optim.Adam(make.parameters()), torch.optim.Adam(judge.parameters(), foreach=False)
scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
for step in range(3):
    with torch.autocast("cuda", dtype=torch.float16):
        fake = make(torch.randn(4, 8, device="cuda"))
        loss = F.softplus(judge(fake.detach())).mean() + F.softplus(-judge(torch.randn(4, 16, device="cuda"))).mean()
    two.zero_grad(); scaler.scale(loss).backward(); scaler.step(two)
    with torch.autocast("cuda", dtype=torch.float16):
        other = F.softplus(-judge(fake)).mean()
    one.zero_grad(); scaler.scale(other).backward(); scaler.step(one)
    scaler.update()
""",
}

SAME: dict[str, str] = {
    "cudnn_batch_norm": "batch_norm",
    "native_batch_norm": "batch_norm",
    "_batch_norm_with_update": "batch_norm",
    "cudnn_batch_norm_backward": "batch_norm_backward",
    "native_batch_norm_backward": "batch_norm_backward",
    "batch_norm_backward": "batch_norm_backward",
}
"""Names of one operator that depend on whether cuDNN is there; their aids (reserves, saved statistics) are left out."""

Row = tuple[Any, ...]


def rows(folder: Path, name: str, emulate: str | None) -> Counter[Row]:
    """Calls by row of one program. Raises RuntimeError with the program's error when it fails."""
    place = folder / f"{name.replace(' ', '_')}-{'emulated' if emulate else 'real'}"
    place.mkdir()
    script = place / "train.py"
    script.write_text(HEAD + PROGRAMS[name])
    words = ["--sample", "all", "--trace", str(place / "trace"), *(["--emulate", emulate] if emulate else [])]
    environment = {**os.environ, "PYTHONPATH": str(HERE), **({"CUDA_VISIBLE_DEVICES": ""} if emulate else {})}
    done = subprocess.run(
        [sys.executable, "-m", "amp_audit", "run", *words, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: Counter[Row] = Counter()
    for trace in reader.read(place / "trace"):
        for step in trace.steps:
            for row in step.ops:
                op = row.op.removeprefix("aten.").partition(".")[0]
                known = SAME.get(op)
                dtypes = (row.inputs[0], row.output) if known else (row.inputs, row.output)
                found[row.phase, known or op, dtypes, row.place.module, row.place.line, row.autocast] += row.calls
            for cast in step.casts:
                key = (cast.phase, "cast", (cast.source, cast.target), cast.place.module, cast.place.line, None)
                found[key] += cast.calls
    return found


def compare(names: Sequence[str], emulate: str, *, real: bool) -> int:
    """Print what differs, program by program; the number of rows that do."""
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            emulated = rows(Path(folder), name, emulate)
            print(f"{name}: {len(emulated)} rows, {sum(emulated.values())} calls emulated", end="")
            if not real:
                print()
                continue
            there = rows(Path(folder), name, None)
            only = [("emulated", emulated - there), ("real", there - emulated)]
            count = sum(len(rest) for _, rest in only)
            differing += count
            print(f", {len(there)} rows, {sum(there.values())} calls real; {count} differ")
            for side, rest in only:
                for row, calls in sorted(rest.items(), key=str):
                    print(f"  only {side}: {calls} x {row}")
    return differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", action="append", choices=list(PROGRAMS), help="only these")
    parser.add_argument("--emulate", help="the chip to emulate (the one that is there)")
    parser.add_argument("--only-emulated", action="store_true", help="run no program on a real device")
    options = parser.parse_args()
    import torch

    if options.only_emulated:
        return compare(options.program or list(PROGRAMS), options.emulate or "cuda", real=False)
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to compare with (--only-emulated runs the programs emulated)", file=sys.stderr)
        return 2
    major, minor = torch.cuda.get_device_capability()
    return int(compare(options.program or list(PROGRAMS), options.emulate or f"cuda:sm{major}{minor}", real=True) > 0)


if __name__ == "__main__":
    sys.exit(main())
