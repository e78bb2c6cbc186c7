"""Every example that can run, run: what the run alone finds stands on the marked lines, and nowhere else."""

from __future__ import annotations

import contextlib
import io
import runpy
import warnings
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.rulebook import Example, Rule

pytest.importorskip("torch")

import torch

from amp_audit.trace import judge
from tests.rules.test_examples import marked
from tests.runtime.recording import every_step_deep, notes, recorded

torch.set_num_threads(1)

BOOK = rulebook.load()
FOREIGN = ("accelerate", "transformers", "lightning")
CASES = [
    pytest.param(rule, example, id=f"{rule.id}-{number}-{'bad' if example.bad else 'good'}")
    for rule in BOOK.rules.values()
    for number, example in enumerate(rule.examples, 1)
    if example.run
]
Found = set[tuple[object, str]]

UNSEEN = {
    ("AMP105", 2): "the region is entered, if only around the constructor",
}
"""Examples whose mistake no event and no error tells of."""


def ran(code: str, folder: Path) -> tuple[Found, Exception | None]:
    """Line or subject, and rule, of each finding of a run; and what ended it."""
    path = folder / "train.py"
    path.write_text(code, encoding="utf-8")
    errors: list[Exception] = []

    def run() -> None:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                runpy.run_path(str(path), run_name="__main__")
            except Exception as error:
                errors.append(error)
                raise

    with every_step_deep():
        trace = recorded(run, folder)
    assert notes(trace) == []
    found = judge.findings([trace], BOOK)
    places = {
        (one.location.line if one.location else (one.subject.kind, one.subject.name), one.rule)
        for one in found
        if one.location or one.subject
    }
    return places, errors[0] if errors else None


def expected(rule: Rule, example: Example) -> Found:
    """What a run can be asked for: the marks of rules with a runtime side, and the subject of those without a place."""
    found: Found = {(line, name) for line, name in marked(example.code) if BOOK[name].runtime}
    if example.subject:
        found.add(((example.subject["kind"], example.subject["name"]), rule.id))
    return found


def evidence(example: Example, found: Found) -> Found:
    """Findings that the merge turns into evidence of a marked rule (``confirmed_by``)."""
    rules = {name for _, name in marked(example.code)}
    proofs = {proof for name in rules if not BOOK[name].runtime for proof in BOOK[name].confirmed_by}
    return {one for one in found if one[1] in proofs}


@pytest.mark.parametrize(("rule", "example"), CASES)
def test_example(rule: Rule, example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(tmp_path / "train.py")])
    for module in FOREIGN:
        if module in example.code:
            pytest.importorskip(module)
    found, error = ran(example.code, tmp_path)
    if "accelerate" not in example.code:  # its process-wide state refuses a second configuration
        assert (type(error).__name__ if error else None) == example.raises, error
    number = rule.examples.index(example) + 1
    wanted = set() if (rule.id, number) in UNSEEN else expected(rule, example)
    assert found - evidence(example, found) == wanted


FROZEN = """
# a frozen teacher in float32, asked for two views
import torch
from torch import nn

torch.set_num_threads(1)
teacher, student = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8)), nn.Linear(64, 8)
teacher.requires_grad_(False)
optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
for step in range(3):
    one, two = torch.randn(16, 64), torch.randn(16, 64)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        targets = [teacher(view) for view in (one, two)]  # AMP602
        loss = (student(one) - targets[0]).float().square().mean() + (student(two) - targets[1]).float().square().mean()
    loss.backward()
    optimizer.step()
"""


def test_weights_that_need_no_gradient_are_never_kept(tmp_path: Path) -> None:
    """AMP602: which only a run can tell, since what it costs depends on the sizes."""
    found, error = ran(FROZEN, tmp_path)
    assert error is None and found == marked(FROZEN)
