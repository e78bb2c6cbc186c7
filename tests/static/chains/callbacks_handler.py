import torch
from torch import nn


class Clip:
    def __init__(self, limit):
        self.limit = limit

    def after_backward(self, trainer):
        # mend: trainer.scaler.unscale_(trainer.optimizer)
        nn.utils.clip_grad_norm_(trainer.model.parameters(), self.limit)  # AMP202


class Handler:
    def __init__(self, callbacks):
        self.callbacks = list(callbacks)

    def __call__(self, event, *args):
        for callback in self.callbacks:
            method = getattr(callback, event, None)
            if method is not None:
                method(*args)


class Trainer:
    def __init__(self, model, callbacks):
        self.model, self.handler = model, Handler(callbacks)
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.handler("after_backward", self)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.handler("after_step", self)


Trainer(nn.Linear(4, 4).cuda(), [Clip(1.0)]).fit([])
