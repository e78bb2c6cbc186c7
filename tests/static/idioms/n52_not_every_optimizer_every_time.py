import torch
from torch import nn


def main(loader, warmup=100):
    backbone, head = nn.Linear(32, 64).cuda(), nn.Linear(64, 10).cuda()
    optimizer_head = torch.optim.Adam(head.parameters(), lr=1e-3)
    optimizer_backbone = torch.optim.Adam(backbone.parameters(), lr=1e-5)
    scaler = torch.amp.GradScaler("cuda")
    for iteration, (x, y) in enumerate(loader):
        optimizer_head.zero_grad()
        optimizer_backbone.zero_grad()
        with torch.autocast(device_type="cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(head(backbone(x.cuda())), y.cuda())
        scaler.scale(loss).backward()
        scaler.step(optimizer_head)
        if iteration >= warmup and iteration % 2 == 0:
            scaler.step(optimizer_backbone)
        scaler.update()
