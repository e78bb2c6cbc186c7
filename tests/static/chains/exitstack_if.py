import contextlib

import torch
from torch import nn


def train(model, loader, optimizer, amp):
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    for x, y in loader:
        optimizer.zero_grad()
        with contextlib.ExitStack() as stack:
            if amp:
                stack.enter_context(torch.autocast("cuda", dtype=torch.float16))
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        # mend: scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # AMP202
        scaler.step(optimizer)
        scaler.update()
