import torch
from torch import nn


class Callback:
    def after_backward(self, trainer):
        pass

    def after_step(self, trainer):
        pass


class Clip(Callback):
    def __init__(self, limit):
        self.limit = limit

    def after_backward(self, trainer):
        # mend: trainer.scaler.unscale_(trainer.optimizer)
        nn.utils.clip_grad_norm_(trainer.model.parameters(), self.limit)  # AMP202


class Log(Callback):
    def after_step(self, trainer):
        print("stepped")


class Trainer:
    def __init__(self, model, optimizer, callbacks):
        self.model, self.optimizer, self.callbacks = model, optimizer, callbacks
        self.scaler = torch.amp.GradScaler("cuda")

    def fire(self, event):
        for callback in self.callbacks:
            getattr(callback, event)(self)

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.fire("after_backward")
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.fire("after_step")


net = nn.Linear(4, 4).cuda()
Trainer(net, torch.optim.AdamW(net.parameters()), [Log(), Clip(1.0)]).fit([])
