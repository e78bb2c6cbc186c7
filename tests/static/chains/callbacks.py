import torch
from torch import nn


class Clip:
    def __init__(self, scaler, optimizer, model):
        self.scaler, self.optimizer, self.model = scaler, optimizer, model

    def after_backward(self):
        # mend: self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # AMP202


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    callbacks = [Clip(scaler, optimizer, model)]
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        for callback in callbacks:
            callback.after_backward()
        scaler.step(optimizer)
        scaler.update()
