"""The training steps that the benchmarks of the runtime half measure."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY = 64


@dataclass(frozen=True)
class Size:
    """A GPT. Its operators are as many for every width, so a small one shows what an operator costs at most."""

    width: int
    heads: int
    layers: int
    length: int
    batch: int


SIZES = {
    "small": Size(width=64, heads=4, layers=4, length=32, batch=8),
    "large": Size(width=512, heads=8, layers=6, length=128, batch=4),
}


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, width = size.heads, size.width
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attend(self.norm1(x)).split(width, 2)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, size.width)
        self.places = nn.Parameter(torch.zeros(size.length, size.width))
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Trainer:
    """A GPT under bfloat16 autocast with AdamW."""

    def __init__(self, size: Size) -> None:
        torch.manual_seed(0)
        self.size = size
        self.model = GPT(size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)
        self.batch = torch.randint(0, VOCABULARY, (2, size.batch, size.length))

    def step(self) -> None:
        tokens, targets = self.batch
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(self.model(tokens).view(-1, VOCABULARY), targets.reshape(-1))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
