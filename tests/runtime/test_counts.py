"""Counts taken on bits, against the same counts taken number by number."""

from __future__ import annotations

import math

import pytest
import torch

from amp_audit.runtime.counts import SAMPLE, compare, compare_cast, rounding, together
from amp_audit.runtime.dtypes import flush_threshold

torch.set_num_threads(1)
HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize(("dtype", "power"), [(torch.float16, -25), (torch.bfloat16, -134)])
def test_the_flush_threshold_is_the_largest_number_that_becomes_zero(dtype: torch.dtype, power: int) -> None:
    threshold = flush_threshold(dtype)
    assert threshold == 2.0**power
    at = torch.tensor([threshold], dtype=torch.float64)
    assert at.to(dtype).item() == 0.0
    assert (at * (1 + 2**-10)).to(dtype).item() > 0.0


def counted(source: torch.Tensor, out: torch.Tensor) -> list[int]:
    """nonzero, flushed, subnormal, zero, overflowed; in Python's own numbers."""
    tiny = torch.finfo(out.dtype).tiny
    pairs = list(zip(source.flatten().tolist(), out.flatten().tolist(), strict=True))
    return [
        sum(x != 0 for x, _ in pairs),
        sum(x != 0 and y == 0 for x, y in pairs),
        sum(0 < abs(y) < tiny for _, y in pairs),
        sum(x == 0 for x, _ in pairs),
        sum(abs(y) == math.inf != abs(x) for x, y in pairs),
    ]


def spread(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of all sizes, and those at which something begins or ends."""
    torch.manual_seed(0)
    info = torch.finfo(dtype)
    edges = torch.tensor([info.tiny, info.tiny * info.eps, info.tiny * info.eps / 2, info.max], dtype=torch.float32)
    around = torch.stack([edges, edges.nextafter(torch.tensor(0.0)), edges.nextafter(torch.tensor(torch.inf))])
    random = torch.randn(64, 30) * 2.0 ** torch.randint(-40, 20, (64, 30))
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 65519.0, 65520.0])
    return torch.cat([around.flatten(), -around.flatten(), random.flatten(), special])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("source", [torch.float32, torch.float64])
def test_a_cast_is_counted_element_by_element(dtype: torch.dtype, source: torch.dtype) -> None:
    values = spread(dtype).to(source)
    expected = counted(values, values.to(dtype))
    assert compare_cast(values, values.to(dtype)) == expected
    assert all(expected) or dtype is torch.bfloat16


@pytest.mark.parametrize("cut", [slice(0, 4), slice(24, 400), slice(-7, -5), slice(-5, -4), slice(3, 3)])
def test_where_there_is_nothing_to_count_nothing_is_counted(cut: slice) -> None:
    values = spread(torch.float16)[cut]
    assert compare_cast(values, values.half()) == counted(values, values.half())
    ones = torch.ones(5, 4)
    assert compare_cast(ones, ones.half()) == [20, 0, 0, 0, 0]


@pytest.mark.parametrize("dtype", HALVES)
def test_an_operator_is_counted_element_by_element(dtype: torch.dtype) -> None:
    values = spread(dtype)
    for reference in (values, values.reshape(1, -1).expand(3, -1), values[:1500].reshape(50, 30).t()):
        out = reference.to(dtype)
        assert compare(reference, out) == counted(reference, out)[:4]


def test_a_half_itself_counts_as_what_it_is() -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    assert compare(every, every) == [2**16 - 2, 0, 2 * 1023, 2]


def test_a_sum_that_cancels_is_no_underflow() -> None:
    reference, out = torch.tensor([1e-3, 1e-9, 0.0]), torch.tensor([0.0, 0.0, 0.0]).half()
    assert compare(reference, out) == [2, 1, 0, 1]
    assert compare(torch.tensor([0.0, 1.0]), torch.tensor([1e-7, 0.0]).half()) == [1, 0, 1, 1]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("bad", [False, True])
def test_the_error_of_rounding_is_that_against_float64(dtype: torch.dtype, bad: bool) -> None:
    torch.manual_seed(0)
    tiny = torch.finfo(dtype).tiny
    values = torch.randn(50, 30) * 2.0 ** torch.randint(-16, 10, (50, 30))
    values[0, :4] = torch.tensor([tiny, tiny * (1 - 2**-23), tiny / 3, 0.0])
    if bad:
        values[1, :3] = torch.tensor([torch.inf, torch.nan, 7e4])
    out = (values * 1.001).to(dtype)
    errors, squares, elements = rounding(values, out)
    kept = [
        (x, y)
        for x, y in zip(values.flatten().tolist(), out.flatten().tolist(), strict=True)
        if abs(x) >= tiny and math.isfinite(x) and math.isfinite(y)
    ]
    assert elements == len(kept)
    assert errors == pytest.approx(math.fsum((y - x) ** 2 for x, y in kept), rel=1e-5)
    assert squares == pytest.approx(math.fsum(x * x for x, _ in kept), rel=1e-5)


def test_what_is_too_small_or_too_large_to_be_squared_in_float32_counts() -> None:
    for power in (-90, 0, 90):
        values = (torch.rand(500) + 1) * 2.0**power
        errors, squares, elements = rounding(values, values.bfloat16())
        assert elements == 500
        assert squares == pytest.approx(values.double().square().sum().item(), rel=1e-5)
        assert errors == pytest.approx((values.bfloat16().double() - values).square().sum().item(), rel=1e-5)


def test_counts_add_up_where_they_are() -> None:
    assert together([[1, 2, 3], [10, 20, 30]]) == [11, 22, 33]
    there = together([torch.tensor([1, 2]), torch.tensor([5, 6])])
    assert isinstance(there, torch.Tensor) and there.tolist() == [6, 8]


def test_the_error_of_a_large_result_is_told_from_a_part_of_it() -> None:
    torch.manual_seed(0)
    values = torch.randn(700, 256)
    errors, squares, elements = rounding(values, values.bfloat16())
    assert SAMPLE / 2 < elements < 2 * SAMPLE
    exact = (values.bfloat16().double() - values.double()).square().sum() / values.double().square().sum()
    assert errors / squares == pytest.approx(exact.item(), rel=0.1)
