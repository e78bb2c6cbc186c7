import torch
from torch import nn


class AmpOptimWrapper:
    def __init__(self, optimizer, loss_scale="dynamic", clip_grad=None):
        self.optimizer = optimizer
        self.clip_grad = clip_grad
        self._scale_update_param = None
        if loss_scale == "dynamic":
            self.loss_scaler = torch.amp.GradScaler("cuda")
        elif isinstance(loss_scale, float):
            self._scale_update_param = loss_scale
            self.loss_scaler = torch.amp.GradScaler("cuda", init_scale=loss_scale)
        else:
            raise TypeError("loss_scale must be float or 'dynamic'")

    def backward(self, loss):
        self.loss_scaler.scale(loss).backward()

    def step(self):
        if self.clip_grad:
            self.loss_scaler.unscale_(self.optimizer)
            params = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
            nn.utils.clip_grad_norm_(params, self.clip_grad)
        self.loss_scaler.step(self.optimizer)
        self.loss_scaler.update(self._scale_update_param)

    def update_params(self, loss):
        self.backward(loss)
        self.step()
        self.optimizer.zero_grad()

    def state_dict(self):
        return {**self.optimizer.state_dict(), "loss_scaler": self.loss_scaler.state_dict()}


def train(loader, loss_scale=512.0):
    model = nn.Linear(8, 8).cuda()
    wrapper = AmpOptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1), loss_scale, clip_grad=35.0)
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x.cuda()).pow(2).mean()
        wrapper.update_params(loss)
