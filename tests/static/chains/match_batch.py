import torch
from torch import nn


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            match batch:
                case {"x": x, "y": y}:
                    loss = nn.functional.mse_loss(model(x), y)
                case (x, y):
                    loss = nn.functional.l1_loss(model(x), y)
        scaler.scale(loss).backward()
        # mend: scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202
        scaler.step(optimizer)
        scaler.update()
