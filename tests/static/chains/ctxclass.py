import torch
from torch import nn


def clip(model, optimizer, scaler):
    # mend: scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202


class Clipping:
    def __init__(self, *args):
        self.args = args

    def __enter__(self):
        return self

    def __exit__(self, *error):
        clip(*self.args)


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        with Clipping(model, optimizer, scaler):
            pass
        scaler.step(optimizer)
        scaler.update()
