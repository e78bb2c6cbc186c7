"""``amp-audit doctor``: what is printed is what torch says."""

from __future__ import annotations

import json

import pytest
import torch

from amp_audit import cli
from amp_audit.runtime import doctor


def test_it_says_what_torch_says(capsys: pytest.CaptureFixture[str]) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert cli.main(["doctor", "--json"]) == 0
    finally:
        torch.set_float32_matmul_precision(before)
    found = json.loads(capsys.readouterr().out)
    assert found["torch"] == torch.__version__
    assert found["switches"]["float32_matmul_precision"] == "high"
    assert found["switches"]["threads"] == torch.get_num_threads()
    cpu = found["devices"][0]
    assert (cpu["device"], cpu["capability"]) == ("cpu", torch.backends.cpu.get_cpu_capability())
    assert len(found["devices"]) == 1 + (torch.cuda.device_count() if torch.cuda.is_available() else 0)


def test_what_torch_autocasts_to_is_what_it_computes_in() -> None:
    for name in doctor.examine()["devices"][0]["autocast"]:
        with torch.autocast("cpu", dtype=getattr(torch, name)):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is getattr(torch, name)


def test_for_a_person_each_device_and_switch_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "cpu:" in text and "allow_tf32" in text and "autocast to   bfloat16, float16" in text


def test_devices_are_told_by_their_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, native in (
        ((7, 5), ["float16"]),
        ((8, 0), ["float16", "bfloat16", "tf32"]),
        ((9, 0), ["float16", "bfloat16", "tf32", "float8_e4m3fn"]),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index, found=capability: found)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a device")
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
        assert doctor._gpu(0)["native"] == native
