import inspect

import torch
from torch import nn


class WrappedOptimizer(torch.optim.Optimizer):
    def __init__(self, optimizer, scaler=None):
        self.optimizer = optimizer
        self.scaler = scaler
        self._is_overflow = False
        self._accelerate_step_called = False
        self._optimizer_original_step_method = optimizer.step
        self._optimizer_patched_step_method = patch_optimizer_step(self, optimizer.step)

    def zero_grad(self, set_to_none=None):
        if "set_to_none" in inspect.signature(self.optimizer.zero_grad).parameters:
            self.optimizer.zero_grad(set_to_none=bool(set_to_none))
        else:
            self.optimizer.zero_grad()

    def step(self, closure=None):
        if self.scaler is not None:
            self.optimizer.step = self._optimizer_patched_step_method
            self.scaler.step(self.optimizer, closure)
            self.scaler.update()
            if not self._accelerate_step_called:
                self._is_overflow = True
            else:
                self._is_overflow = False
            self.optimizer.step = self._optimizer_original_step_method
            self._accelerate_step_called = False
        else:
            self.optimizer.step(closure)

    @property
    def step_was_skipped(self):
        return self._is_overflow


def patch_optimizer_step(wrapper, method):
    def patched_step(*args, **kwargs):
        wrapper._accelerate_step_called = True
        return method(*args, **kwargs)

    return patched_step


def train(batches):
    model = nn.Linear(4, 4).cuda()
    scaler = torch.amp.GradScaler("cuda")
    optimizer = WrappedOptimizer(torch.optim.Adam(model.parameters()), scaler)
    for x in batches:
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        optimizer.step()
        optimizer.zero_grad()
