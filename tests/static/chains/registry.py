import torch
from torch import nn

STEPS = {}


def register(name):
    def wrap(function):
        STEPS[name] = function
        return function

    return wrap


@register("amp")
def clipped(model, x, y, optimizer, scaler):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    # mend: scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202
    scaler.step(optimizer)
    scaler.update()


def train(model, loader, optimizer, mode):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        STEPS[mode](model, x, y, optimizer, scaler)
