import torch
from torch import nn
from torch.nn import functional as F

generator = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 784)).cuda()
discriminator = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)).cuda()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4)
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
scaler = torch.amp.GradScaler("cuda")


def compute_discriminator_loss(real, noise):
    with torch.no_grad():
        fake = generator(noise)
    return F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake)).mean()


for _ in range(1000):
    real, noise = torch.randn(16, 784, device="cuda"), torch.randn(16, 64, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss_d = compute_discriminator_loss(real, noise)
    optimizer_d.zero_grad()
    scaler.scale(loss_d).backward()
    scaler.step(optimizer_d)
    scaler.update()

    with torch.autocast("cuda", dtype=torch.float16):
        loss_g = F.softplus(-discriminator(generator(noise))).mean()
    optimizer_g.zero_grad()
    scaler.scale(loss_g).backward()
    scaler.step(optimizer_g)
    scaler.update()
