import torch
from torch import nn


class Detect(nn.Module):
    def __init__(self, anchors):
        super().__init__()
        self.register_buffer("anchors", torch.tensor(anchors).float().view(3, -1, 2))
        self.conv = nn.Conv2d(16, 18, 1)

    def forward(self, x):
        return self.conv(x)


def train(loader, anchors):
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.SiLU(), Detect(anchors)).cuda()
    model.half().float()  # pre-reduce anchor precision
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    for imgs, target in loader:
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(imgs.cuda()), target.cuda())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
