import contextlib
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def forward_context(device, enabled):
    with torch.autocast(device, dtype=torch.float16, enabled=enabled):
        yield


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(32, 64)
        self.lm = nn.Linear(64, 100)

    @property
    def device(self):
        return next(self.parameters()).device

    def maybe_autocast(self, dtype=torch.float16):
        # float16 needs a GPU
        enable_autocast = self.device != torch.device("cpu")
        if enable_autocast:
            return torch.autocast("cuda", dtype=dtype)
        return contextlib.nullcontext()

    def forward(self, images, tokens):
        with self.maybe_autocast():
            logits = self.lm(self.proj(images))
        return nn.functional.cross_entropy(logits.float(), tokens)


def train(loader, use_amp=True):
    model = Captioner().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    for images, tokens in loader:
        with forward_context("cuda", use_amp):
            loss = model(images.cuda(), tokens.cuda())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
