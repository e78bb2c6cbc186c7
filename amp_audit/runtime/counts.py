"""Counts of elements: what rounding made of some values, in as few and as cheap passes as their device allows.

Counting is done on bits as integers: comparisons, and anything that branches on a value, take a CPU several times as
long. On the CPU, where nothing is waited for, the smallest and largest magnitude often tell that there is nothing to
count. On a device everything is counted, and the counts stay there.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache

import torch

from amp_audit.runtime.dtypes import flush_threshold
from amp_audit.runtime.queue import at_once, widest

_INTEGERS = {2: (torch.int16, 2**15 - 1), 4: (torch.int32, 2**31 - 1), 8: (torch.int64, 2**63 - 1)}
_LETTERS = {torch.float16: "e", torch.float32: "f", torch.float64: "d"}  # of ``struct``
_MANTISSA = {torch.float16: 10, torch.bfloat16: 7}
"""Bits behind the exponent."""

SAMPLE = 2**11
"""Elements from which the error of a result is told: enough for a mean of squares, whatever the size of the model."""


Counts = torch.Tensor | list[float]
"""Several counts: on a device one tensor, on the CPU numbers."""


def together(counts: Sequence[Counts]) -> Counts:
    """The sums of counts of one device."""
    if len(counts) == 1:
        return counts[0]
    if isinstance(counts[0], list):
        return [sum(column) for column in zip(*counts, strict=True)]
    return torch.stack([item for item in counts if isinstance(item, torch.Tensor)]).sum(0)


def magnitude_bits(values: torch.Tensor) -> torch.Tensor:
    """The bits of floating-point values without their signs: integers of the same size and in the order of the
    magnitudes, in a tensor of their own.
    """
    integer, mask = _INTEGERS[values.dtype.itemsize]
    return values.view(integer) & mask


def compare(reference: torch.Tensor, out: torch.Tensor) -> Counts:
    """What rounding to ``out``'s dtype (float16 or bfloat16) lost: [nonzero, flushed, subnormal, zero].

    ``reference``: the values before rounding, same shape. ``flushed``: not zero in ``reference`` and at most the flush
    threshold, zero in ``out``; the threshold keeps sums out that cancel to zero. ``subnormal``: results with
    0 < |x| < finfo.tiny. ``zero``: zero in ``reference`` already.
    """
    before, after = reference.bool(), magnitude_bits(out)
    nonzero = torch.count_nonzero(before)
    none = torch.zeros_like(nonzero)
    smallest, _ = _extremes(after)
    flushed = none if smallest > 0 else _flushed(reference, before, after, flush_threshold(out.dtype))
    subnormal = none if smallest >= 1 << _MANTISSA[out.dtype] else _subnormal(after, out.dtype)
    return _read(torch.stack([nonzero, flushed, subnormal, before.numel() - nonzero]))


def compare_cast(source: torch.Tensor, out: torch.Tensor) -> Counts:
    """``compare`` of a cast with its own source, and the finite elements that became inf: five numbers."""
    after = magnitude_bits(out)
    smallest, largest = _extremes(after)
    finite = largest < _bits_of(math.inf, out.dtype)
    if finite and smallest >= 1 << _MANTISSA[out.dtype]:
        return [out.numel(), 0, 0, 0, 0]
    nonzero, left = torch.count_nonzero(source.bool()), torch.count_nonzero(after)
    overflowed = torch.zeros_like(nonzero)
    if not finite:
        overflowed = (after == _bits_of(math.inf, out.dtype)).sum() - source.isinf().sum()
    zero = source.numel() - nonzero
    return _read(torch.stack([nonzero, nonzero - left, _subnormal(after, out.dtype), zero, overflowed]))


def _extremes(values: torch.Tensor) -> tuple[float, float]:
    """The smallest and the largest on the CPU; where these would have to be waited for, as far off as can be."""
    if values.device.type != "cpu" or not values.numel():
        return -math.inf, math.inf
    low, high = torch.aminmax(values)
    return at_once(low), at_once(high)


def _read(counts: torch.Tensor) -> Counts:
    return at_once(counts) if counts.device.type == "cpu" else counts


@cache
def _bits_of(value: float, dtype: torch.dtype) -> int:
    """The bits of a number that is not negative and that ``dtype`` has."""
    if dtype is torch.bfloat16:
        return _bits_of(value, torch.float32) >> 16
    return int.from_bytes(struct.pack(f"<{_LETTERS[dtype]}", value), "little")


def _flushed(reference: torch.Tensor, nonzero: torch.Tensor, after: torch.Tensor, threshold: float) -> torch.Tensor:
    """Of the elements that are not zero before, up to ``threshold``, those that are zero after."""
    # Below zero: at most the threshold.
    above = magnitude_bits(reference).sub_(1 + _bits_of(threshold, reference.dtype))
    small = above.bitwise_right_shift_(8 * reference.dtype.itemsize - 1).bool()
    return torch.count_nonzero(small.logical_and_(nonzero).greater_(after.bool()))


def _subnormal(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.count_nonzero(bits) - torch.count_nonzero(bits >> _MANTISSA[dtype])


def rounding(reference: torch.Tensor, out: torch.Tensor) -> Counts:
    """How far ``out`` is from the values it should have been rounded from: [squares of the errors, squares of the
    values, elements].

    Only elements count that are finite and not subnormal in ``out``'s dtype: there rounding to nearest is off by half
    of ``finfo.eps`` at most, relative to the value. Of a large result some 2,048 elements are taken, evenly spaced by
    an odd number, so that they are of all columns.
    """
    step = spacing(out)
    values, result = reference.reshape(-1), out.reshape(-1)
    if step > 1:
        values, result = values[::step], result[::step]
    tiny = torch.finfo(out.dtype).tiny
    low, high = _extremes(values.abs())
    if low >= tiny and _SQUARES < high < 1 / _SQUARES:  # all of them count, and float32 has their squares
        errors = result - values
        sums = [at_once(torch.dot(item, item)) for item in (errors, values)]
        if math.isfinite(sums[0]):
            return [*sums, values.numel()]
    errors = widest(result) - values
    counted = (values.abs() >= tiny) & (errors.abs() < math.inf)
    kept = torch.where(counted, torch.stack([errors, widest(values)]), 0.0)
    return _read(torch.cat([kept.square().sum(1), counted.sum(0, keepdim=True)]))


_SQUARES = 2.0**-50


def spacing(out: torch.Tensor) -> int:
    """An odd number: elements of a result that lie so far apart are enough to tell its error."""
    return out.numel() // SAMPLE | 1
