"""The tool that reads autocast's lists out of wheels, on wheels made of the installed torch's header."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from amp_audit import policy

torch = pytest.importorskip("torch")
TOOL = Path(__file__).resolve().parent.parent / "tools" / "autocast_lists.py"
HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"


@pytest.fixture
def tool() -> ModuleType:
    if not HEADER.is_file():
        pytest.skip("torch is installed without its headers")
    spec = importlib.util.spec_from_file_location("autocast_lists", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, header: str, version: str | None = None) -> Path:
    path = folder / f"torch-{version or torch.__version__}-cp311-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("torch/include/ATen/autocast_mode.h", header)
    return path


def test_the_table_of_the_installed_torch_is_what_its_header_says(tmp_path: Path, tool: ModuleType) -> None:
    release, lists = tool.read(wheel(tmp_path, HEADER.read_text()))
    assert tool.difference(release, lists) == {}
    registered = {
        op.removeprefix("aten::") for op in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    }
    assert {op for ops in lists.values() for op in ops} - registered <= {"_cudnn_rnn"}


def test_a_change_is_named_and_written(
    tmp_path: Path, tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for table in policy.FOLDER.glob("torch-*.json"):
        (tmp_path / table.name).write_text(table.read_text())
    monkeypatch.setattr(policy, "FOLDER", tmp_path)
    monkeypatch.setattr(tool, "HERE", tmp_path)
    changed = HEADER.read_text().replace("_(mv) ", "_(mv_and_more) ")
    assert changed != HEADER.read_text()
    made = str(wheel(tmp_path, changed, "9.3.0"))
    try:
        assert tool.main([made]) == 1
        told = capsys.readouterr().out
        assert "mv: lower in the table, not listed in the header" in told
        assert "mv_and_more: not listed in the table, lower in the header" in told
        assert tool.main(["--write", made]) == 0
        assert tool.main([made]) == 0
        assert policy.lists("cuda", "9.3").kind("mv_and_more") == "lower"
        assert policy.lists("xpu", "9.4").kind("mv_and_more") == "lower"
        assert policy.lists("mps", "9.3").kind("mv_and_more") is None
        assert policy.lists("cpu", "9.3").table == policy.lists("cpu", "9.2").table
        assert policy.lists("cuda", "9.2").kind("mv") == "lower"
    finally:
        policy._tables.cache_clear()
        policy._lists.cache_clear()


def test_what_is_no_wheel_of_torch_is_refused(tmp_path: Path, tool: ModuleType) -> None:
    with pytest.raises(ValueError, match="not a wheel of torch"):
        tool.read(tmp_path / "numpy-2.0.0-py3-none-any.whl")
    with pytest.raises(ValueError, match="has no AT_FORALL_LOWER_PRECISION_FP"):
        tool.read(wheel(tmp_path, "#pragma once\n"))
