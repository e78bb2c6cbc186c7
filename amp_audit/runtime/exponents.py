"""How large values are, as counts by binary exponent: enough to say what any other loss scale would have lost.

Counts add up over tensors, steps and ranks; they stay on the device until they are read together.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from itertools import compress
from typing import Generic, TypeVar

import torch

K = TypeVar("K", bound=Hashable)

BINS = 256
"""Biased exponents of float32: 0 holds zeros (and what float32 itself keeps as subnormal), 255 inf and NaN."""

CHUNK = 2**22
"""Elements counted at once: what that takes besides, up to 17 bytes an element, must not grow with the model."""

BIAS = 127
_NAMES = {0: "zero", BINS - 1: "nonfinite"}
_LEAST = -25
"""The exponent of the smallest values of which some are not zero in float16."""


def histogram(values: torch.Tensor) -> torch.Tensor:
    """Counts by biased float32 exponent: int64, 256 elements, on the device of ``values``.

    Raises RuntimeError for tensors without strides.
    """
    flat = values.detach().reshape(-1)
    if flat.numel() <= CHUNK:
        return _histogram(flat)
    counts = torch.zeros(BINS, dtype=torch.int64, device=values.device)
    for part in torch.split(flat, CHUNK):
        counts += _histogram(part)
    return counts


def _histogram(values: torch.Tensor) -> torch.Tensor:
    if values.dtype is torch.bfloat16:
        exponents = values.view(torch.int16) >> 7
    else:
        exponents = values.float().view(torch.int32) >> 23
    exponents = exponents.to(torch.uint8)  # drops the sign, which was shifted in
    if values.device.type == "cpu":
        return torch.bincount(exponents, minlength=BINS)
    counts = torch.zeros(BINS, dtype=torch.int64, device=values.device)  # bincount would wait for the device
    return counts.scatter_add_(0, exponents.long(), torch.ones_like(exponents, dtype=torch.int64))


Histogram = Mapping[int, int]
"""Counts by biased exponent, those that are not zero."""


def named(counts: Histogram) -> dict[str, float | int | None]:
    """Counts as a Number's values: ``"-14"`` for 2**-14 <= \\|x\\| < 2**-13, ``zero`` and ``nonfinite``; none are 0."""
    return {_NAMES.get(exponent, str(exponent - BIAS)): count for exponent, count in counts.items()}


def total(histograms: Iterable[Histogram]) -> Histogram:
    """All counts together."""
    found: Counter[int] = Counter()
    for counts in histograms:
        found.update(counts)
    return found


def flushed_shares(counts: Histogram, scale: float) -> dict[int, float]:
    """Of values that hold a loss scale: the share that would be zero in float16 at 2**power, for powers from 0 to that
    of ``scale``.
    """
    known = {exponent - BIAS: count for exponent, count in counts.items() if exponent not in _NAMES}
    nonzero, power = sum(known.values()), math.frexp(scale)[1] - 1
    if not nonzero:
        return {}
    return {
        other: sum(count for exponent, count in known.items() if exponent - power + other < _LEAST) / nonzero
        for other in range(power + 1)
    }


class Exponents(Generic[K]):
    """Sums of histograms by key."""

    def __init__(self) -> None:
        self._sums: dict[tuple[K, torch.device], torch.Tensor] = {}

    def add(self, key: K, values: torch.Tensor) -> None:
        """Count ``values`` (floating, any shape). Does not wait for the device."""
        place = (key, values.device)
        known, counts = self._sums.get(place), histogram(values)
        # Not in place: what was made in inference mode cannot be written to outside of it.
        self._sums[place] = counts if known is None else known + counts

    def read(self) -> dict[K, Histogram]:
        """All sums, one wait a device."""
        by_device: dict[torch.device, list[K]] = defaultdict(list)
        for key, device in self._sums:
            by_device[device].append(key)
        found: dict[K, Histogram] = {}
        for device, keys in by_device.items():
            rows = torch.stack([self._sums[key, device] for key in keys]).tolist()
            for key, row in zip(keys, rows, strict=True):
                counts = dict(compress(enumerate(row), row))
                found[key] = total((found[key], counts)) if key in found else counts
        return found
