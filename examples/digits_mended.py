"""Trains two small classifiers on scikit-learn's digits in mixed precision, the right way.

The twin of ``digits_broken.py``: ``diff`` the two. Runs on a CPU in a few seconds.
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
        return centered / (x.std(dim=-1, keepdim=True) + 1e-4)


def batches(size, seed):
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return [(images[index], labels[index]) for index in order.split(size)]


def train_probe(epochs, lr):
    """A linear probe: float32 weights, bfloat16 compute."""
    model = nn.Linear(64, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for epoch in range(epochs):
        for x, y in batches(256, seed=epoch):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
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
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            scaler.step(optimizer)
            scaler.update()
        print(f"classifier, epoch {epoch}: loss {loss.item():.3f}")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
        torch.save(state, checkpoint)


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
