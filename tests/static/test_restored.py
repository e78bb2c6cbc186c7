"""States that a scaler is given: those that torch refuses are told, those that something has asked for are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit.model import Severity
from tests.static.found import findings, lines

LOAD = """
import torch


def resume(path, amp):
    checkpoint = torch.load(path)
    off = torch.amp.GradScaler("cuda", enabled=False)
    scaler = torch.amp.GradScaler("cuda"{enabled})
    {load}
    return scaler, off
"""


def told(folder: Path, load: str, enabled: str = "") -> list[Severity]:
    found = findings(folder, "AMP702", LOAD.format(load=load, enabled=enabled))
    return [each.severity for each in found]


@pytest.mark.parametrize(
    ("load", "severity"),
    [
        ("scaler.load_state_dict({})", Severity.ERROR),
        ("scaler.load_state_dict(off.state_dict())", Severity.ERROR),
        ("state = off.state_dict(); scaler.load_state_dict(state)", Severity.ERROR),
        ('scaler.load_state_dict(checkpoint.get("scaler", {}))', Severity.WARNING),
        ('scaler.load_state_dict(checkpoint.get("scaler") or {})', Severity.WARNING),
        ('scaler.load_state_dict(checkpoint["scaler"] if "scaler" in checkpoint else {})', Severity.WARNING),
        ('if amp: scaler.load_state_dict(checkpoint.get("scaler", {}))', Severity.WARNING),
    ],
)
def test_an_empty_state_is_refused(load: str, severity: Severity, tmp_path: Path) -> None:
    assert told(tmp_path, load) == told(tmp_path, load, ", enabled=amp") == [severity]
    ignored = told(tmp_path, load, ", enabled=False")
    assert ignored == [Severity.INFO]  # a scaler that is off takes it, and drops it


@pytest.mark.parametrize(
    "load",
    [
        'scaler.load_state_dict(checkpoint["scaler"])',
        'if checkpoint.get("scaler"): scaler.load_state_dict(checkpoint.get("scaler", {}))',
        'if "scaler" in checkpoint: scaler.load_state_dict(checkpoint.get("scaler", {}))',
        'state = {}; state.update(checkpoint["scaler"]); scaler.load_state_dict(state)',
        "scaler.load_state_dict(scaler.state_dict())",
        "other = torch.nn.Linear(1, 1); other.load_state_dict({})",
    ],
)
def test_a_state_that_is_there_is_not(load: str, tmp_path: Path) -> None:
    assert told(tmp_path, load) == []


def test_an_error_that_is_caught_is_meant(tmp_path: Path) -> None:
    load = """try:
        scaler.load_state_dict(checkpoint.get("scaler", {}))
    except RuntimeError:
        pass"""
    assert told(tmp_path, load) == []


HELPER = """
import torch


def resume(path, model, optimizer, ema, {param}):
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    {load}


def main(model, optimizer, ema):
    scaler = torch.amp.GradScaler("cuda")
    resume("last.pt", model, optimizer, ema, scaler)
"""


@pytest.mark.parametrize("param", ["scaler", "grad_scaler", "scaler: torch.amp.GradScaler", "scaler=None"])
@pytest.mark.parametrize(
    ("load", "severities"),
    [
        ('{}.load_state_dict(checkpoint.get("scaler", {{}}))', [Severity.WARNING]),
        ('{}.load_state_dict(checkpoint["optimizer"])', [Severity.ERROR]),
        ('{}.load_state_dict(checkpoint["scaler"])', []),
        ('if "scaler" in checkpoint: {}.load_state_dict(checkpoint.get("scaler", {{}}))', []),
        ('if {0} is not None: {0}.load_state_dict(checkpoint.get("scaler") or {{}})', [Severity.WARNING]),
        ('ema.load_state_dict(checkpoint["model"]); {}.load_state_dict(checkpoint["scaler"])', []),
    ],
)
def test_a_scaler_that_a_function_is_given(load: str, severities: list[Severity], param: str, tmp_path: Path) -> None:
    name = param.partition(":")[0].partition("=")[0]
    source = HELPER.format(param=param, load=load.format(name))
    assert [each.severity for each in findings(tmp_path, "AMP702", source)] == severities


@pytest.mark.parametrize("param", ["tokenizer", "standard: object", "scalers"])
def test_what_may_be_no_scaler(param: str, tmp_path: Path) -> None:
    load = f'{param.partition(":")[0]}.load_state_dict(checkpoint.get("scaler", {{}}))'
    assert findings(tmp_path, "AMP702", HELPER.format(param=param, load=load)) == []


@pytest.mark.parametrize(
    "between",
    [
        'ckpt = torch.load("scaler.pt")\n    scaler.load_state_dict(ckpt["state"])',
        'scaler.load_state_dict(torch.load("scaler.pt")["state"])',
    ],
)
def test_states_of_two_files_are_two(tmp_path: Path, between: str) -> None:
    source = f"""
import torch

def resume(optimizer):
    scaler = torch.amp.GradScaler("cuda")
    ckpt = torch.load("optimizer.pt")
    optimizer.load_state_dict(ckpt["state"])
    {between}
    return scaler
"""
    assert lines(tmp_path, "AMP702", source) == []
    assert lines(tmp_path, "AMP702", source.replace(between, 'scaler.load_state_dict(ckpt["state"])')) == [8]


@pytest.mark.parametrize(("branch", "found"), [("else:", []), ("", [9])])
def test_what_one_branch_loads_the_other_does_not(tmp_path: Path, branch: str, found: list[int]) -> None:
    source = f"""
import torch

def resume(kind, ckpt, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    if kind == "all":
        optimizer.load_state_dict(ckpt["state"])
    {branch}
        scaler.load_state_dict(ckpt["state"])
"""
    assert lines(tmp_path, "AMP702", source) == found
