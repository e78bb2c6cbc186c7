import numpy as np
import torch
from torch import nn
from torch.amp import GradScaler, autocast


def run(train_loader, valid_loader, epochs=5, fold=0):
    model = nn.Linear(32, 1).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = GradScaler("cuda")
    best = np.inf
    for epoch in range(epochs):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            with autocast("cuda"):
                loss = nn.functional.binary_cross_entropy_with_logits(model(x.cuda()).view(-1), y.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        model.eval()
        with torch.no_grad():
            score = np.mean([(model(x.cuda()).view(-1) - y.cuda()).abs().mean().item() for x, y in valid_loader])
        if score < best:
            best = score
            torch.save(model.state_dict(), f"best_fold{fold}.pth")
        torch.save(
            {
                "epoch": epoch,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
            },
            f"last_fold{fold}.pth",
        )
