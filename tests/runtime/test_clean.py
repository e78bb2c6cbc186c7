"""Programs with nothing wrong in them, every operator of every step run twice: no finding at warning or above."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_audit import rulebook
from amp_audit.model import Severity
from amp_audit.trace import judge
from amp_audit.trace.schema import Trace
from tests.runtime import programs
from tests.runtime.recording import every_step_deep, notes, recorded

torch.set_num_threads(1)

STEPS, BATCH, CLASSES = 6, 12, 4


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(8, 16), nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(len(x), 16)
        for item in x.unbind(1):
            state = self.cell(item, state)
        return self.out(state)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.embed, self.layers = nn.Embedding(32, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.embed(x)).mean(1))


class Tokens(nn.Module):
    """The GPT of the other tests as a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = programs.GPT(width=16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gpt(x)[:, -1, :CLASSES]


class Sparse(nn.Module):
    """A table of which few rows are used, and a mask of minus infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(2000, 16), nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.table(x)
        scores = rows @ rows.transpose(1, 2) / 4
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return self.out((scores.masked_fill(hidden, float("-inf")).softmax(-1) @ rows).mean(1))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))


def convolutional() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.GroupNorm(2, 8)),
        *(nn.SiLU(), nn.Flatten(), nn.Linear(8, CLASSES)),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "perceptron": (perceptron, lambda: torch.randn(BATCH, 8)),
    "convolutional": (convolutional, lambda: torch.randn(BATCH, 1, 8, 8)),
    "recurrent": (Recurrent, lambda: torch.randn(BATCH, 5, 8)),
    "encoder": (Encoder, lambda: torch.randint(0, 32, (BATCH, 6))),
    "gpt": (Tokens, lambda: torch.randint(0, 16, (BATCH, 4))),
    "sparse, masked": (Sparse, lambda: torch.randint(0, 2000, (BATCH, 5))),
}

Loss = Callable[[], torch.Tensor]


def _loss(model: nn.Module, make: Callable[[], torch.Tensor], dtype: torch.dtype | None) -> Loss:
    def loss() -> torch.Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            return F.cross_entropy(model(make()).float(), torch.randint(0, CLASSES, (BATCH,)))

    return loss


def plainly(model: nn.Module, loss: Loss) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def clipping(model: nn.Module, loss: Loss) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def averaging(model: nn.Module, loss: Loss) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(STEPS):
        for _ in range(2):
            (loss() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)


def scaling(model: nn.Module, loss: Loss, *, micro: int = 1, clip: bool = False, fused: bool = False) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for _ in range(STEPS):
        for _ in range(micro):
            scaler.scale(loss() / micro).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


Way = Callable[[nn.Module, Loss], None]
WAYS: dict[str, tuple[torch.dtype | None, Way]] = {
    "float32": (None, plainly),
    "float32, clipped": (None, clipping),
    "bfloat16": (torch.bfloat16, plainly),
    "bfloat16, clipped": (torch.bfloat16, clipping),
    "bfloat16, accumulated, averaged": (torch.bfloat16, averaging),
    "float16": (torch.float16, scaling),
    "float16, clipped": (torch.float16, lambda model, loss: scaling(model, loss, clip=True)),
    "float16, accumulated": (torch.float16, lambda model, loss: scaling(model, loss, micro=3, clip=True)),
    "float16, fused": (torch.float16, lambda model, loss: scaling(model, loss, fused=True)),
}


def _coarse() -> bool:
    """Whether softmax's gradient in half precision is further off than rounding it once would be: in torch 2.6."""
    torch.manual_seed(0)
    output = torch.randn(64, 5).softmax(-1).bfloat16()
    gradient = (torch.randn(64, 1) + torch.randn(64, 5) / 8).bfloat16()
    exact = torch.ops.aten._softmax_backward_data(gradient.double(), output.double(), -1, torch.float64)
    found = torch.ops.aten._softmax_backward_data(gradient, output, -1, torch.bfloat16).double()
    off = (found - exact).square().sum() / exact.square().sum()
    return bool(off.sqrt() > torch.finfo(torch.bfloat16).eps / 2)


_COARSE, _COARSE_MESSAGE = _coarse(), "_softmax_backward_data in "


def run(model: nn.Module, loss: Loss, train: Way, folder: Path) -> Trace:
    with every_step_deep():
        return recorded(lambda: train(model, loss), folder)


@pytest.mark.parametrize("name", MODELS)
def test_fifty_four_right_programs_are_not_complained_of(name: str, tmp_path: Path) -> None:
    make, data = MODELS[name]
    book = rulebook.load()
    complaints = {}
    for number, (way, (dtype, train)) in enumerate(WAYS.items()):
        torch.manual_seed(number)
        model = make()
        trace = run(model, _loss(model, data, dtype), train, tmp_path / str(number))
        assert notes(trace) == [] and len(trace.steps) == STEPS
        found = [one for one in judge.findings([trace], book) if one.severity >= Severity.WARNING]
        wrong = [f"{one.rule} {one.message}" for one in found if not (_COARSE and _COARSE_MESSAGE in one.message)]
        if wrong:
            complaints[way] = wrong
    assert complaints == {}
    assert len(MODELS) * len(WAYS) == 54
