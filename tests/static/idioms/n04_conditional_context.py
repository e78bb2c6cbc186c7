import torch
from torch import nn


class dummy_context:
    def __enter__(self):
        pass

    def __exit__(self, exc_type, exc_val, exc_tb):
        pass


def evaluate_and_train(network: nn.Module, loader, device: torch.device, use_amp: bool):
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp and device.type == "cuda")
    for data, target in loader:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.float16) if use_amp and device.type == "cuda" else dummy_context():
            loss = nn.functional.mse_loss(network(data.to(device)), target.to(device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    with torch.no_grad(), torch.autocast("cuda") if use_amp else dummy_context():
        return [network(data.to(device)).float().cpu() for data, _ in loader]
