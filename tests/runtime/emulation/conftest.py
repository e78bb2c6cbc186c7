"""What is emulated needs a torch that keeps its device guards."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
NEEDED = (2, 10)


@pytest.fixture(autouse=True)
def torch_can_be_emulated_on() -> None:
    """Of an older torch ``test_old_torch.py`` tests that it is refused."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < NEEDED:
        pytest.skip("emulation needs torch 2.10: an older one does not let go of CUDA's device guard")
