import torch
from torch import nn
from torch.amp import GradScaler, autocast


def to_fp32(value):
    if isinstance(value, torch.Tensor):
        return value.float() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: to_fp32(each) for key, each in value.items()}
    return [to_fp32(each) for each in value]


class SetCriterion(nn.Module):
    def forward(self, outputs, targets):
        loss_ce = nn.functional.cross_entropy(outputs["logits"], targets["labels"])
        loss_bbox = nn.functional.l1_loss(outputs["boxes"], targets["boxes"])
        return {"loss_ce": loss_ce, "loss_bbox": loss_bbox}


def train_one_epoch(model, criterion, data_loader, optimizer, scaler: GradScaler):
    weights = {"loss_ce": 1.0, "loss_bbox": 5.0}
    for samples, targets in data_loader:
        with autocast("cuda", enabled=scaler.is_enabled()):
            outputs = model(samples)
        outputs = to_fp32(outputs) if scaler.is_enabled() else outputs
        loss_dict = criterion(outputs, targets)
        losses = sum(loss_dict[k] * weights[k] for k in loss_dict)
        optimizer.zero_grad()
        scaler.scale(losses).backward()
        scaler.step(optimizer)
        scaler.update()
