import torch
from optimizers import Optimizers
from torch import nn


class Trainer:
    def __init__(self, config, device="cuda"):
        self.config = config
        self.device = device
        self.mixed_precision = config.mixed_precision and device != "cpu"
        self.grad_scaler = torch.amp.GradScaler("cuda", enabled=self.mixed_precision)
        self.model = nn.ModuleDict({"fields": nn.Linear(3, 64), "proposal": nn.Linear(64, 3)}).to(device)
        groups = {name: list(part.parameters()) for name, part in self.model.items()}
        self.optimizers = Optimizers(groups)

    def train_iteration(self, step, rays, colors):
        self.optimizers.zero_grad_all()
        with torch.autocast(device_type="cuda", enabled=self.mixed_precision):
            rendered = self.model["proposal"](self.model["fields"](rays))
            loss = nn.functional.mse_loss(rendered, colors)
        self.grad_scaler.scale(loss).backward()
        self.optimizers.optimizer_scaler_step_all(self.grad_scaler)
        self.grad_scaler.update()
        return loss

    def train(self, batches):
        for step, (rays, colors) in enumerate(batches):
            self.train_iteration(step, rays.to(self.device), colors.to(self.device))
            if step % 1000 == 0:
                self.save_checkpoint(step)

    def save_checkpoint(self, step):
        torch.save(
            {
                "step": step,
                "pipeline": self.model.state_dict(),
                "optimizers": {k: v.state_dict() for (k, v) in self.optimizers.optimizers.items()},
                "scalers": self.grad_scaler.state_dict(),
            },
            f"step-{step:09d}.ckpt",
        )
