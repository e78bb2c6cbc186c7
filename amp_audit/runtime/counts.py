"""Counts of elements: what rounding made of some values, in as few and as cheap passes as their device allows.

Counting is done on bits as integers: comparisons, and anything that branches on a value, take a CPU several times as
long. On the CPU, where nothing is waited for, the smallest and largest magnitude often tell that there is nothing to
count. On a device everything is counted, and the counts stay there.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch.nn.functional import hardshrink

from amp_audit.runtime.dtypes import flush_threshold
from amp_audit.runtime.queue import at_once

_INTEGERS = {2: (torch.int16, 2**15 - 1), 4: (torch.int32, 2**31 - 1), 8: (torch.int64, 2**63 - 1)}
_MANTISSA = {torch.float16: 10, torch.bfloat16: 7}
"""Bits behind the exponent."""

SAMPLE = 2**12
"""Elements from which the error of a result is told: enough for a mean of squares, whatever the size of the model."""


def magnitude_bits(values: torch.Tensor) -> torch.Tensor:
    """The bits of floating-point values without their signs: integers of the same size and in the order of the
    magnitudes, in a tensor of their own.
    """
    integer, mask = _INTEGERS[values.dtype.itemsize]
    return values.view(integer) & mask


def compare(reference: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """What rounding to ``out``'s dtype (float16 or bfloat16) lost: int64 [nonzero, flushed, subnormal, zero], on the
    device.

    ``reference``: the values before rounding, same shape. ``flushed``: not zero in ``reference`` and at most the flush
    threshold, zero in ``out``; the threshold keeps sums out that cancel to zero. ``subnormal``: results with
    0 < |x| < finfo.tiny. ``zero``: zero in ``reference`` already.
    """
    before, after = reference.bool(), magnitude_bits(out)
    nonzero = torch.count_nonzero(before)
    none = torch.zeros_like(nonzero)
    smallest = _smallest(after)
    flushed = none if smallest > 0 else _flushed(reference, before, after, flush_threshold(out.dtype))
    subnormal = none if smallest >= 1 << _MANTISSA[out.dtype] else _subnormal(after, out.dtype)
    return torch.stack([nonzero, flushed, subnormal, before.numel() - nonzero])


def compare_cast(source: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``compare`` of a cast with its own source, and the finite elements that became inf: int64, five numbers."""
    after = magnitude_bits(out)
    finite = _largest(after) < _bits_of(math.inf, out.dtype)
    if finite and _smallest(after) >= 1 << _MANTISSA[out.dtype]:
        return torch.tensor([out.numel(), 0, 0, 0, 0])
    nonzero, left = torch.count_nonzero(source.bool()), torch.count_nonzero(after)
    overflowed = torch.zeros_like(nonzero)
    if not finite:
        overflowed = (after == _bits_of(math.inf, out.dtype)).sum() - source.isinf().sum()
    zero = source.numel() - nonzero
    return torch.stack([nonzero, nonzero - left, _subnormal(after, out.dtype), zero, overflowed])


def _smallest(bits: torch.Tensor) -> float:
    """On the CPU; where that would have to be waited for, as small as can be."""
    return at_once(bits.min()) if bits.device.type == "cpu" and bits.numel() else 0


def _largest(bits: torch.Tensor) -> float:
    """On the CPU; where that would have to be waited for, as large as can be."""
    return at_once(bits.max()) if bits.device.type == "cpu" and bits.numel() else math.inf


@cache
def _bits_of(value: float, dtype: torch.dtype) -> int:
    """The bits of a number that is not negative."""
    return int(torch.tensor(value, dtype=dtype).view(_INTEGERS[dtype.itemsize][0]))


def _flushed(reference: torch.Tensor, nonzero: torch.Tensor, after: torch.Tensor, threshold: float) -> torch.Tensor:
    """Of the elements that are not zero before, up to ``threshold``, those that are zero after."""
    above = magnitude_bits(reference).sub_(
        1 + _bits_of(threshold, reference.dtype)
    )  # below zero: at most the threshold
    small = above.bitwise_right_shift_(8 * reference.dtype.itemsize - 1).bool()
    return torch.count_nonzero(small.logical_and_(nonzero).greater_(after.bool()))


def _subnormal(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.count_nonzero(bits) - torch.count_nonzero(bits >> _MANTISSA[dtype])


def rounding(reference: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """How far ``out`` is from the values it should have been rounded from: float64 [squares of the errors, squares of
    the values, elements], on the device.

    Only elements count that are finite and not subnormal in ``out``'s dtype: there rounding to nearest is off by half
    of ``finfo.eps`` at most, relative to the value. Of a large result some 4,096 elements are taken, evenly spaced by
    an odd number, so that they are of all columns.
    """
    step = spacing(out)
    values, result = (item.reshape(-1)[::step].float() for item in (reference, out))
    normal = hardshrink(values, _below(torch.finfo(out.dtype).tiny))
    errors = (result - values).mul_(normal.sign().abs_())
    if values.device.type == "cpu":
        sums = [at_once(torch.dot(item, item)) for item in (errors.double(), normal.double())]
        if math.isfinite(sums[0]):
            return torch.tensor([*sums, at_once(torch.count_nonzero(normal))], dtype=torch.float64)
    counted = (normal != 0) & (errors.abs() < math.inf)
    kept = torch.where(counted, torch.stack([errors, normal]), 0.0).double()
    return torch.cat([kept.square().sum(1), counted.sum(0, keepdim=True)])


def spacing(out: torch.Tensor) -> int:
    """An odd number: every so manieth element of a result is enough to tell its error."""
    return out.numel() // SAMPLE | 1


@cache
def _below(value: float) -> float:
    """The float32 number before a positive one."""
    return torch.nextafter(torch.tensor(value), torch.tensor(0.0)).item()
