"""Whole programs written for CUDA, under audit on the emulated device: unchanged, and recorded as on CUDA."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.runtime.drive import ENVIRONMENT, audited, plainly

torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("there is a CUDA device: it is used, not emulated", allow_module_level=True)

PROGRAM = """
import hashlib, torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(5)
assert torch.cuda.is_available()
device = torch.device("cuda:0")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Dropout(0.1)
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.layer, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        x = self.drop(F.gelu(self.norm(self.conv(x)))).flatten(2).transpose(1, 2)
        x = self.layer(x + self.mix(x, x, x, need_weights=False)[0])
        return self.head(x.mean(1)).softmax(-1)

model = torch.compile(Net().to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
scaler = torch.cuda.amp.GradScaler(init_scale=2.0**24)
for step in range(5):
    x, y = torch.randn(6, 3, 4, 4).pin_memory().cuda(non_blocking=True), torch.randint(4, (6,), device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        p = model(x)
        loss = F.nll_loss((p + 1e-6).log(), y)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    print(step, p.dtype, loss.item(), norm.item(), scaler.get_scale())
state = b"".join(v.detach().cpu().numpy().tobytes() for v in model.state_dict().values())
print(hashlib.sha256(state).hexdigest(), torch.rand(1, device="cuda").item(), torch.rand(1).item())
"""

ALONE = """
import runpy, sys, torch
from amp_audit.runtime import emulation
emulation.begin("cuda")
runpy.run_path(sys.argv[1], run_name="__main__")
"""


LOW = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).bfloat16().to(sys.argv[1])
x = torch.randn(8, 16).bfloat16().to(sys.argv[1])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **{sys.argv[2]: True})
for step in range(3):
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("kind", ["capturable", "fused"])
def test_lost_updates_are_the_same_with_the_counter_on_the_device(kind: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOW)
    told = []
    for device, how, emulate in (("cpu", "foreach", None), ("cuda", kind, "cuda")):
        run = audited(["train.py", device, how], tmp_path, emulate=emulate, deep="all", folder=tmp_path / device)
        assert run.code == 0, run.stderr
        told.append(
            [(n.subject, n.values) for step in run.trace.steps for n in step.numbers if n.name == "lost_updates"]
        )
    assert told[0] == told[1] and len(told[0]) == 12
    assert 0 < told[0][0][1]["lost"] < told[0][0][1]["updates"]


def test_an_audit_changes_nothing(tmp_path: Path) -> None:
    """The same output bit for bit, emulated with and without recording."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "alone.py").write_text(ALONE)
    plain = plainly(["alone.py", "train.py"], tmp_path)
    watched = audited(["train.py"], tmp_path, emulate="cuda")
    assert plain.code == watched.code == 0, plain.stderr.decode()[-2000:] + watched.stderr.decode()[-2000:]
    assert plain.stdout == watched.stdout
    trace = watched.trace
    assert (trace.header.policy, trace.header.emulated, trace.header.device) == (
        "cuda",
        "cuda",
        "NVIDIA A100-SXM4-40GB",
    )
    notes = [note for step in trace.steps for note in step.notes if "torch.compile" not in note]
    random = {"native_dropout", "native_dropout_backward", "_scaled_dot_product_flash_attention", "native_batch_norm"}
    assert notes == [] and trace.end is not None
    operators = [name for name in trace.end.unobserved if name.startswith("aten.")]
    assert {name.split(".")[1] for name in operators} <= random  # not run again on a GPU either


def test_operators_are_recorded_as_on_cuda(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    trace = audited(["train.py"], tmp_path, emulate="cuda:sm80").trace
    rows = {(row.op.partition(".")[2].partition(".")[0], row.output) for row in trace.steps[1].ops if row.autocast}
    assert {
        ("convolution", "float16"),
        ("native_dropout", "float16"),
        ("_scaled_dot_product_flash_attention", "float16"),
        ("native_layer_norm", "float32"),
        ("addmm", "float16"),
        ("_softmax", "float32"),
        ("log", "float32"),
    } <= rows
    assert {row.phase for row in trace.steps[1].ops} >= {"forward", "backward", "optimizer"}
    placed = [row for row in trace.steps[1].ops if row.phase == "backward"]
    assert sum(row.place.line is not None for row in placed) > 0.8 * len(placed)
    assert {number.name for number in trace.steps[1].numbers} >= {"underflow", "gradient", "scale"}


def amp_audit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "amp_audit", *words],
        cwd=folder,
        env={**ENVIRONMENT, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_report_says_that_it_was_emulated(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = amp_audit(tmp_path, "--emulate", "cuda:sm75", "--steps", "2", "--policy-torch", "2.11", "train.py")
    text = " ".join(done.stdout.split())
    assert "CUDA WAS EMULATED on the CPU, as Tesla T4 (compute capability 7.5)" in text
    assert "autocast's lists: CUDA's of torch" in text
    assert "those of torch 2.11 differ: rms_norm (float32 here, as it comes there)" in text
    assert "differ for" not in text  # from CUDA's own lists


def test_another_devices_lists_are_no_excuse_any_more(tmp_path: Path) -> None:
    """What was read of an op that only CUDA's lists run in float32 is held against the run."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import torch
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = torch.nn.Linear(8, 8).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = model(torch.ones(2, 8, device=device)).softmax(-1).pow(2).sum()
            loss.backward(); optimizer.step(); optimizer.zero_grad()
        """)
    )
    for words, expected in ((["--emulate", "cuda"], []), ([], ["pow", "softmax", "sum"])):
        out = tmp_path / "out.json"
        amp_audit(tmp_path, *words, "--format", "json", "-o", str(out), "train.py")
        data = json.loads(out.read_text())
        assert sorted({item["op"] for item in data["trace"]["differences"]}) == expected
        assert data["trace"]["policy"] == ("cuda" if words else "cpu")
        assert data["trace"]["emulated"] == ("cuda" if words else None)


@pytest.mark.parametrize("device", ["rocm", "cuda:sm19"])
def test_what_cannot_be_emulated_is_said_before_anything_runs(device: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    done = amp_audit(tmp_path, "--emulate", device, "train.py")
    assert done.returncode == 2 and "ran" not in done.stdout
    assert f"cannot emulate '{device}': known" in done.stderr


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import flash_attn_interface", "needs flash_attn_interface, whose kernels run on GPUs only"),
        (
            "torch.nn.Embedding(4, 2, sparse=True).cuda()(torch.tensor([1]).cuda()).sum().backward()",
            "amp-audit cannot emulate sparse CUDA tensors (aten._sparse_coo_tensor_with_dims_and_tensors.default)",
        ),
        ("torch.eye(2).cuda().to_sparse_csr()", "amp-audit cannot emulate sparse csr CUDA tensors"),
        ("torch.nested.nested_tensor([torch.ones(2)]).cuda() + 1", "amp-audit cannot emulate nested CUDA tensors"),
        (
            "torch.quantize_per_tensor(torch.ones(3).cuda(), 0.1, 0, torch.qint8)",
            "amp-audit cannot emulate quantized CUDA tensors",
        ),
        (
            "torch.ones(2).cuda().untyped_storage()._share_cuda_()",
            "amp-audit cannot emulate tensors of the device that processes share",
        ),
        ("torch.cuda._compile_kernel('', 'f')", "the program compiles CUDA kernels of its own"),
        (
            "torch.ops.aten._cudnn_rnn_flatten_weight([torch.ones(1).cuda()], 1, 1, 0, 1, 0, 1, False, False)",
            "amp-audit cannot emulate aten._cudnn_rnn_flatten_weight.default: it has a kernel for CUDA only",
        ),
        ("torch.cuda.MemPool()", "the program uses torch's MemPool, which cannot be emulated"),
        (
            "torch.cuda.memory.caching_allocator_alloc(8)",
            "the program uses torch's _cuda_cudaCachingAllocator_raw_alloc, which cannot be emulated",
        ),
    ],
)
def test_what_ends_a_program_that_cannot_be_emulated_is_named(line: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import torch\n{line}\n")
    watched = audited(["train.py"], tmp_path, emulate="cuda")
    assert watched.code == 1
    assert watched.trace.header.policy == "cuda"  # though it may have ended before it used the device
    assert watched.trace.end is not None and any(reason in note for note in watched.trace.end.notes)


def test_settings_of_float32_that_forbid_to_be_read(tmp_path: Path) -> None:
    """torch refuses to tell ``allow_tf32`` once the newer ``fp32_precision`` was set; the run is recorded."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import torch
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        torch.backends.cudnn.conv.fp32_precision = "ieee"
        model = torch.nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cuda"): loss = model(torch.ones(2, 4, device="cuda")).sum()
        loss.backward(); optimizer.step()
        """)
    )
    watched = audited(["train.py"], tmp_path, emulate="cuda")
    assert watched.code == 0, watched.stderr.decode()[-2000:]
    assert len(watched.trace.steps) == 1
    assert watched.trace.header.flags["cuda_matmul_allow_tf32"] is None


JIT = """
import torch
from torch import nn
D = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).to(D)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(2, 3, 8, 8, device=D)
for _ in range(2):
    model(x).sum().backward(); optimizer.step(); optimizer.zero_grad()
traced = torch.jit.trace(model.eval(), x)
kinds = [node.kind() for node in traced.inlined_graph.nodes() if node.kind().startswith("aten")]
print(kinds, bool(torch.equal(traced(x), model(x))))
"""


@pytest.mark.parametrize("device", ["cuda", None])
def test_what_is_traced_for_torchscript_is_a_graph(device: str | None, tmp_path: Path) -> None:
    """On CPU tensors too: a mode that sees a convolution whole keeps its parts from the graph."""
    (tmp_path / "train.py").write_text(JIT)
    watched = audited(["train.py"], tmp_path, emulate=device)
    assert watched.code == 0, watched.stderr.decode()[-2000:]
    kinds = ["aten::_convolution", "aten::batch_norm", "aten::relu", "aten::flatten", "aten::linear"]
    assert watched.stdout.decode().strip() == f"{kinds} True"
    assert watched.trace.end is not None and "operators under torch.jit.trace" in watched.trace.end.unobserved


def test_profilers_record_without_a_device(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import torch
        from torch.profiler import ProfilerActivity, profile
        x = torch.ones(8, 8, device="cuda")
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as one:
            x @ x
        with torch.autograd.profiler.profile(use_device="cuda") as other:
            x @ x
        with torch.autograd.profiler.emit_nvtx():
            x @ x
        for seen in (one, other):
            print(any(item.key == "aten::mm" for item in seen.key_averages()))
            seen.key_averages().table(sort_by="cuda_time_total")
        """)
    )
    watched = audited(["train.py"], tmp_path, emulate="cuda")
    assert watched.code == 0, watched.stderr.decode()[-2000:]
    assert watched.stdout.split() == [b"True", b"True"]
    assert b"Failed to record CUDA event" not in watched.stderr


def test_a_ctc_loss_takes_lengths_that_lie_on_the_cpu(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import torch
        from torch.nn import functional as F
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 5).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            scores = model(torch.ones(10, 2, 4, device="cuda")).log_softmax(-1)
            targets = torch.tensor([[1, 2], [3, 4]], device="cuda")
            loss = F.ctc_loss(scores, targets, torch.tensor([10, 9]), torch.tensor([2, 1]))
            loss.backward(); optimizer.step(); optimizer.zero_grad()
            print(loss.item())
        """)
    )
    (tmp_path / "alone.py").write_text(ALONE)
    plain, watched = plainly(["alone.py", "train.py"], tmp_path), audited(["train.py"], tmp_path, emulate="cuda")
    assert watched.code == plain.code == 0, watched.stderr.decode()[-2000:]
    assert watched.stdout == plain.stdout


SCRIPT = """
import torch
from torch.nn import functional as F
D = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(4, 5).to(D)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(2, 4, device=D)).sum().backward(); optimizer.step(); optimizer.zero_grad()
@torch.jit.script
def places(n: int, x: torch.Tensor):
    return torch.arange(n, device=x.device) + torch.zeros(n, device=x.device) + torch.ones_like(x[:, 0, 0])
@torch.jit.script
def loss(scores: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor):
    return F.ctc_loss(scores, targets, lengths, torch.ones_like(lengths))
x = torch.zeros(3, 2, 4, device=D).log_softmax(-1)
targets, lengths = torch.ones(2, 1, dtype=torch.long, device=D), torch.tensor([3, 2], device=D)
print(places(3, x).tolist(), loss(x, targets, lengths).item())
"""


@pytest.mark.parametrize("device", ["cuda", None])
def test_torchscript_compiles_what_uses_factories(device: str | None, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    plain, watched = plainly(["train.py"], tmp_path), audited(["train.py"], tmp_path, emulate=device)
    assert watched.code == plain.code == 0, watched.stderr.decode()[-2000:]
    assert watched.stdout == plain.stdout
