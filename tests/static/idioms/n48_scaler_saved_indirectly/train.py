import torch
from solver import BaseSolver
from torch import nn


class Solver(BaseSolver):
    def __init__(self, cfg, loader):
        super().__init__()
        self.cfg, self.loader = cfg, loader
        self.model = nn.Linear(64, 64).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr)
        self.register_stateful("model", "optimizer")
        self.scaler = None
        if cfg.autocast and cfg.autocast_dtype == "float16":
            self.scaler = torch.amp.GradScaler("cuda")
            self.register_stateful("scaler")

    def run_step(self, x):
        with torch.autocast("cuda", dtype=torch.float16, enabled=self.cfg.autocast):
            loss = nn.functional.l1_loss(self.model(x), x)
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
        else:
            loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.max_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad()
        return loss.item()

    def run(self):
        for epoch in range(self.cfg.epochs):
            print(sum(self.run_step(x.cuda()) for x in self.loader))
            self.commit(f"checkpoint_{epoch}.th")
