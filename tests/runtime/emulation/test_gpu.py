"""The emulated device against a real one: every operator of the programs of ``benchmarks/emulation.py``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "emulation.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("emulation_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NAMES = list(script().PROGRAMS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_the_real_device(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    major, minor = torch.cuda.get_device_capability()
    differing = script().compare([name], f"cuda:sm{major}{minor}", real=True)
    assert differing == 0, capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="compared with the device that is there")
@pytest.mark.parametrize("name", NAMES)
def test_the_programs_run_emulated(name: str, tmp_path: Path) -> None:
    found = script().rows(tmp_path, name, "cuda:sm80")
    assert len(found) > 20
    half = {row for row in found if row[5] in ("float16", "bfloat16") and row[2][1] == row[5]}
    assert half or name == "half weights"
