import torch
from misc import NativeScalerWithGradNormCount, save_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_one_epoch(model, criterion, loader, optimizer, device, loss_scaler, max_norm, accum_iter):
    model.train()
    optimizer.zero_grad()
    for step, (samples, targets) in enumerate(loader):
        samples, targets = samples.to(device), targets.to(device)
        with torch.amp.autocast("cuda"):
            loss = criterion(model(samples), targets)
        loss = loss / accum_iter
        loss_scaler(
            loss,
            optimizer,
            clip_grad=max_norm,
            parameters=model.parameters(),
            update_grad=(step + 1) % accum_iter == 0,
        )
        if (step + 1) % accum_iter == 0:
            optimizer.zero_grad()


def main():
    device = torch.device("cuda")
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_scaler = NativeScalerWithGradNormCount()
    loader = DataLoader(TensorDataset(torch.randn(64, 16), torch.randint(4, (64,))), batch_size=8)
    for epoch in range(3):
        train_one_epoch(model, nn.CrossEntropyLoss(), loader, optimizer, device, loss_scaler, 1.0, 2)
        save_model(f"checkpoint-{epoch}.pth", epoch, model, optimizer, loss_scaler)


if __name__ == "__main__":
    main()
