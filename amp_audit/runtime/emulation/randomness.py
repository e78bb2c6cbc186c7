"""CUDA's random numbers: a stream of their own, beside the CPU's, seeded as CUDA's is.

The numbers are those of the CPU's generator, not of Philox: the same seed gives other values than on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch

_OWN: Any = torch._C.Generator
_generators: list[torch.Generator] = []


def generator() -> torch.Generator:
    """The generator that random operators on CUDA use when the program gives none."""
    if not _generators:
        _generators.append(_OWN())
    return _generators[0]


class Generator(_OWN):  # type: ignore[misc]
    """``torch.Generator`` that can be of CUDA."""

    def __new__(cls, device: Any = "cpu") -> Any:
        self = super().__new__(cls)
        self._place = torch.device(device)
        return self

    def __init__(self, device: Any = "cpu") -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:
        place: torch.device = self._place
        return place
