import functools

import torch
from torch import nn


@functools.singledispatch
def step(batch, model, optimizer, scaler):
    raise TypeError(batch)


@step.register
def _(batch: tuple, model, optimizer, scaler):
    x, y = batch
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    # mend: scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202
    scaler.step(optimizer)
    scaler.update()


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        step(batch, model, optimizer, scaler)
