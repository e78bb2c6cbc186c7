"""Names and limits of floating-point types."""

from __future__ import annotations

from functools import cache

import torch

LOW = frozenset({torch.float16, torch.bfloat16})


@cache
def short(dtype: torch.dtype) -> str:
    """torch's name without the module: ``float16``."""
    return str(dtype).removeprefix("torch.")


@cache
def flush_threshold(dtype: torch.dtype) -> float:
    """The largest magnitude that rounds to zero: half the smallest subnormal (a tie goes to the even zero).

    2**-25 for float16, 2**-134 for bfloat16.
    """
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps / 2
