import torch
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


class SSLMetaArch(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.fp16_scaler = ShardedGradScaler() if cfg.compute_precision.grad_scaler else None
        self.student = nn.ModuleDict({"backbone": nn.Linear(32, 64), "head": nn.Linear(64, 128)})
        self.teacher = nn.ModuleDict({"backbone": nn.Linear(32, 64), "head": nn.Linear(64, 128)})
        for p in self.teacher.parameters():
            p.requires_grad = False

    def backprop_loss(self, loss):
        if self.fp16_scaler is not None:
            self.fp16_scaler.scale(loss).backward()
        else:
            loss.backward()

    def forward_backward(self, images, teacher_temp):
        with torch.no_grad():
            teacher = self.teacher["head"](self.teacher["backbone"](images["global"].cuda()))
            targets = torch.softmax(teacher.float() / teacher_temp, dim=-1)
        student = self.student["head"](self.student["backbone"](images["local"].cuda()))
        loss = -(targets * torch.log_softmax(student.float() / 0.1, dim=-1)).sum(-1).mean()
        self.backprop_loss(loss)
        return {"dino_loss": loss.detach()}

    def update_teacher(self, m):
        with torch.no_grad():
            for ms, mt in zip(self.student.parameters(), self.teacher.parameters()):
                mt.data.mul_(m).add_(ms.data, alpha=1 - m)
