import torch
from torch import nn


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        pass
    for loss in (compute(model, x, y) for x, y in loader):
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        # mend: scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202
        scaler.step(optimizer)
        scaler.update()


def compute(model, x, y):
    with torch.autocast("cuda", dtype=torch.float16):
        return nn.functional.mse_loss(model(x), y)
