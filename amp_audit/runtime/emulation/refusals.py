"""Operators that CUDA refuses for half types, and the CPU does not.

From the data types that torch's own tests list for CUDA (``dtypesIfCUDA`` in ``torch.testing._internal``), torch 2.13;
a test compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

_NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """``kernel``: what CUDA's message calls the operator."""

    kernel: str
    dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)

    def check(self, dtypes: Iterable[torch.dtype]) -> None:
        """Raises RuntimeError as the CUDA kernel does, when one of ``dtypes`` has none."""
        for dtype in self.dtypes:
            if dtype in dtypes:
                raise NotImplementedError(f"\"{self.kernel}\" not implemented for '{_NAMES[dtype]}'")


_SCALER = Refusal("_amp_foreach_non_finite_check_and_unscale_cuda", (torch.bfloat16,))

REFUSALS = {
    "angle": Refusal("angle_cuda"),
    "histc": Refusal("histc"),
    "igamma": Refusal("igamma_cuda"),
    "igammac": Refusal("igammac_cuda"),
    "_amp_foreach_non_finite_check_and_unscale_": _SCALER,
}

_REFUSED_BY_BOTH = (
    *("linalg_", "_linalg_", "cholesky", "_cholesky", "geqrf", "orgqr", "ormqr", "triangular_solve", "lu_", "_lu_"),
    *("_cdist_", "_pdist_", "_ctc_loss", "special_", "polar", "complex", "_fft_"),
)


def refused_by_both(name: str) -> bool:
    """Whether CUDA lacks an operator in a half type in which the CPU lacks it; else the CPU's lack is made up for."""
    return name.startswith(_REFUSED_BY_BOTH)
