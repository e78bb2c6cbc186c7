"""Programs of several ranks on the emulated device: each rank has one of its own, and gloo does NCCL's work."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from tests.runtime.drive import Run, audited

torch = pytest.importorskip("torch")
if torch.cuda.is_available():
    pytest.skip("there is a CUDA device: it is used, not emulated", allow_module_level=True)

HEAD = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.nn import functional as F
dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
def tell(text):
    with open(f"rank{rank}", "a") as file: file.write(f"{text}\\n")
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))
def batch(step):  # rank 1 has the second half
    torch.manual_seed(10 + step)
    return torch.randn(8, 8)[4 * rank : 4 * rank + 4].cuda()
"""


def two_ranks(code: str, folder: Path, head: str = HEAD) -> tuple[Run, list[list[str]]]:
    """A program's run under audit, and the lines that each of its two ranks told."""
    (folder / "train.py").write_text(head + textwrap.dedent(code) + "\ndist.barrier(); dist.destroy_process_group()\n")
    launcher = str(Path(sys.executable).parent / "torchrun")
    command = [launcher, "--standalone", "--nproc-per-node", "2", "train.py"]  # a free port, whoever else runs
    watched = audited(command, folder, kind="launcher", emulate="cuda", go_on=True)
    assert watched.code == 0, watched.stderr.decode()[-2000:]
    return watched, [(folder / f"rank{rank}").read_text().splitlines() for rank in range(2)]


def sums_alone() -> str:
    """Sums of the parameters after three steps on all data, on one CPU."""
    torch.manual_seed(0)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(10 + step)
        model(torch.randn(8, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return " ".join(f"{p.sum().item():.3f}" for p in model.parameters())


def test_data_parallel_ranks(tmp_path: Path) -> None:
    watched, told = two_ranks(
        """
        model = nn.parallel.DistributedDataParallel(net().to(rank), device_ids=[rank])
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
        for step in range(3):
            with torch.autocast("cuda", enabled=step < 0): loss = model(batch(step)).square().mean()
            scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
        total = torch.stack([p.detach().sum() for p in model.parameters()]).sum()
        others = [torch.zeros_like(total) for _ in range(2)]
        dist.all_gather(others, total); dist.all_reduce(loss, op=dist.ReduceOp.MAX); dist.barrier()
        tell(" ".join(f"{p.sum().item():.3f}" for p in model.parameters()))
        same = others[0].item() == others[1].item()
        tell(f"{same} {dist.get_backend()} {total.device} {torch.cuda.current_device()}")
        """,
        tmp_path,
    )
    assert told == [[sums_alone(), f"True nccl cuda:{rank} {rank}"] for rank in range(2)]
    assert sorted(trace.header.rank for trace in watched.traces if trace.steps) == [0, 1]
    assert any("allreduce" in row.op for row in watched.traces[0].steps[0].ops)


def test_a_mesh_makes_the_group(tmp_path: Path) -> None:
    """``init_device_mesh`` starts a group by itself, of the device's backend; layers are split over it."""
    _, told = two_ranks(
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        mesh = init_device_mesh("cuda", (2,)); model = net().cuda()
        own = net(); torch.manual_seed(3); x = torch.randn(4, 8)
        split = nn.Sequential(model[0], nn.ReLU(), model[2])
        plain = nn.Sequential(own[0], nn.ReLU(), own[2])
        parallelize_module(split, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        out = split(x.cuda()); out.sum().backward()
        plain(x).sum().backward()
        tell(f"{dist.get_backend()} {out.device} {torch.allclose(out.cpu(), plain(x), atol=1e-6)}")
        tell(torch.allclose(split[0].weight.grad.full_tensor().cpu(), plain[0].weight.grad, atol=1e-6))
        """,
        tmp_path,
        HEAD.replace('dist.init_process_group("nccl")\n', ""),
    )
    assert told == [[f"nccl cuda:{rank} True", "True"] for rank in range(2)]


def test_each_rank_has_a_device_of_its_own(tmp_path: Path) -> None:
    _, told = two_ranks(
        """
        x = torch.ones(2, device="cuda"); other = torch.ones(2, device=f"cuda:{1 - rank}")
        made = x, x + 1, nn.Linear(1, 1).cuda().weight, other, x.cpu().cuda()
        tell(" ".join(str(t.device) for t in made))
        try: x + other
        except RuntimeError as error: tell(str(error).partition("!")[0].partition("found ")[2])
        try: torch.ones(1, device="cuda:2")
        except RuntimeError as error: tell(error)
        w = torch.ones(2, device="cuda", requires_grad=True); (w * 3).sum().backward(); tell(w.grad.device)
        tell(other.copy_(x * 2).device); tell(torch.cuda.current_stream().device)
        torch.save(x, f"{rank}.pt")
        tell(torch.load(f"{rank}.pt").device); tell(torch.load(f"{rank}.pt", map_location=f"cuda:{1 - rank}").device)
        """,
        tmp_path,
    )
    for rank, lines in enumerate(told):
        own, other = f"cuda:{rank}", f"cuda:{1 - rank}"
        assert lines[0] == f"{own} {own} {own} {other} {own}"
        assert lines[1:] == [
            f"at least two devices, {own} and {other}",
            "CUDA error: invalid device ordinal",
            *(own, other, own, own, other),
        ]


def test_synchronized_batch_norm(tmp_path: Path) -> None:
    _, told = two_ranks(
        """
        model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(8))).cuda()
        model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
        with torch.autocast("cuda"): out = model(batch(0))
        (out * torch.arange(8.0, device="cuda")).square().mean().backward()
        norm = model.module[0]
        told = norm.running_mean, norm.running_var, norm.weight.grad
        tell(" ".join(f"{t.double().sum().item():.3f}" for t in told))
        """,
        tmp_path,
    )
    torch.manual_seed(10)
    norm = torch.nn.BatchNorm1d(8)
    (norm(torch.randn(8, 8)) * torch.arange(8.0)).square().mean().backward()
    expected = " ".join(f"{t.sum().item():.3f}" for t in (norm.running_mean, norm.running_var, norm.weight.grad))
    assert told == [[expected]] * 2


def test_fully_sharded_modules(tmp_path: Path) -> None:
    """``FullyShardedDataParallel``: the steps of one process; parameters and gradients in the dtypes asked for."""
    watched, told = two_ranks(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
        def train(kind, low, original):
            policy = MixedPrecision(param_dtype=low, reduce_dtype=low) if low else None
            model = FSDP(net(), device_id=torch.cuda.current_device(), mixed_precision=policy, sharding_strategy=kind,
                         use_orig_params=original, sync_module_states=True)
            seen = set()
            model.module[2].register_forward_hook(lambda m, i, o: seen.add(f"{m.weight.dtype} {o.dtype}"))
            optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), ShardedGradScaler(enabled=low is not None)
            for step in range(3):
                loss = model(batch(step)).float().square().mean()
                scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update(); optimizer.zero_grad()
            with FSDP.summon_full_params(model): sums = [p.sum().item() for p in model.parameters()]
            return seen, sums
        for kind in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
            seen, sums = train(kind, None, True); tell(" ".join(f"{s:.3f}" for s in sums))
        exact = sums
        for low in (torch.float16, torch.bfloat16):
            for original in (True, False):
                seen, sums = train(ShardingStrategy.FULL_SHARD, low, original)
                tell(f"{seen} {abs(sum(sums) - sum(exact)) < 0.05}")
        """,
        tmp_path,
    )
    low = [f"{{'torch.{dtype} torch.{dtype}'}} True" for dtype in ("float16", "bfloat16") for _ in range(2)]
    assert told == [[*[sums_alone()] * 3, *low]] * 2
    assert len(watched.traces[0].steps) > 3


def test_modules_sharded_in_place(tmp_path: Path) -> None:
    """``fully_shard`` on a mesh of CUDA devices, from a model on the device and from one on the meta device."""
    _, told = two_ranks(
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        mesh = init_device_mesh("cuda", (2,))
        for low in (None, torch.bfloat16):
            model = net().cuda(); seen = set()
            model[2].register_forward_hook(lambda m, i, o: seen.add(f"{m.weight.dtype} {o.dtype}"))
            policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
            for part in (model[0], model[2], model): fully_shard(part, mesh=mesh, mp_policy=policy)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(3):
                model(batch(step)).float().square().mean().backward(); optimizer.step(); optimizer.zero_grad()
            tell(" ".join(f"{p.full_tensor().sum().item():.3f}" for p in model.parameters()) if low is None else seen)
        with torch.device("meta"): later = net()
        fully_shard(later, mesh=mesh); later.to_empty(device="cuda")
        for part in later: part.reset_parameters()
        later(batch(0)).sum().backward(); tell(later[0].weight.grad.full_tensor().device)
        """,
        tmp_path,
    )
    for rank, lines in enumerate(told):
        assert lines == [sums_alone(), "{'torch.bfloat16 torch.bfloat16'}", f"cuda:{rank}"]


def test_collectives_of_nccl_that_gloo_takes_otherwise(tmp_path: Path) -> None:
    _, told = two_ranks(
        """
        from torch.distributed.distributed_c10d import _coalescing_manager
        def own(): return torch.arange(4.0, device="cuda") + rank
        x = own(); dist.all_reduce(x, op=dist.ReduceOp.AVG); tell(x.tolist())
        x, y = own(), own()
        with _coalescing_manager(device=x.device):
            dist.all_reduce(x)
            dist.all_reduce(y)
        tell((x + y).tolist())
        x = own()
        done = dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.value()[0] + own())
        tell((done.wait() - own()).tolist())
        assert done.wait().device == x.device
        with torch.device("cuda"):
            x = torch.zeros(4, 4).t() + rank
        dist.all_reduce(x); tell(x.sum().item())
        """,
        tmp_path,
    )
    expected = ["[0.5, 1.5, 2.5, 3.5]", "[2.0, 6.0, 10.0, 14.0]", "[1.0, 3.0, 5.0, 7.0]", "16.0"]
    assert told == [expected, expected]
