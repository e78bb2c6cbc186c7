"""Where thresholds of rules come from: planted faults, one half of them to choose on, the other to report on.

Each case is a small training run whose truth is known another way than the measure knows it:

- AMP511: the relative error of the gradient against the same backward under a safe loss scale is above 5 %.
- AMP513: one of 40 further batches overflows.
- AMP514: after 20 steps the weights are more than half of the way off from where float32 master weights went.
- AMP515: after 20 steps, more than one step in ten is still skipped beyond the probe of each growth interval.

Run: OMP_NUM_THREADS=1 python benchmarks/thresholds.py
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from amp_audit import rulebook
from amp_audit.runtime import clock
from amp_audit.runtime.attach import Config
from amp_audit.runtime.session import Session
from amp_audit.trace import measures, ranges, reader
from amp_audit.trace.schema import Trace

torch.set_num_threads(1)


@dataclass(frozen=True)
class Case:
    name: str
    value: float
    bad: bool


@contextmanager
def recording() -> Iterator[list[Trace]]:
    """Record what runs inside; its trace is in the list afterwards."""
    traces: list[Trace] = []
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Config(trace_dir=folder, sample="all", go_on=True, main=True))
        session.begin()
        try:
            yield traces
        finally:
            session.close("finished")
        traces.extend(reader.read(Path(folder)))


# AMP511


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    layers = {
        "mlp": [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)],
        "norm": [nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 16)],
        "deep": [*itertools.chain.from_iterable((nn.Linear(32, 32), nn.Tanh()) for _ in range(5)), nn.Linear(32, 16)],
    }
    return nn.Sequential(*layers[kind])


def gradient(model: nn.Module, x: torch.Tensor, y: torch.Tensor, factor: float, scale: float) -> torch.Tensor:
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x).float(), y) * factor
    (loss * scale).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]) / scale


def underflows() -> Iterator[Case]:
    for kind, power, rows in itertools.product(("mlp", "norm", "deep"), range(-22, 3, 2), (16, 256)):
        factor = 2.0**power
        model = network(kind)
        x, y = torch.randn(rows, 32), torch.randn(rows, 16)

        with recording() as traces:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            for _ in range(2):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = nn.functional.mse_loss(model(x).float(), y) * factor
                loss.backward()
                optimizer.step()

        flushes = measures.flushes(traces[0]).values()
        share = max((flush.share for flush in flushes if flush.flushed >= 64), default=0.0)
        exact = gradient(model, x, y, factor, 2.0**10 / factor)
        error = (gradient(model, x, y, factor, 1.0) - exact).norm() / exact.norm()
        yield Case(f"{kind} x 2^{power}, {rows} rows", share, error.item() > 0.05)


# AMP514


def optimizers() -> dict[str, Callable[[list[nn.Parameter], float], torch.optim.Optimizer]]:
    return {
        "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr * 100),
        "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr * 10, momentum=0.9),
        "AdamW": lambda p, lr: torch.optim.AdamW(p, lr=lr, eps=1e-4),
    }


def losses() -> Iterator[Case]:
    for (name, make), dtype, power in itertools.product(
        optimizers().items(), (torch.bfloat16, torch.float16), range(-18, -3, 2)
    ):
        torch.manual_seed(0)
        model = nn.Linear(32, 32, bias=False).to(dtype)
        start = model.weight.detach().float().clone()
        master = start.clone().requires_grad_()
        low, high = make(list(model.parameters()), 2.0**power), make([master], 2.0**power)
        batches = [(torch.randn(64, 32, dtype=dtype), torch.randn(64, 32, dtype=dtype)) for _ in range(20)]

        with recording() as traces:
            for x, y in batches:
                low.zero_grad()
                nn.functional.mse_loss(model(x), y).backward()
                low.step()

        for x, y in batches:
            high.zero_grad()
            nn.functional.mse_loss(nn.functional.linear(x, master.to(dtype)), y).backward()
            high.step()
        updates = [number.values for _, number in measures.numbers(traces[0], "lost_updates")]
        share = sum(v["lost"] for v in updates) / max(1, sum(v["updates"] for v in updates))
        moved, meant = model.weight.detach().float() - start, (master - start).detach()
        yield Case(f"{name} {dtype} 2^{power}", share, ((moved - meant).norm() / meant.norm()).item() > 0.5)


# AMP515


def timelines() -> Iterator[Case]:
    rule = rulebook.load()["AMP515"]
    detector = rule.runtime[0]
    chance = random.Random(0)
    for fits, rate, interval, fixed in itertools.product(
        (2.0**18, 2.0**10, 2.0**2, 2.0**-60), (0.0, 0.02, 0.25, 0.5), (20, 2000), (False, True)
    ):
        weight = nn.Parameter(torch.ones(1))
        skipped: list[bool] = []

        with recording() as traces:
            optimizer = torch.optim.SGD([weight], lr=0.0)
            scaler = torch.amp.GradScaler("cpu", growth_interval=interval)
            for step in range(120):
                optimizer.zero_grad()
                scaler.scale(weight.sum()).backward()
                wild = step > 30 and chance.random() < rate
                if scaler.get_scale() > fits or wild:
                    weight.grad.fill_(float("inf"))
                skipped.append(not torch.isfinite(weight.grad).item())
                scaler.step(optimizer)
                scaler.update(65536.0 if fixed else None)

        found = list(measures.unstable_scale(traces[0], rule, detector))
        bad = sum(skipped[20:]) / 100 - 1 / interval > 0.1
        yield Case(f"fits {fits:g} rate {rate} interval {interval} fixed {fixed}", float(bool(found)), bad)


# AMP513


def activations() -> Iterator[Case]:
    """Gains of the last product of a net; faulty where one of 40 further batches of the same data overflows."""
    for kind, power, seed in itertools.product(("normal", "uniform", "heavy"), range(12), range(3)):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64))
        draw = {
            "normal": lambda: torch.randn(64, 32),
            "uniform": lambda: torch.rand(64, 32) * 2 - 1,
            "heavy": lambda: torch.distributions.StudentT(4.0).sample((64, 32)),
        }[kind]
        with torch.no_grad():
            largest = max(model(draw()).abs().max().item() for _ in range(4))
        gain = 65504 / largest * 2.0 ** (-power / 2)
        with recording() as traces:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            for _ in range(2):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    h = model(draw()) * min(gain, 60000.0)
                (h.float().mean() * 1e-3).backward()
                optimizer.step()

        found = [number.values["max"] for _, number in measures.numbers(traces[0], "range")]
        overflowed = bool(list(measures.numbers(traces[0], "nonfinite"))) or not found
        with torch.no_grad():
            later = max(model(draw()).abs().max().item() for _ in range(40)) * min(gain, 60000.0)
        if not overflowed:  # that is AMP512's
            yield Case(f"{kind} 2^-{power / 2} seed {seed}", -ranges.headroom(max(found)), later > 65519)


# Choosing and reporting


def rates(cases: list[Case], threshold: float) -> str:
    bad, good = [c for c in cases if c.bad], [c for c in cases if not c.bad]
    hit, false = sum(c.value > threshold for c in bad), sum(c.value > threshold for c in good)
    return f"{hit} of {len(bad)} faults found, {false} false alarms in {len(good)} sound runs"


def chosen(cases: list[Case]) -> float:
    """The middle of the thresholds with the fewest mistakes."""
    low = min(0, *(int(c.value) - 1 for c in cases))
    steps = [low + n / 100 for n in range(100 * (1 - low))]
    mistakes = [sum((c.value > t) != c.bad for c in cases) for t in steps]
    best = [t for t, n in zip(steps, mistakes, strict=True) if n == min(mistakes)]
    return best[len(best) // 2]


def report(name: str, cases: list[Case], in_force: float) -> None:
    random.Random(1).shuffle(cases)
    half = len(cases) // 2
    first, second = cases[:half], cases[half:]
    print(f"{name}: best on the first half {chosen(first):.2f}; in force {in_force:.2f}")
    print(f"    first half:  {rates(first, in_force)}")
    print(f"    second half: {rates(second, in_force)}")


def main() -> None:
    begin = clock.Clock.begin
    clock.Clock.begin = lambda self: clock.Plan(begin(self).recorded, deep=True)  # type: ignore[method-assign]
    book = rulebook.load()
    for name, cases in (("AMP511", underflows()), ("AMP514", losses())):
        report(name, list(cases), float(book[name].runtime[0].options["over"]))
    report("AMP513, minus bits", list(activations()), -float(book["AMP513"].runtime[0].options["under"]))
    report("AMP515", list(timelines()), 0.5)


if __name__ == "__main__":
    main()
