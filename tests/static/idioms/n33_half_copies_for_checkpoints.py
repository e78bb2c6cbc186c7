from copy import deepcopy

import torch
from torch import nn


class ModelEMA:
    def __init__(self, model, decay=0.9999):
        self.ema = deepcopy(model).eval()
        self.decay = decay
        for p in self.ema.parameters():
            p.requires_grad_(False)

    def update(self, model):
        msd = model.state_dict()
        for k, v in self.ema.state_dict().items():
            if v.dtype.is_floating_point:
                v *= self.decay
                v += (1 - self.decay) * msd[k].detach()


def train(loader, epochs):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Flatten(), nn.LazyLinear(10)).cuda()
    model(torch.zeros(1, 3, 32, 32, device="cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cuda")
    ema = ModelEMA(model)
    for epoch in range(epochs):
        for imgs, target in loader:
            with torch.autocast("cuda"):
                loss = nn.functional.cross_entropy(model(imgs.cuda()), target.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            ema.update(model)
        ckpt = {
            "epoch": epoch,
            "model": deepcopy(model).half(),
            "ema": deepcopy(ema.ema).half(),
            "updates": len(loader),
        }
        torch.save(ckpt, "last.pt")
    strip_optimizer("last.pt")


def strip_optimizer(f):
    x = torch.load(f, map_location="cpu", weights_only=False)
    if x.get("ema"):
        x["model"] = x["ema"]
    x["model"].half()
    for p in x["model"].parameters():
        p.requires_grad = False
    torch.save(x, f)
