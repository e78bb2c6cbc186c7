import torch
from torch import nn


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


def train(loader, epochs):
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(epochs):
        losses, total_loss, correct = AverageMeter(), 0, 0
        for x, y in loader:
            x, y = x.cuda(), y.cuda()
            with torch.autocast("cuda"):
                logits = model(x)
                loss = nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.update(loss.item(), x.size(0))
            total_loss += loss.detach()
            correct += (logits.argmax(1) == y).sum().item()
        print(epoch, losses.avg, float(total_loss) / len(loader), correct)
