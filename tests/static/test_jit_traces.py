"""Models that are traced in a region: what is told of them is what torch does."""

from __future__ import annotations

import itertools

import pytest

from tests.static.walked import ids

pytest.importorskip("torch")

PROGRAM = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
x = torch.randn(2, 4)
{prepare}
with {mode}torch.autocast("cpu", dtype=torch.bfloat16{cache}):
    {before}
    traced = torch.jit.trace(model, x{check})
"""
PREPARE = ["pass", "model.requires_grad_(False)", "model.bfloat16(); x = x.bfloat16()"]
MODES = ["", "torch.no_grad(), ", "torch.inference_mode(), "]
CACHES = ["", ", cache_enabled=False", ", enabled=False"]
CASES = [*itertools.product(PREPARE, MODES, CACHES, ["pass", "model(x)"], ["", ", check_trace=False"])]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("prepare", "mode", "cache", "before", "check"), CASES)
def test_what_is_told_of_a_trace_is_what_torch_raises(
    prepare: str, mode: str, cache: str, before: str, check: str
) -> None:
    source = PROGRAM.format(prepare=prepare, mode=mode, cache=cache, before=before, check=check)
    try:
        exec(compile(source, "program", "exec"), {})
    except RuntimeError as error:
        raises = "requires grad as a constant" in str(error)
        if not raises:  # what older releases make of a second trace in inference mode
            pytest.skip(str(error).partition("\n")[0])
    else:
        raises = False
    assert ("AMP318" in ids(source)) is raises


def test_a_model_from_elsewhere_and_a_trace_in_a_method() -> None:
    source = """
        import torch


        class Exporter:
            def __init__(self, model):
                self.model = model.eval()

            def export(self, x, path):
                with torch.autocast("cuda", dtype=torch.float16{cache}):
                    torch.jit.save(torch.jit.trace(self.model, x), path)
        """
    assert "AMP318" in ids(source.format(cache=""))
    assert "AMP318" not in ids(source.format(cache=", cache_enabled=False"))


def test_other_things_called_trace_trace_nothing() -> None:
    source = """
        import torch


        def spread(model, x):
            with torch.autocast("cuda", dtype=torch.float16):
                return torch.trace(model(x))
        """
    assert ids(source) == set()
