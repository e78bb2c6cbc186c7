import torch
from torch import nn
from tqdm import tqdm


def train(model, loader, optimizer, epochs=2):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in tqdm(loader):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        # mend: scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202
        scaler.step(optimizer)
        scaler.update()
