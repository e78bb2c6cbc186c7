import torch
from torch import nn


def clipped(model, x, y, optimizer, scaler):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    # mend: scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202
    scaler.step(optimizer)
    scaler.update()


def plain(model, x, y, optimizer, scaler):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


STEPS = {"amp": clipped, "plain": plain}


def train(model, loader, optimizer, mode):
    scaler = torch.amp.GradScaler("cuda")
    step = STEPS[mode]
    for x, y in loader:
        step(model, x, y, optimizer, scaler)
