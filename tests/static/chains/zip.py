import torch
from torch import nn


def train(model, loader, other, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for (x, _), (y, _) in zip(loader, other):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        # mend: scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202
        scaler.step(optimizer)
        scaler.update()
