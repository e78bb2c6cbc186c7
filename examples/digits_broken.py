"""Trains two small classifiers on scikit-learn's digits, with mistakes in mixed precision that people really make.

Nothing crashes, so nothing tells you; ``amp-audit examples/digits_broken.py`` does.
``digits_mended.py`` is the same program without the mistakes. Runs on a CPU in some seconds.
"""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


class Standardize(nn.Module):
    """Brings the features of each sample to mean 0 and deviation 1."""

    def forward(self, x):
        centered = x - x.mean(dim=-1, keepdim=True)
        return centered / (x.std(dim=-1, keepdim=True) + 1e-8)


def batches(size, seed):
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return [(images[index], labels[index]) for index in order.split(size)]


def train_probe(epochs, lr):
    """A linear probe in bfloat16."""
    model = nn.Linear(64, 10).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for epoch in range(epochs):
        for x, y in batches(256, seed=epoch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(torch.bfloat16)), y)
            loss.backward()
            optimizer.step()
        print(f"probe, epoch {epoch}: loss {loss.item():.3f}")


def train_classifier(epochs, lr, checkpoint):
    """A perceptron under float16 autocast, with a gradient scaler."""
    model = nn.Sequential(nn.Linear(64, 128), Standardize(), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    for epoch in range(epochs):
        for x, y in batches(256, seed=epoch):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y)
                scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            scaler.step(optimizer)
            scaler.update()
        print(f"classifier, epoch {epoch}: loss {loss.item():.3f}")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    train_probe(options.epochs, lr=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        train_classifier(options.epochs, lr=0.1, checkpoint=Path(folder) / "checkpoint.pt")


if __name__ == "__main__":
    main()
