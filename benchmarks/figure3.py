"""Figure 3 of Micikevicius et al. (2018), "Mixed Precision Training", in small: activation gradients in float16.

    python benchmarks/figure3.py [--epochs 8] [--batch 128]

The paper shows how large the gradients of activations were while a detector (Multibox SSD) trained in float32: 66.8 %
of them were zero already, and of the others many lay below what float16 can hold, so that it does not train; a loss
scale of 8 is enough. Here a small convolutional network learns the handwritten digits of scikit-learn in float32. Of
the gradients of all its activations in the last epoch this prints

- how many are zero in float32: what no format is to blame for;
- of the others, at each loss scale, how many become zero in float16: as one histogram of exponents predicts it, which
  is what amp-audit keeps of a step; as rounding the float32 values says; and in float16 runs of the same batches.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from dataclasses import dataclass, field

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from amp_audit.runtime.exponents import histogram
from amp_audit.trace.ranges import Magnitudes

PAPER_ZERO = 0.668
PAPER_SCALE = 8
SCALES = (0, 3, 10, 15)
"""Powers of two: 1, 8, 1024, 32768."""

_BIAS = 127


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.hidden, self.out = nn.Linear(32 * 4, 64), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(images))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.out(F.relu(self.hidden(x.flatten(1))))


def gradients(model: Net, images: torch.Tensor, targets: torch.Tensor, scale: float | None) -> list[torch.Tensor]:
    """The gradients of the results of all layers: in float32, or under float16 autocast with a loss scale."""
    caught: list[torch.Tensor] = []

    def catch(module: nn.Module, args: object, out: torch.Tensor) -> None:
        out.register_hook(lambda grad: caught.append(grad.detach().clone()))

    hooks = [layer.register_forward_hook(catch) for layer in model.children()]
    with torch.autocast("cpu", torch.float16, enabled=scale is not None):
        logits = model(images)
        loss = F.cross_entropy(logits.float(), targets)
    (loss * (scale or 1.0)).backward()
    model.zero_grad()
    for hook in hooks:
        hook.remove()
    return caught


@dataclass
class Seen:
    """The gradients of the last epoch in float32, and by scale how many of these were zero in a float16 run."""

    exact: list[torch.Tensor] = field(default_factory=list)
    lost: Counter[int] = field(default_factory=Counter)

    def look(self, model: Net, images: torch.Tensor, targets: torch.Tensor) -> None:
        exact = gradients(model, images, targets, None)
        self.exact += exact
        for power in SCALES:
            halves = gradients(model, images, targets, 2.0**power)
            self.lost[power] += sum(int(((h == 0) & (e != 0)).sum()) for e, h in zip(exact, halves, strict=True))


def train(epochs: int, batch: int) -> Seen:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    targets = torch.tensor(digits.target)
    torch.manual_seed(0)
    model, seen = Net(), Seen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(epochs):
        for chosen in torch.randperm(len(images)).split(batch):
            if epoch == epochs - 1:
                seen.look(model, images[chosen], targets[chosen])
            loss = F.cross_entropy(model(images[chosen]), targets[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == targets).float().mean().item()
    print(f"{epochs} epochs in float32: {right:.1%} of the digits right, cross entropy {loss.item():.3g} at last")
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seen = train(options.epochs, options.batch)
    counts = torch.stack([histogram(grad) for grad in seen.exact]).sum(0).tolist()
    magnitudes = Magnitudes({index - _BIAS: count for index, count in enumerate(counts[1:-1], 1) if count})
    values = torch.cat([grad.flatten() for grad in seen.exact])
    nonzero = values[values != 0]
    zero = 1 - len(nonzero) / len(values)
    print(f"{len(values):,} activation gradients; zero in float32: {zero:.1%} (paper: {PAPER_ZERO:.1%})\n")
    print(f"{'loss scale':>10}  {'by exponents':>12}  {'by rounding':>11}  {'in a run':>8}  paper")
    for power in SCALES:
        predicted = magnitudes.flushed(power) / magnitudes.nonzero
        rounded = int(((nonzero * 2.0**power).half() == 0).sum()) / len(nonzero)
        run = seen.lost[power] / len(nonzero)
        paper = {1: "does not train", PAPER_SCALE: "suffices"}.get(2**power, "")
        print(f"{2**power:>10}  {predicted:>12.3%}  {rounded:>11.3%}  {run:>8.3%}  {paper}".rstrip())


if __name__ == "__main__":
    main()
