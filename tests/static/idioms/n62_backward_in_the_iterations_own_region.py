import torch
from torch import nn


def train(loader, epochs):
    model = nn.Linear(32, 32).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                total_loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
                scaler.scale(total_loss).backward()
            scaler.step(optimizer)
            scaler.update()
        print(epoch, total_loss.item())
