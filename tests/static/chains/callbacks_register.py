import torch
from torch import nn


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")
        self.hooks = []
        self.register(self.clip)

    def register(self, hook):
        self.hooks.append(hook)

    def clip(self):
        # mend: self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)  # AMP202

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            for hook in self.hooks:
                hook()
            self.scaler.step(self.optimizer)
            self.scaler.update()


def main(loader):
    model = nn.Linear(8, 8).cuda()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    trainer.fit(loader)
