from contextlib import nullcontext

import torch
from torch import nn


class Trainer:
    def __init__(self, network, device):
        self.device = device
        self.network = network.to(device)
        self.optimizer = torch.optim.SGD(self.network.parameters(), 1e-2, momentum=0.99, nesterov=True)
        self.grad_scaler = torch.amp.GradScaler("cuda") if self.device.type == "cuda" else None
        self.loss = nn.CrossEntropyLoss()

    def train_step(self, batch):
        data = batch["data"].to(self.device, non_blocking=True)
        target = batch["target"].to(self.device, non_blocking=True)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, enabled=True) if self.device.type == "cuda" else nullcontext():
            output = self.network(data)
            loss = self.loss(output, target)
        if self.grad_scaler is not None:
            self.grad_scaler.scale(loss).backward()
            self.grad_scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 12)
            self.grad_scaler.step(self.optimizer)
            self.grad_scaler.update()
        else:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 12)
            self.optimizer.step()
        return {"loss": loss.detach().cpu().numpy()}

    def save_checkpoint(self, filename):
        torch.save(
            {
                "network_weights": self.network.state_dict(),
                "optimizer_state": self.optimizer.state_dict(),
                "grad_scaler_state": self.grad_scaler.state_dict() if self.grad_scaler is not None else None,
            },
            filename,
        )

    def run_training(self, batches, epochs):
        for _ in range(epochs):
            self.network.train()
            losses = [self.train_step(batch) for batch in batches]
            print(sum(float(each["loss"]) for each in losses) / len(losses))
            self.save_checkpoint("checkpoint_latest.pth")
