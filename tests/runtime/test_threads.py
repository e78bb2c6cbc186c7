"""Threads of a program that train, one after the other or at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from amp_audit import rulebook
from amp_audit.model import Severity
from amp_audit.trace import judge
from tests.runtime.recording import events, loss_of, named, net, notes, recorded

torch.set_num_threads(1)


def train_alone(steps: int, kind: Callable[..., torch.optim.Optimizer]) -> None:
    """A model of its own, trained in a bfloat16 region."""
    model = net()
    optimizer = kind(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = loss_of(model, torch.bfloat16)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("amp", [False, True])
def test_threads_that_train_at_once_are_not_taken_for_one(amp: bool, tmp_path: Path) -> None:
    """One goes backward and steps while the other is inside its region, in turns: right, and no findings."""
    turn = threading.Barrier(2)

    def train(number: int) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=amp)
        for _ in range(4):
            if number:
                turn.wait()
            with torch.autocast("cpu", dtype=torch.float16 if amp else torch.bfloat16):
                loss = model(torch.randn(4, 8)).float().square().mean()
                if not number:
                    turn.wait()  # the other one enters its region, or ends its step, meanwhile
                    turn.wait()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if number:
                turn.wait()

    def run() -> None:
        threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    trace = recorded(run, tmp_path)
    assert [note for note in notes(trace) if not note.startswith("several threads train at once")] == []
    assert len(notes(trace)) == 1
    assert [one for one in judge.findings([trace], rulebook.load()) if one.severity > Severity.INFO] == []
    assert trace.finished >= 4


def test_threads_that_train_at_once_leave_a_trace_that_can_be_read(tmp_path: Path) -> None:
    def run() -> None:
        threads = [threading.Thread(target=train_alone, args=(8, torch.optim.AdamW)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    trace = recorded(run, tmp_path, deep="none")
    assert [note for note in notes(trace) if not note.startswith("several threads train at once")] == []
    assert 1 <= trace.finished <= 24  # steps of several optimizers by turns are one


def test_a_thread_that_trains_after_another_is_followed(tmp_path: Path) -> None:
    def run() -> None:
        for _ in range(2):
            thread = threading.Thread(target=train_alone, args=(2, torch.optim.SGD))
            thread.start()
            thread.join()
        train_alone(2, torch.optim.SGD)

    trace = recorded(run, tmp_path)
    assert notes(trace) == [] and len(named(events(trace), "step")) == len(named(events(trace), "backward")) == 6
    assert not is_in_torch_dispatch_mode()  # although the thread in which it was entered is gone: nothing would compile


def test_threads_by_turns_leave_no_mode_behind(tmp_path: Path) -> None:
    """The first one lives on: what its recording left there goes when it is recorded again, and at the end."""

    def run() -> None:
        for _ in range(2):
            train_alone(2, torch.optim.SGD)
            thread = threading.Thread(target=train_alone, args=(2, torch.optim.SGD))
            thread.start()
            thread.join()
        train_alone(2, torch.optim.SGD)

    for sample in ("all", "2", "3"):
        assert notes(recorded(run, tmp_path / sample, sample=sample)) == []
        assert torch._C._len_torch_dispatch_stack() == 0 and not is_in_torch_dispatch_mode()
