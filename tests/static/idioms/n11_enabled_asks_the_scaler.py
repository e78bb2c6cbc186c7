import torch
from torch import amp, nn


def train_one_epoch(model, criterion, data_loader, optimizer, device, scaler, max_norm=0.0):
    model.train()
    for samples, targets in data_loader:
        samples, targets = samples.to(device), targets.to(device)
        with amp.autocast("cuda", enabled=scaler.is_enabled()):
            outputs = model(samples)
            losses = criterion(outputs, targets)
        optimizer.zero_grad()
        scaler.scale(losses).backward()
        if max_norm > 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()


def main(args, data_loader):
    device = torch.device("cuda")
    model = nn.Linear(16, 8).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
    scaler = amp.GradScaler("cuda", enabled=args.amp)
    for _ in range(args.epochs):
        train_one_epoch(model, nn.CrossEntropyLoss(), data_loader, optimizer, device, scaler, args.clip_max_norm)
