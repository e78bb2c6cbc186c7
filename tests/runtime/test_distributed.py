"""Two ranks over gloo: what each of them lost is what it loses alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from amp_audit import rulebook
from amp_audit.trace import judge
from tests.runtime.drive import audited, plainly

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))

PROGRAM = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
ranks = "RANK" in os.environ
rank = int(os.environ["RANK"] if ranks else sys.argv[1])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8))
if ranks:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model, gradient_as_bucket_view="view" in sys.argv, bucket_cap_mb=0.02)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
torch.manual_seed(rank)
x, y = torch.randn(32, 64), torch.randn(32, 8)
for step in range(3):
    if "inf" in sys.argv and rank == 1 and step == 1:  # the step that is deep
        x = x * 1e20
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x).float(), y) * 2e-5
    loss.backward()
    optimizer.step()
if ranks:
    dist.barrier()
    dist.destroy_process_group()
"""


def lost(trace: object) -> dict[str, object]:
    return {
        number.subject: {key: number.values[key] for key in ("elements", "nonzero", "flushed", "subnormal", "zero")}
        for step in trace.steps  # type: ignore[attr-defined]
        for number in step.numbers
        if number.name == "gradient"
    }


@pytest.mark.parametrize("view", [(), ("view",)])
def test_ddp_hides_no_underflow_of_any_parameter(view: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [TORCHRUN, "--nproc-per-node", "2", "train.py", *view]
    ranks = audited(command, tmp_path, kind="launcher").traces
    assert [trace.header.rank for trace in ranks] == [0, 1]
    for rank, trace in enumerate(ranks):
        alone = audited(["train.py", str(rank)], tmp_path, folder=tmp_path / f"alone-{rank}").trace
        assert lost(trace) == lost(alone)
        assert lost(trace)["0.weight"]["flushed"] > 0  # type: ignore[index]
        assert set(lost(trace)) == {f"{layer}.{kind}" for layer in (0, 2, 4) for kind in ("weight", "bias")}


def test_an_inf_of_another_rank_is_not_blamed_on_the_copy_that_brings_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [TORCHRUN, "--nproc-per-node", "2", "train.py", "inf"]
    innocent, guilty = audited(command, tmp_path, kind="launcher").traces
    blamed = [
        {number.op for number in trace.steps[1].numbers if number.name == "nonfinite"} for trace in (innocent, guilty)
    ]
    assert blamed[0] == {None}
    assert blamed[1] == {"aten._to_copy.default"}  # 1e20 does not fit float16


SKIPS_ALONE = """
import os
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.ones(3, 4)).square().mean()
    scaler.scale(loss).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    if rank == 1 and step == 1:
        model.weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
dist.barrier()
dist.destroy_process_group()
"""


def test_a_rank_that_skips_alone_is_found(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SKIPS_ALONE)
    command = [TORCHRUN, "--nproc-per-node", "2", "train.py"]
    traces = audited(command, tmp_path, kind="launcher").traces
    (found,) = [one for one in judge.findings(traces, rulebook.load()) if one.rule == "AMP708"]
    assert found.subject is not None and found.subject.name == "1"
    assert "rank 1 skipped step 2" in found.message


SHARDED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
for layer in (model[0], model[2], model):
    fully_shard(layer, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(dist.get_rank())
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 16)).float().square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if dist.get_rank() == 0:
        print(loss.item(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.skipif(not hasattr(torch.cpu.Stream, "record_event"), reason="FSDP2 of this torch does not train on a CPU")
def test_sharded_parameters_are_trained_as_without_us(tmp_path: Path) -> None:
    """DTensor has no memory of its own: whoever reads it beneath its dispatch reads nowhere."""
    (tmp_path / "train.py").write_text(SHARDED)
    command = ["--nproc-per-node", "2", "train.py"]
    plain = plainly(["-m", "torch.distributed.run", *command], tmp_path)
    watched = audited([TORCHRUN, *command], tmp_path, kind="launcher", deep="all")
    assert plain.code == watched.code == 0, watched.stderr
    assert watched.stdout == plain.stdout and plain.stdout.count(b"\n") == 3
    for trace in watched.traces:
        assert trace.end is not None and trace.end.steps == 3
        assert {row.inputs for step in trace.steps for row in step.ops if row.op == "aten.addmm"} == {("bfloat16",) * 3}
        assert [note for step in trace.steps for note in step.notes] == []
        assert any(name.startswith("the gradient norm") for name in trace.end.unobserved)
