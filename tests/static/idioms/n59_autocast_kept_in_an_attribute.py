from contextlib import nullcontext

import torch
from torch import nn


class TorchAutocast:
    def __init__(self, enabled, *args, **kwargs):
        self.autocast = torch.autocast(*args, **kwargs) if enabled else None

    def __enter__(self):
        if self.autocast is None:
            return
        self.autocast.__enter__()

    def __exit__(self, *args, **kwargs):
        if self.autocast is None:
            return
        self.autocast.__exit__(*args, **kwargs)


class Brain:
    def __init__(self, modules, opt_class, precision="fp16", device="cuda"):
        self.modules = nn.ModuleDict(modules).to(device)
        self.optimizer = opt_class(self.modules.parameters())
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[precision]
        self.training_ctx = TorchAutocast(precision != "fp32", device_type=device, dtype=dtype)
        self.evaluation_ctx = torch.autocast(device, dtype=dtype) if precision != "fp32" else nullcontext()
        self.scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")

    def fit_batch(self, batch):
        with self.training_ctx:
            loss = self.compute_objectives(self.modules["net"](batch[0]), batch)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.modules.parameters(), 5.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach().cpu()

    @torch.no_grad()
    def evaluate_batch(self, batch):
        with self.evaluation_ctx:
            return self.compute_objectives(self.modules["net"](batch[0]), batch).detach().cpu()

    def compute_objectives(self, predictions, batch):
        return nn.functional.mse_loss(predictions, batch[1])

    def fit(self, train_set, valid_set, epochs):
        for _ in range(epochs):
            self.modules.train()
            print(sum(self.fit_batch(batch) for batch in train_set))
            self.modules.eval()
            print(sum(self.evaluate_batch(batch) for batch in valid_set))
