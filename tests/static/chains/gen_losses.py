import torch
from torch import nn


def losses(model, loader):
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        yield loss


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for loss in losses(model, loader):
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        # mend: scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202
        scaler.step(optimizer)
        scaler.update()
