"""What ``__init__`` leaves is walked once for all methods of a class, and nothing that is found depends on it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amp_audit import rulebook
from amp_audit.static.binding.project import Project
from amp_audit.static.source import lowering
from amp_audit.static.walking import inits, paths

HELPERS = """
import torch

def scaler_for(flag):
    return torch.amp.GradScaler("cuda") if flag else None

def optimizer_for(model):
    return torch.optim.SGD(model.parameters(), 0.1)
"""
TRAINER = """
import torch
from helpers import optimizer_for, scaler_for

class Trainer{number}:
    def __init__(self, model, amp):
        self.model = model
        self.optimizer = optimizer_for(model)
        self.scaler = scaler_for(amp)

    def clips_while_scaled(self, loss):
        self.scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def steps_by_itself(self, loss):
        self.scaler.scale(loss).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def is_fine(self, loss):
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
"""


def project(count: int) -> Project:
    sources = {"helpers": HELPERS, **{f"t{n}": TRAINER.replace("{number}", str(n)) for n in range(count)}}
    modules = [lowering.lower(f"/project/{name}.py", textwrap.dedent(text)) for name, text in sources.items()]
    return Project(modules, Path("/project"))


def found(read: Project) -> list[tuple[str, str, int, object, object]]:
    raw, notes = paths.find(read, rulebook.load())
    assert notes == []
    return [(one.rule.id, one.path, one.at, one.confidence, one.related) for one in raw]


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What each walk of an ``__init__`` was about."""
    done: list[Any] = []
    walked = inits._walked

    def counting(*args: Any) -> Any:
        done.append(args)
        return walked(*args)

    monkeypatch.setattr(inits, "_walked", counting)
    yield done


def test_one_walk_for_all_methods(walks: list[Any]) -> None:
    rules = {rule for rule, *_ in found(project(1))}
    assert {"AMP202", "AMP203"} <= rules and len(walks) == 1


@pytest.mark.parametrize("count", [1, 3, 30])
def test_the_same_as_with_a_walk_for_each_method(count: int, walks: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where functions of another file have been walked for so many entries that they are walked no more."""
    kept = found(project(count))
    taken_up = len(walks)
    walks.clear()
    monkeypatch.setattr(inits, "as_then", lambda limits, followed, visits: False)
    assert found(project(count)) == kept
    assert taken_up < len(walks) == 3 * count


def test_what_would_be_walked_again_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that has no fuel for its few paths has none for fewer: the outcome is that of walking it each time."""
    monkeypatch.setattr(paths, "FUEL", 6)
    monkeypatch.setattr(paths, "PLENTY", 1)
    done: list[Any] = []
    walked = paths._Surveyor._walked

    def counting(*args: Any) -> Any:
        done.append(args)
        return walked(*args)

    monkeypatch.setattr(paths._Surveyor, "_walked", counting)
    first = paths.find(project(12), rulebook.load())
    once = len(done)
    monkeypatch.setattr(paths._Attempt, "would_repeat", lambda self, width, fuel: False)
    again = paths.find(project(12), rulebook.load())
    assert once < len(done) - once
    assert first[1] == again[1] and "not walked to the end" in " ".join(first[1])
    assert [(one.rule.id, one.path, one.at) for one in first[0]] == [
        (one.rule.id, one.path, one.at) for one in again[0]
    ]
