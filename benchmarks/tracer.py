"""What recording costs: a tiny GPT's training step plain, under a mode that does nothing, and under the tracer.

    python benchmarks/tracer.py [--rounds 15] [--steps 10]

Prints medians of process CPU time and their ratios. The variants take turns within each round, in a new order each
time, on one thread, so that a busy machine hits all of them alike. ``recording`` counts every operator of every step
and writes each step to a file, as ``--sample all`` does on steps that are not deep; ``session`` also has the protocol
events and the value counts of casts.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from amp_audit.runtime.attach import Config
from amp_audit.runtime.place import Places
from amp_audit.runtime.recording import Recording
from amp_audit.runtime.session import Session
from amp_audit.trace.schema import VERSION, Header, StepRecord
from amp_audit.trace.writer import Writer

WIDTH, HEADS, LAYERS, LENGTH, BATCH, VOCABULARY = 64, 4, 4, 32, 8, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.attend(self.norm1(x)).split(WIDTH, 2)
        query, key, value = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Trainer:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = GPT()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)
        self.batch = torch.randint(0, VOCABULARY, (2, BATCH, LENGTH))

    def step(self) -> None:
        tokens, targets = self.batch
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(self.model(tokens).view(-1, VOCABULARY), targets.reshape(-1))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Nothing(TorchDispatchMode):
    """Lets every operator through. The settings are the tracer's: the default ones cost more."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Notes:
    """A host for a recording without a session."""

    def __init__(self) -> None:
        self.places = Places()

    def note(self, text: str) -> None:
        print(text)


class Counting:
    """The tracer alone, each step written."""

    def __init__(self, folder: Path) -> None:
        host = Notes()
        self.recording = Recording(host, host.places)  # type: ignore[arg-type]
        self.writer = Writer(folder, print)
        self.writer.open(Header(VERSION, "", "", "", "cpu", "cpu", 0, 1, (), "", "all", None, ""))

    @contextmanager
    def __call__(self) -> Iterator[Callable[[], None]]:
        self.recording.start()
        yield self._step_over
        self.recording.stop()

    def _step_over(self) -> None:
        ops, casts = self.recording.step_end(self.writer)
        self.writer.step(StepRecord(1, recorded=True), ops, casts)


@contextmanager
def _session(folder: Path) -> Iterator[Callable[[], None]]:
    session = Session(Config(str(folder), sample="all"))
    session.begin()
    session.clock._count = 10  # no step is deep before the twentieth
    session.plan = session.clock.begin()
    session.record.recorded, session.record.deep = True, False
    session.recording.start()
    yield lambda: None
    session.close("finished")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, choices=range(1, 8), default=6, help="steps of each variant in a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    trainer = Trainer()
    with tempfile.TemporaryDirectory() as folder:
        counting = Counting(Path(folder) / "counting")
        sessions = iter(Path(folder) / f"session-{number}" for number in range(1 + options.rounds))

        @contextmanager
        def quiet(context: AbstractContextManager[Any]) -> Iterator[Callable[[], None]]:
            with context:
                yield lambda: None

        variants: dict[str, Callable[[], AbstractContextManager[Callable[[], None]]]] = {
            "plain": lambda: quiet(nullcontext()),
            "no-op mode": lambda: quiet(Nothing()),
            "recording": counting,
            "session": lambda: _session(next(sessions)),
        }
        times: dict[str, list[float]] = {name: [] for name in variants}
        for round_ in range(1 + options.rounds):
            for name in random.Random(round_).sample(list(variants), len(variants)):
                with variants[name]() as over:
                    for _ in range(2 if name == "session" else 1):  # the first step sets up what later ones reuse
                        trainer.step()
                        over()
                    began = time.process_time()
                    for _ in range(options.steps):
                        trainer.step()
                        over()
                    spent = (time.process_time() - began) / options.steps
                if round_:
                    times[name].append(spent)
    plain, nothing = statistics.median(times["plain"]), statistics.median(times["no-op mode"])
    print(f"{'':12} {'ms/step':>8} {'x plain':>8} {'x no-op':>8}")
    for name, spent in times.items():
        median = statistics.median(spent)
        print(f"{name:12} {1e3 * median:8.2f} {median / plain:8.2f} {median / nothing:8.2f}")


if __name__ == "__main__":
    main()
