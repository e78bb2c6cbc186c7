import torch
from torch import nn


class Optimizers:
    def __init__(self, model, lr):
        parts = [model.encoder, model.decoder]
        self.optimizers = [torch.optim.Adam(part.parameters(), lr=lr) for part in parts]
        self.schedulers = [torch.optim.lr_scheduler.StepLR(each, 100) for each in self.optimizers]


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 8), nn.Linear(8, 64)

    def forward(self, x):
        return self.decoder(self.encoder(x))


def train(loader, lr=1e-3):
    model = Autoencoder().cuda()
    group = Optimizers(model, lr)
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        for optimizer in group.optimizers:
            optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = nn.functional.mse_loss(model(x.cuda()), x.cuda())
        scaler.scale(loss).backward()
        for optimizer in group.optimizers:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        for optimizer in group.optimizers:
            scaler.step(optimizer)
        scaler.update()
        for scheduler in group.schedulers:
            scheduler.step()
