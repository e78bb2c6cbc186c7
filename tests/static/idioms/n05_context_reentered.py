from contextlib import nullcontext

import torch
from torch import nn

device = "cuda"
dtype = "float16"
batch_size, block_size, max_iters, eval_iters = 12, 64, 1000, 20

device_type = "cuda" if "cuda" in device else "cpu"
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
ctx = nullcontext() if device_type == "cpu" else torch.amp.autocast(device_type=device_type, dtype=ptdtype)

model = nn.Sequential(nn.Embedding(256, 64), nn.Linear(64, 256)).to(device)
scaler = torch.amp.GradScaler("cuda", enabled=(dtype == "float16"))
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)


def get_batch():
    x = torch.randint(256, (batch_size, block_size), device=device)
    return x, torch.roll(x, -1, dims=1)


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.zeros(eval_iters)
    for k in range(eval_iters):
        X, Y = get_batch()
        with ctx:
            loss = nn.functional.cross_entropy(model(X).view(-1, 256), Y.view(-1))
        losses[k] = loss.item()
    model.train()
    return losses.mean()


for iter_num in range(max_iters):
    if iter_num % 100 == 0:
        print(f"step {iter_num}: loss {estimate_loss():.4f}")
    X, Y = get_batch()
    with ctx:
        loss = nn.functional.cross_entropy(model(X).view(-1, 256), Y.view(-1))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
