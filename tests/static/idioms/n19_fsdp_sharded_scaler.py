import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def main(loader, rank, clip=3.0):
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    precision = MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16, buffer_dtype=torch.float32)
    model = FSDP(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).cuda(), mixed_precision=precision)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    scaler = ShardedGradScaler()
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x.cuda()).float(), y.cuda())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        model.clip_grad_norm_(clip)
        scaler.step(optimizer)
        scaler.update()
