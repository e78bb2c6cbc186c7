import torch
from torch import nn


def steps(model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        # mend: scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202
        scaler.step(optimizer)
        scaler.update()
        yield loss.item()


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for value in steps(model, loader, optimizer, scaler):
        print(value)
