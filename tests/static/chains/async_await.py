import asyncio

import torch
from torch import nn


async def compute(model, x, y):
    with torch.autocast("cuda", dtype=torch.float16):
        return nn.functional.mse_loss(model(x), y)


async def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        loss = await compute(model, x, y)
        scaler.scale(loss).backward()
        # mend: scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202
        scaler.step(optimizer)
        scaler.update()


def main(model, loader, optimizer):
    asyncio.run(train(model, loader, optimizer))
