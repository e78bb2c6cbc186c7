import torch
import torch._functorch.config
from torch import nn

torch._functorch.config.backward_pass_autocast = "off"

model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")


@torch.compile
def loss_and_gradients(x):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), x)
    scaler.scale(loss).backward()
    return loss


for _ in range(100):
    optimizer.zero_grad()
    loss_and_gradients(torch.randn(8, 64, device="cuda"))
    scaler.step(optimizer)
    scaler.update()
