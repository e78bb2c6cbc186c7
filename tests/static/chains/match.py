import torch
from torch import nn


def train(model, loader, optimizer, mode):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        match mode:
            case "norm":
                # mend: scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202
            case "value":
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_value_(model.parameters(), 1.0)
            case _:
                pass
        scaler.step(optimizer)
        scaler.update()
