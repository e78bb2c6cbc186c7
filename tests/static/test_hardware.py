"""AMP605: which tests of a capability let old GPUs through."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.static.found import lines


@pytest.mark.parametrize(
    ("test", "is_old"),
    [
        ("torch.cuda.get_device_capability()[0] >= 7", True),
        ("torch.cuda.get_device_capability(0)[0] > 6", True),
        ("torch.cuda.get_device_capability() >= (7, 5)", True),
        ("torch.cuda.get_device_capability()[0] > 7", False),
        ("torch.cuda.get_device_capability() >= (8, 0)", False),
        ("torch.cuda.get_device_capability()[1] >= 5", False),
        ("torch.cuda.get_device_capability()[0] == 7", False),
        ("torch.cuda.get_device_capability()[0] >= least", False),
        ("torch.cuda.get_device_capability()[0] >= 7 and torch.cuda.is_bf16_supported()", False),
        ("ok and torch.cuda.get_device_capability()[0] >= 7", True),
        ("ok or torch.cuda.get_device_capability()[0] >= 7", False),
    ],
)
def test_capabilities(tmp_path: Path, test: str, is_old: bool) -> None:
    source = f"import torch\ndtype = torch.bfloat16 if {test} else torch.float16\n"
    assert lines(tmp_path, "AMP605", source) == ([2] if is_old else [])
