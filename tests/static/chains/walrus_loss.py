import torch
from torch import nn


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            total = (loss := nn.functional.mse_loss(model(x), y)) * 2
        scaler.scale(total).backward()
        # mend: scaler.unscale_(optimizer)
        if (norm := nn.utils.clip_grad_norm_(model.parameters(), 1.0)) > 5:  # AMP202
            print(norm, loss)
        scaler.step(optimizer)
        scaler.update()
