"""Misused calls as a run shows them: by the error's text, by what became of an argument, by what was never entered."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.model import Confidence, Finding
from amp_audit.trace import judge
from amp_audit.trace.schema import Trace

pytest.importorskip("torch")

from tests.runtime.recording import recorded

BOOK = rulebook.load()


def seen(code: str, folder: Path) -> dict[str, Finding]:
    path = folder / "train.py"
    path.write_text("import torch\n" + code)
    trace: Trace = recorded(lambda: exec(compile(path.read_text(), str(path), "exec"), {}), folder)
    return {one.rule: one for one in judge.findings([trace], BOOK)}


ERRORS = {
    "torch.autocast()": "AMP104",
    "torch.autocast(torch.float16)": "AMP104",
    "torch.autocast('gpu').__enter__()": "AMP104",
    "torch.autocast('cpu', True).__enter__()": "AMP104",
    "torch.autocast('cpu', enabled=None).__enter__()": "AMP104",
    "torch.cuda.amp.autocast(device_type='cuda')": "AMP104",
    "torch.amp.GradScaler('gpu')": "AMP104",
    "torch.autocast('cpu')(torch.ones(1))": "AMP105",
    "torch.amp.GradScaler(False)": "AMP103",
    "torch.amp.GradScaler(2.0**10)": "AMP103",
    "torch.amp.GradScaler('cpu')(torch.ones(1))": "AMP107",
    "torch.amp.GradScaler('cpu').step()": "AMP107",
    "raise RuntimeError('torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.')": (
        "AMP315"
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("code", ERRORS)
def test_a_refused_call_is_named_at_its_line(code: str, tmp_path: Path) -> None:
    found = seen(f"x = 1\n{code}\n", tmp_path)
    assert ERRORS[code] in found
    place = found[ERRORS[code]].location
    assert place is not None and (Path(place.path).name, place.line) == ("train.py", 3)


@pytest.mark.parametrize(
    "code",
    [
        "torch.amp.GradScaler('cpu')",
        "torch.amp.GradScaler(torch.device('cuda', 1), enabled=False)",
        "with torch.autocast('cpu', dtype=torch.float16, enabled=False): pass",
        "region = torch.autocast('cpu')\nfor _ in range(2):\n    with region: pass",
        "raise ValueError('expected a flag')",
    ],
)
def test_what_looks_like_it_is_left_alone(code: str, tmp_path: Path) -> None:
    assert not {"AMP103", "AMP104", "AMP105", "AMP107", "AMP108", "AMP315"} & set(seen(code, tmp_path))


def test_a_region_that_is_never_entered_is_of_low_confidence(tmp_path: Path) -> None:
    found = seen("def make():\n    return torch.autocast('cpu')\nfor _ in range(3):\n    make()\n", tmp_path)["AMP105"]
    assert found.confidence is Confidence.LOW and "3 built here" in found.evidence[0].text


def test_backwards_in_a_closure_under_a_scaler_are_counted(tmp_path: Path) -> None:
    code = """
w = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.LBFGS([w], max_iter=3)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
def closure():
    optimizer.zero_grad()
    loss = (w**4).sum()
    scaler.scale(loss).backward()
    return loss
closure()
scaler.step(optimizer, closure)
"""
    found = seen(code, tmp_path)["AMP108"]
    assert found.location is not None and found.location.line == 12
    assert found.evidence[0].value == 3
