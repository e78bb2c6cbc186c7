import torch
from torch import nn
from torch.amp import GradScaler


def train_one_epoch(model, criterion, data_loader, optimizer, device: torch.device, max_norm=0.1, scaler=None):
    model.train()
    for samples, targets in data_loader:
        samples, targets = samples.to(device), targets.to(device)
        if scaler is not None:
            with torch.autocast(device_type=str(device), cache_enabled=True):
                outputs = model(samples)
            with torch.autocast(device_type=str(device), enabled=False):
                loss = criterion(outputs.float(), targets)
            scaler.scale(loss).backward()
            if max_norm > 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        else:
            loss = criterion(model(samples), targets)
            optimizer.zero_grad()
            loss.backward()
            if max_norm > 0:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()


def main(loader, use_amp):
    device = torch.device("cuda")
    model = nn.Linear(16, 4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = GradScaler() if use_amp else None
    for _ in range(10):
        train_one_epoch(model, nn.CrossEntropyLoss(), loader, optimizer, device, 0.1, scaler)
