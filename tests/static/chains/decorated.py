import functools
import time

import torch
from torch import nn


def clip(model, optimizer, scaler):
    # mend: scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202


def timed(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        start = time.time()
        result = function(*args, **kwargs)
        print(time.time() - start)
        return result

    return inner


@timed
def hook(model, optimizer, scaler):
    clip(model, optimizer, scaler)


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        hook(model, optimizer, scaler)
        scaler.step(optimizer)
        scaler.update()
