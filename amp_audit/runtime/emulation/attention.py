"""Fused attention of CUDA: which kernel is chosen, and the kernels.

The choice follows ``select_sdp_backend`` (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp) for dense tensors:
FlashAttention, then the memory-efficient kernel, then plain operators. Scores, softmax and sums are formed in float32
and the result is rounded once; CUDA's kernels also round the probabilities to half before the second product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from amp_audit.chips import Chip
from amp_audit.runtime.emulation.backend import LOW, special
from amp_audit.runtime.emulation.bridge import on_device, on_host
from amp_audit.runtime.emulation.randomness import generator

_FLASH_WIDTH = 256
"""The largest head dimension that FlashAttention takes."""
_ALIGNED = 8
_SUMS = 32
"""The memory-efficient kernel pads its sums of rows to a multiple of this."""
_ops: Any = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Attention:
    """``aten::scaled_dot_product_attention`` on CUDA tensors, for a chip."""

    chip: Chip

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        choice = self.choose(query, key, value, attn_mask, is_causal, enable_gqa)
        bias = _as_bias(attn_mask, query)
        if choice == "flash":
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if choice == "efficient":
            needs_grad = torch.is_grad_enabled() and any(item.requires_grad for item in (query, key, value))
            if bias is not None:
                bias = bias.expand(*query.shape[:-1], key.shape[-2])
            out: torch.Tensor = _ops._scaled_dot_product_efficient_attention(
                query, key, value, bias, needs_grad, dropout_p, is_causal, scale=scale
            )[0]
            return out
        if choice is None:
            raise RuntimeError("No available kernel. Aborting execution.")
        plain: torch.Tensor = _ops._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
        return plain

    def choose(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        is_causal: bool,
        grouped: bool,
    ) -> str | None:
        """``flash``, ``efficient`` or ``math``; None where the program has ruled out all that fit."""
        allowed: Any = torch.backends.cuda
        plain = "math" if allowed.math_sdp_enabled() else None
        if not _alike(query, key, value, grouped) or (is_causal and mask is not None):
            return plain
        flash = allowed.flash_sdp_enabled() or (plain is None and allowed.cudnn_sdp_enabled())
        if flash and mask is None and self._flash_fits(query, value):
            return "flash"
        if allowed.mem_efficient_sdp_enabled() and not grouped and self._efficient_fits(query, value):
            return "efficient"
        return plain

    def can_use(self, kernel: str, params: Any, debug: bool = False) -> bool:
        """Whether ``flash`` or ``efficient`` takes a call, given as ``torch.backends.cuda.SDPAParams``."""
        if not _alike(params.query, params.key, params.value, params.enable_gqa):
            return False
        if kernel == "flash":
            return params.attn_mask is None and self._flash_fits(params.query, params.value)
        return not params.enable_gqa and self._efficient_fits(params.query, params.value)

    def _flash_fits(self, query: torch.Tensor, value: torch.Tensor) -> bool:
        """FlashAttention is written for compute capability 8.0 and above."""
        width = query.shape[-1]
        return query.dtype in LOW and self.chip.major >= 8 and width <= _FLASH_WIDTH and width == value.shape[-1]

    def _efficient_fits(self, query: torch.Tensor, value: torch.Tensor) -> bool:
        if query.dtype not in (*LOW, torch.float32) or (query.dtype is torch.bfloat16 and not self.chip.bfloat16):
            return False
        half = query.dtype in LOW
        least = 4 if self.chip.major >= 8 else 1  # elements that one load takes (minimum_gemm_alignment)
        if half and self.chip.major >= 7:
            least = _ALIGNED
        return query.shape[-1] % least == 0 and value.shape[-1] % least == 0


def _alike(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grouped: bool) -> bool:
    """Whether a fused kernel takes tensors of these shapes, whatever their dtype."""
    tensors = (query, key, value)
    return (
        all(item.dim() == 4 and item.shape[-2] > 0 and item.stride(-1) == 1 for item in tensors)
        and len({item.dtype for item in tensors}) == 1
        and query.shape[-1] == key.shape[-1]
        and (grouped or query.shape[1] == key.shape[1] == value.shape[1])
    )


def _as_bias(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """A mask of bools as what is added to the scores."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """Heads whose width is no multiple of eight are padded, as CUDA does."""
    width = query.shape[-1]
    missing = -width % _ALIGNED
    if missing:
        query, key, value = (torch.nn.functional.pad(item, (0, missing)) for item in (query, key, value))
    out: torch.Tensor = _ops._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=1 / math.sqrt(width) if scale is None else scale
    )[0]
    return out[..., :width] if missing else out


@dataclass(frozen=True, slots=True)
class _Call:
    """One attention on the CPU: float32 tensors of shape (batch, heads, length, width)."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    bias: torch.Tensor | None
    dropout: float
    causal: bool
    scale: float
    seed: int

    @classmethod
    def of(
        cls, query: Any, key: Any, value: Any, bias: Any, dropout: float, causal: bool, scale: Any, seed: int
    ) -> Any:
        q, k, v = (on_host(item).float() for item in (query, key, value))
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = (item.repeat_interleave(groups, 1) for item in (k, v))
        wide = on_host(bias).float() if bias is not None else None
        return cls(q, k, v, wide, dropout, causal, scale if scale is not None else q.shape[-1] ** -0.5, seed)

    @property
    def plain(self) -> bool:
        return self.dropout == 0

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The result and the logarithm of the sum of exponentials of each row, both float32."""
        if self.plain and self.query.shape[-1] == self.value.shape[-1]:
            out, sums = _ops._scaled_dot_product_flash_attention_for_cpu(
                self.query, self.key, self.value, 0.0, self.causal, attn_mask=self.bias, scale=self.scale
            )
            return out, sums
        scores = self._scores()
        kept = scores.softmax(-1) * self._kept(scores)
        return kept @ self.value, scores.logsumexp(-1)

    def _scores(self) -> torch.Tensor:
        scores = self.query @ self.key.transpose(-1, -2) * self.scale
        if self.bias is not None:
            scores = scores + self.bias
        if self.causal:
            above = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(above, -math.inf)
        return scores

    def _kept(self, scores: torch.Tensor) -> torch.Tensor | float:
        """What dropout multiplies the probabilities by; the same in forward and backward, from the seed."""
        if self.dropout == 0:
            return 1.0
        own = torch._C.Generator()
        own.manual_seed(self.seed)
        keep = torch.empty(scores.shape).uniform_(generator=own) >= self.dropout
        return keep / (1 - self.dropout)

    def backward(self, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The gradients of query, key, value and bias, float32."""
        scores = self._scores()
        probabilities = scores.softmax(-1)
        kept = self._kept(scores)
        of_value = (probabilities * kept).transpose(-1, -2) @ gradient
        of_kept = gradient @ self.value.transpose(-1, -2) * kept
        of_scores = probabilities * (of_kept - (of_kept * probabilities).sum(-1, keepdim=True))
        of_query = of_scores @ self.key * self.scale
        of_key = of_scores.transpose(-1, -2) @ self.query * self.scale
        return of_query, of_key, of_value, of_scores


def _seed() -> int:
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator()).item())


def _ungrouped(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The gradient of heads that several queries share, laid out as they are."""
    batch, heads, *rest = like.shape
    own = gradient.view(batch, heads, -1, *rest).sum(2) if gradient.shape[1] > heads else gradient
    return on_device(torch.empty_like(on_host(like)).copy_(own))


@special("_scaled_dot_product_flash_attention")
def _flash_forward(
    op: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    seed = _seed() if dropout_p else 0
    out, sums = _Call.of(query, key, value, None, dropout_p, is_causal, scale, seed).forward()
    nothing = on_device(torch.empty(0, dtype=query.dtype))
    state = on_device(torch.tensor([seed, 0], dtype=torch.uint64))
    unused = on_device(torch.empty((), dtype=torch.uint64))
    laid_out = torch.empty_like(on_host(query)).copy_(out)  # as CUDA's kernel lays it out
    return (
        *(on_device(laid_out), on_device(sums), None, None),
        *(query.shape[-2], key.shape[-2], state, unused, nothing),
    )


def _like_transposed(out: torch.Tensor) -> torch.Tensor:
    """The memory-efficient kernel lays results out as (batch, length, heads, width)."""
    return out.transpose(1, 2).contiguous().transpose(1, 2)


@special("_scaled_dot_product_flash_attention_backward")
def _flash_backward(
    op: Any,
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    seed = int(on_host(philox_seed)[0])
    call = _Call.of(query, key, value, None, dropout_p, is_causal, scale, seed)
    if call.plain:
        gradients = _ops._scaled_dot_product_flash_attention_for_cpu_backward(
            *(on_host(grad_out).float(), call.query, call.key, call.value, on_host(out).float(), on_host(logsumexp)),
            *(0.0, is_causal),
            scale=call.scale,
        )
    else:
        gradients = call.backward(on_host(grad_out).float())
    of_query, of_key, of_value = gradients[:3]
    return _ungrouped(of_query, query), _ungrouped(of_key, key), _ungrouped(of_value, value)


@special("_scaled_dot_product_efficient_attention")
def _efficient_forward(
    op: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    seed = _seed() if dropout_p else 0
    out, sums = _Call.of(query, key, value, attn_bias, dropout_p, is_causal, scale, seed).forward()
    states = (on_device(torch.tensor(seed)), on_device(torch.tensor(0)))
    length = -(-sums.shape[-1] // _SUMS) * _SUMS if compute_log_sumexp else 0
    padded = torch.full((*sums.shape[:2], length), math.inf)
    padded[..., : sums.shape[-1]].copy_(sums[..., :length])
    return on_device(_like_transposed(out.to(query.dtype))), on_device(padded), *states


@special("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(
    op: Any,
    grad_out_: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    dropout_p: float,
    grad_input_mask: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor | None, ...]:
    call = _Call.of(query, key, value, attn_bias, dropout_p, is_causal, scale, int(on_host(philox_seed)))
    of_query, of_key, of_value, of_bias = call.backward(on_host(grad_out_).float())
    found = (_ungrouped(of_query, query), _ungrouped(of_key, key), _ungrouped(of_value, value))
    bias = on_device(of_bias.to(attn_bias.dtype)) if attn_bias is not None and grad_input_mask[3] else None
    return *found, bias
