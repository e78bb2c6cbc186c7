import math
import sys

import torch
from torch import nn


def train_one_epoch(model, criterion, data_loader, optimizer, scaler, stop_on_nan):
    model.train()
    for samples, targets in data_loader:
        with torch.autocast("cuda"):
            outputs = model(samples.cuda())
            loss = criterion(outputs, targets.cuda())
        loss_value = loss.item()
        if not math.isfinite(loss_value):
            print(f"Loss is {loss_value}, stopping training")
            if stop_on_nan:
                sys.exit(1)
            continue
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()


def main(loader):
    model = nn.Linear(16, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(12):
        train_one_epoch(model, nn.CrossEntropyLoss(), loader, optimizer, scaler, True)
