import torch
from torch import nn


def train(batches, device="cuda"):
    networks = {"camera": nn.Linear(6, 6).to(device), "field": nn.Linear(6, 3).to(device)}
    optimizers = {name: torch.optim.Adam(net.parameters(), lr=1e-3) for name, net in networks.items()}
    grad_scaler = torch.amp.GradScaler(device)
    for step, (pose, color) in enumerate(batches):
        for optimizer in optimizers.values():
            optimizer.zero_grad()
        with torch.autocast(device):
            pose = networks["camera"](pose) if step > 500 else pose
            loss = nn.functional.mse_loss(networks["field"](pose), color)
        grad_scaler.scale(loss).backward()
        for name, optimizer in optimizers.items():
            if any(p.grad is not None for p in networks[name].parameters()):
                grad_scaler.step(optimizer)
        grad_scaler.update()
