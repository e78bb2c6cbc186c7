"""TF32: tensor cores multiply float32 numbers of which they keep ten bits of mantissa, and add in float32.

A program allows it for products of matrices; for convolutions torch does. Other operators never work so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from amp_audit.chips import Chip

_PRODUCTS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("mm", "bmm", "linear"), (0, 1)),
    **dict.fromkeys(("addmm", "addmm_", "baddbmm", "baddbmm_", "addbmm", "addbmm_", "_addmm_activation"), (1, 2)),
}
_CONVOLUTIONS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("convolution", "_convolution"), (0, 1)),
    "convolution_backward": (0, 1, 2),
}
OPERANDS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    **{name: ("matmul", places) for name, places in _PRODUCTS.items()},
    **{name: ("conv", places) for name, places in _CONVOLUTIONS.items()},
}
"""Operators that may work so, with the setting that governs them and the positions of what is multiplied."""

_HALF, _KEPT, _EXPONENT = 1 << 12, -1 << 13, 0x7F800000
"""Half of the last bit that is kept, the bits that are kept, and the exponent of infinities and NaN."""
_chips: list[Chip] = []


def install(chip: Chip) -> None:
    """TF32 came with compute capability 8.0."""
    _chips[:] = [chip] if chip.major >= 8 else []


def allowed(setting: str) -> bool:
    """Whether the chip can and the program lets it: ``matmul`` or ``conv``."""
    core: Any = torch._C
    return bool(_chips) and core._get_fp32_precision_getter("cuda", setting) == "tf32"


def narrowed(args: tuple[Any, ...], places: tuple[int, ...]) -> tuple[Any, ...]:
    """Arguments of an operator with those at some positions as tensor cores take them."""
    return tuple(
        rounded(arg) if place in places and isinstance(arg, torch.Tensor) and arg.dtype is torch.float32 else arg
        for place, arg in enumerate(args)
    )


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """Float32 numbers to the nearest with ten bits of mantissa, halves away from zero (PTX's ``cvt.rna.tf32.f32``)."""
    bits = tensor.view(torch.int32)
    finite = (bits & _EXPONENT) != _EXPONENT
    return torch.where(finite, bits + _HALF & _KEPT, bits).view(torch.float32)
