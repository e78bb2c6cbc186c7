import functools

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


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    step = functools.partial(clipped, model, optimizer=optimizer, scaler=scaler)
    for x, y in loader:
        step(x, y)
