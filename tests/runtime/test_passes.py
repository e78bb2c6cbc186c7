"""Gradients of other threads are looked at only while no other thread's backward pass runs."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from amp_audit.runtime.passes import Passes
from tests.runtime.drive import audited, plainly
from tests.runtime.recording import events, every_step_deep, notes, numbers, recorded

torch.set_num_threads(1)

AT_ONCE = """
import threading
import torch
torch.set_num_threads(1)
turn = threading.Barrier(2)
losses = {}

def train(number):
    random = torch.Generator().manual_seed(number)
    weights = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(4, generator=random)) for _ in range(200)])
    optimizer = torch.optim.SGD(weights, lr=0.01)
    for step in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = sum((weight * weight).sum() for weight in weights)
        turn.wait()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    losses[number] = loss.item()

threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(losses.items()))
"""


def test_threads_that_train_at_once_are_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(AT_ONCE)
    plain = plainly(["train.py"], tmp_path)
    assert plain.code == 0
    for number in range(10):
        run = audited(["train.py"], tmp_path, folder=tmp_path / f"trace {number}", deep="all", sample="all", steps=None)
        assert (run.code, run.stdout, run.stderr) == (plain.code, plain.stdout, plain.stderr)


class Held(torch.autograd.Function):
    """Its backward says that it runs, and waits."""

    runs = threading.Event()
    goes_on = threading.Event()

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        Held.runs.set()
        assert Held.goes_on.wait(60)
        return grad


def test_while_another_thread_goes_backward_nothing_is_looked_at(tmp_path: Path) -> None:
    Held.runs.clear()
    Held.goes_on.clear()

    def train() -> None:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        Held.apply(model(torch.ones(3, 4))).sum().backward()
        optimizer.step()

    def run() -> None:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = model(torch.ones(3, 4)).sum()
        thread = threading.Thread(target=train)
        thread.start()
        assert Held.runs.wait(60)
        loss.backward()  # must not wait for the other thread
        optimizer.step()
        Held.goes_on.set()
        thread.join()

    with every_step_deep():
        trace = recorded(run, tmp_path)
    assert [note.partition(":")[0] for note in notes(trace)] == ["several threads train at once"]
    assert [row.kind for row in events(trace) if row.kind in ("backward", "step")] == []
    assert numbers(trace, "live") == []
    assert trace.end is not None and any("another thread's training" in what for what in trace.end.unobserved)


def test_a_pass_waits_for_who_is_reading() -> None:
    passes, order = Passes(), list[str]()
    thread = threading.Thread(target=lambda: (passes.begin(), order.append("begun"), passes.end(0)))

    def look() -> str:
        thread.start()
        thread.join(0.2)
        order.append("read")
        return "seen"

    assert passes.read(look) == "seen"
    thread.join()
    assert order == ["read", "begun"]


@pytest.mark.parametrize("mine", [0, 1])
def test_the_passes_of_a_thread_are_no_obstacle_to_itself(mine: int) -> None:
    passes = Passes()
    outer = passes.mine()
    for _ in range(mine):
        assert not passes.begin()
    assert passes.read(lambda: 1) == 1
    found: list[object] = []

    def other() -> None:
        found.extend([passes.read(lambda: 1), passes.begin()])
        passes.end(0)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == ([None, True] if mine else [1, False])
    passes.end(outer)
    assert passes.mine() == 0


@pytest.mark.parametrize("whose", ["optimizer", "module"])
def test_while_another_thread_clears_gradients_nothing_is_looked_at(whose: str, tmp_path: Path) -> None:
    """torch frees a gradient before it empties ``.grad``. What waits for its end runs in between."""
    freed, looked = threading.Event(), threading.Event()

    def clear() -> None:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()

        def last(_: object) -> None:
            freed.set()
            assert looked.wait(60)

        waits = weakref.ref(model.weight.grad, last)
        (optimizer if whose == "optimizer" else model).zero_grad()
        assert waits() is None

    def run() -> None:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        thread = threading.Thread(target=clear)
        thread.start()
        assert freed.wait(60)
        model(torch.ones(3, 4)).sum().backward()
        looked.set()
        thread.join()
        optimizer.step()

    trace = recorded(run, tmp_path)
    assert notes(trace) == ["several threads train at once: the order of what they do was not followed from there on"]


def test_gradients_of_ones_own_may_be_looked_at_while_one_clears_them() -> None:
    passes = Passes()
    assert not passes.begin()
    assert passes.read(lambda: 1) == 1
    there = threading.Thread(target=lambda: found.append(passes.read(lambda: 1)))
    found: list[int | None] = []
    there.start()
    there.join()
    passes.end(0)
    assert found == [None] and passes.read(lambda: 2) == 2
