"""Work that threads are handed inside a region: what is called a model runs there without autocast."""

from __future__ import annotations

import pytest

from tests.static.pathing import found, line

SOURCE = """
import torch
from concurrent.futures import ThreadPoolExecutor

def features(items, {name}):
    with ThreadPoolExecutor() as pool:
        with torch.autocast("cuda", dtype=torch.float16):
            return list(pool.map({name}, items))
"""


@pytest.mark.parametrize(
    ("name", "is_model"),
    [("G", True), ("D", True), ("Model", True), ("netG", False), ("g", False), ("d", False), ("f", False)],
)
def test_g_and_d_are_models_only_as_capitals(name: str, is_model: bool) -> None:
    source = SOURCE.format(name=name)
    assert found(source) == ({("AMP311", "main", line(source, "pool.map"))} if is_model else set())
