import torch
from torch import nn


def get_grad_norm(parameters):
    grads = [p.grad.detach() for p in parameters if p.grad is not None]
    return torch.norm(torch.stack([torch.norm(g, 2.0) for g in grads]), 2.0)


class LossScaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer, parameters, clip_grad=None, update_grad=True):
        self._scaler.scale(loss).backward()
        if not update_grad:
            return None
        if clip_grad is not None:
            self._scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
        else:
            self._scaler.unscale_(optimizer)
            norm = get_grad_norm(parameters)
        self._scaler.step(optimizer)
        self._scaler.update()
        return norm


def train(loader, clip_grad=None):
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_scaler = LossScaler()
    for samples, targets in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.cross_entropy(model(samples.cuda()), targets.cuda())
        norm = loss_scaler(loss, optimizer, list(model.parameters()), clip_grad)
        print(loss.item(), norm)
