import torch
from torch import nn


class Base:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def after_backward(self):
        pass

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.after_backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()


class Clipped(Base):
    def after_backward(self):
        # mend: self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # AMP202


def main(loader, optimizer):
    Clipped(nn.Linear(8, 8), optimizer).fit(loader)
