import math

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, mask, flash=True):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if flash:
            y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
            if self.training:
                scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
            else:
                scores = scores + (1.0 - mask[:, None, None, :].to(scores.dtype)) * -1e4
            y = scores.softmax(dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, d))


def train(loader):
    model = Attention(64, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for x, mask in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x.cuda(), mask.cuda(), flash=False).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
