"""What recording costs: a GPT's training step plain, under a mode that does nothing, under the tracer, under peers.

    python benchmarks/tracer.py [--size small|large] [--rounds 15] [--steps 6] [--peers] [--sampled 500]

Prints medians of process CPU time and their ratios, with intervals that hold the median of ratios in 95 of 100 (a
bootstrap over rounds). The variants take turns within each round, in a new order each time, on one thread, so that a
busy machine hits all of them alike; a ratio is that of two times of the same round.

``operators`` counts every operator of every step and writes each step to a file; ``session`` is what ``--sample all
--deep none`` does: events of the protocol, the values of casts, the gradient norm, and exponents of parameter gradients
and module outputs, too; ``deep`` runs every operator again in float32. ``--sampled`` runs so many steps under the
sampling that is the default.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import peers
import torch
from models import SIZES, Trainer
from torch.utils._python_dispatch import TorchDispatchMode

from amp_audit.runtime.attach import Config
from amp_audit.runtime.place import Places
from amp_audit.runtime.recording import Recording
from amp_audit.runtime.session import Session
from amp_audit.trace.schema import VERSION, Header, StepRecord
from amp_audit.trace.writer import Writer

Over = Callable[[], None]
Variant = Callable[[], AbstractContextManager[Over]]

RESAMPLES = 2000


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
    def __call__(self) -> Iterator[Over]:
        self.recording.start()
        yield self._step_over
        self.recording.stop()

    def _step_over(self) -> None:
        ops, casts = self.recording.step_end(self.writer)
        self.writer.step(StepRecord(1, recorded=True), ops, casts)


class Sessions:
    """Whole sessions, one after the other, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    @contextmanager
    def __call__(self, sample: str = "all", deep: str = "none") -> Iterator[Over]:
        self._count += 1
        session = Session(Config(str(self._folder / str(self._count)), sample=sample, deep=deep))
        session.begin()
        if sample == "all":
            session._start_recording()
        yield lambda: None
        session.close("finished")


@contextmanager
def quiet(context: AbstractContextManager[Any]) -> Iterator[Over]:
    with context:
        yield lambda: None


def timed(trainer: Trainer, variant: AbstractContextManager[Over], warm: int, steps: int) -> float:
    """Seconds of CPU time a step, after ``warm`` steps that set up what later ones reuse."""
    with variant as over:
        for _ in range(warm):
            trainer.step()
            over()
        began = time.process_time()
        for _ in range(steps):
            trainer.step()
            over()
        return (time.process_time() - began) / steps


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and between what lie 95 of 100 medians of as many values drawn from these."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return statistics.median(values), medians[round(0.025 * RESAMPLES)], medians[round(0.975 * RESAMPLES) - 1]


def ratio(times: Sequence[float], base: Sequence[float]) -> str:
    median, low, high = interval([one / other for one, other in zip(times, base, strict=True)])
    return f"{median:5.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=6, help="steps of each variant in a round")
    parser.add_argument("--peers", action="store_true", help="other tools, too, as far as they are installed")
    parser.add_argument(
        "--sampled", type=int, default=0, metavar="STEPS", help="the default sampling, over so many steps"
    )
    parser.add_argument("--alone", choices=peers.LASTING, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    trainer = Trainer(SIZES[options.size])
    if options.alone:
        alone(trainer, options.alone, options.rounds, options.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        sessions = Sessions(Path(folder) / "sessions")
        variants: dict[str, Variant] = {
            "plain": lambda: quiet(nullcontext()),
            "no-op mode": lambda: quiet(Nothing()),
            "operators": Counting(Path(folder) / "counting"),
            "session": sessions,
            "deep": lambda: sessions(deep="all"),
        }
        missing: list[str] = []
        if options.peers:
            others, missing = peers.installed(trainer)
            variants |= others
        print(f"{options.size} GPT, torch {torch.__version__}, {options.rounds} rounds of {options.steps} steps")
        compare(trainer, variants, options.rounds, options.steps)
        if options.sampled:
            rounds = max(3, options.rounds // 5)
            print(f"default sampling over {options.sampled} steps, {rounds} rounds")
            sampled: dict[str, Variant] = {
                "plain": lambda: quiet(nullcontext()),
                "sampled": lambda: sessions("default", "default"),
            }
            compare(trainer, sampled, rounds, options.sampled, warm=0)
    if options.peers:
        print("peers that change torch for good, each in a process of its own, the plain steps before it")
        given = ["--size", options.size, "--rounds", str(options.rounds), "--steps", str(options.steps)]
        for name in peers.LASTING:
            sys.stdout.flush()
            subprocess.run([sys.executable, __file__, *given, "--alone", name], check=False)
    print("\n".join(missing))


def alone(trainer: Trainer, name: str, rounds: int, steps: int) -> None:
    """Measure one peer after the plain steps; the interval is of the ratio of two medians, both drawn anew."""
    plain = [timed(trainer, quiet(nullcontext()), 2, steps) for _ in range(1 + rounds)][1:]
    try:
        variant = peers.LASTING[name](trainer)
        spent = [timed(trainer, variant(), 2, steps) for _ in range(1 + max(3, rounds // 3))][1:]
    except Exception as error:
        print(peers.absent(name, error))
        return
    draw = random.Random(0)
    ratios = sorted(
        statistics.median(draw.choices(spent, k=len(spent))) / statistics.median(draw.choices(plain, k=len(plain)))
        for _ in range(RESAMPLES)
    )
    low, high = ratios[round(0.025 * RESAMPLES)], ratios[round(0.975 * RESAMPLES) - 1]
    median = statistics.median(spent)
    print(f"{name:24} {1e3 * median:9.2f}  {median / statistics.median(plain):5.2f} [{low:.2f}, {high:.2f}]")


def compare(trainer: Trainer, variants: dict[str, Variant], rounds: int, steps: int, warm: int = 2) -> None:
    """Run all variants by turns and print what they take. The first round is for warming up."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + (warm > 0)):
        for name in random.Random(turn).sample(list(variants), len(variants)):
            spent = timed(trainer, variants[name](), warm, steps)
            if turn or not warm:
                times[name].append(spent)
    nothing = times.get("no-op mode")
    print(f"{'':24} {'ms/step':>9}  {'x plain':19}  {'x no-op' if nothing else ''}")
    for name, spent in times.items():
        beside = ratio(spent, nothing) if nothing and name != "plain" else ""
        print(f"{name:24} {1e3 * statistics.median(spent):9.2f}  {ratio(spent, times['plain']):19}  {beside}".rstrip())


if __name__ == "__main__":
    main()
