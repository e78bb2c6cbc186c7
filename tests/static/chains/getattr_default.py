import torch
from torch import nn


def clip(model, optimizer, scaler):
    # mend: scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202


class Hooks:
    def __init__(self, model, optimizer, scaler):
        self.args = model, optimizer, scaler

    def clip(self):
        clip(*self.args)

    def call(self, name):
        getattr(self, name, "noop")()


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        Hooks(model, optimizer, scaler).call("clip")
        scaler.step(optimizer)
        scaler.update()
