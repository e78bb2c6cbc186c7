import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=4)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    dataset = TensorDataset(torch.randn(256, 16), torch.randn(256, 1))
    dataloader = DataLoader(dataset, batch_size=16, shuffle=True)
    model, optimizer, dataloader, lr_scheduler = accelerator.prepare(model, optimizer, dataloader, lr_scheduler)
    for epoch in range(3):
        for x, y in dataloader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x).float(), y.float())
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
        accelerator.save_state(f"checkpoint-{epoch}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
