"""Small programs of many kinds, and a way to record one in this process."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from amp_audit.runtime.place import Places
from amp_audit.runtime.recording import Recording, unseen
from amp_audit.trace import reader
from amp_audit.trace.schema import VERSION, Header, Number, StepRecord
from amp_audit.trace.writer import Writer

HERE = __file__


class Host:
    """Stands in for a session."""

    def __init__(self) -> None:
        self.places = Places()
        self.notes: list[str] = []
        self.numbers: list[Number] = []

    def number(self, number: Number) -> None:
        self.numbers.append(number)

    def note(self, text: str) -> None:
        self.notes.append(text)


class Recorded:
    """Filled when the recording is over."""

    step: StepRecord
    notes: list[str]
    unobserved: Counter[str]
    stop: Callable[[], None]


@contextmanager
def recorded() -> Iterator[Recorded]:
    """Record what runs inside as one step."""
    host, result = Host(), Recorded()
    recording = Recording(host, host.places)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        complaints: list[str] = []
        writer = Writer(Path(folder), complaints.append)
        writer.open(Header(VERSION, "", "", "", "cpu", "cpu", 0, 1, (), "", "all", None, ""))
        recording.start()
        try:
            yield result
        finally:
            with unseen():
                counts = recording.step_end(writer)
            recording.stop()
        writer.step(StepRecord(1, recorded=True, numbers=host.numbers), *counts)
        writer.close()
        assert not complaints
        (trace,) = reader.read(folder)
    (result.step,) = trace.steps
    result.unobserved = recording.unobserved
    result.notes, result.stop = host.notes, recording.stop


def record(program: Callable[[], Any]) -> Recorded:
    with recorded() as result:
        program()
    return result


class Block(nn.Module):
    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
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
    def __init__(self, *, width: int = 8, layers: int = 2, again: str | None = None) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, width)
        self.places = nn.Parameter(torch.zeros(4, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16, bias=False)
        self.again = again

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = block(x) if self.again is None else checkpoint(block, x, use_reentrant=self.again == "reentrant")
        return self.head(self.norm(x))


def gpt(again: str | None = None, dtype: torch.dtype | None = torch.bfloat16) -> Callable[[], None]:
    """A training step of a tiny GPT."""
    torch.manual_seed(0)
    model = GPT(again=again)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens, targets = torch.randint(0, 16, (2, 3, 4))

    def step() -> None:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = F.cross_entropy(model(tokens).view(-1, 16), targets.reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2)
        self.up = nn.ConvTranspose2d(6, 3, 2, stride=2)
        self.out = nn.Linear(3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn(self.conv1(x)))
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = self.up(x)
        return self.out(F.dropout(x.mean((2, 3)), 0.1))


def cnn() -> Callable[[], None]:
    torch.manual_seed(0)
    model = CNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, targets = torch.randn(2, 1, 10, 10), torch.tensor([1, 2])

    def step() -> None:
        loss = F.cross_entropy(model(images), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def views() -> Callable[[], None]:
    """Writes into views, outputs used twice, indexing, in-place operators."""
    torch.manual_seed(0)
    weight = torch.randn(4, 4, requires_grad=True)

    def step() -> None:
        x = weight * 2
        x[0] = x[1].exp()
        x[:, 1].mul_(3.0)
        x = x.clone()
        x.add_(weight)
        a, b = x.chunk(2)
        y = torch.cat([a.sin(), b]) + x
        y[1:3, 1:3] += a.cos()[:, :2]
        (y.sum() + x.pow(2).mean()).backward()

    return step


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * x + grad * x


def deep() -> Callable[[], None]:
    """Backwards within backwards, so many that autograd goes over to threads of its own."""
    weight = torch.ones(3, requires_grad=True)

    def level(x: torch.Tensor, depth: int) -> torch.Tensor:
        x = x.sin()
        if depth:
            x = checkpoint(level, x, depth - 1, use_reentrant=True)
        return x.cos() * 1.5

    def step() -> None:
        (level(weight * 2, 64)).sum().backward()

    return step


def recurrent() -> Callable[[], None]:
    torch.manual_seed(0)
    cell, out = nn.GRUCell(3, 5), nn.Linear(5, 2)

    def step() -> None:
        state = torch.zeros(2, 5)
        for x in torch.ones(4, 2, 3):
            state = cell(x, state)
        out(state).logsumexp(-1).mean().backward()

    return step
