"""Where work is spent that low precision was meant to save."""

from __future__ import annotations

import pytest

from amp_audit import rulebook
from amp_audit.model import Severity
from amp_audit.trace import judge
from amp_audit.trace.schema import OpRow, Place, StepRecord, Trace

from ..report import samples

MATMUL = "aten.mm"
BOOK = rulebook.load()


def work(dtype: str, flops: int, line: int, *, phase: str = "forward", off: bool = False) -> OpRow:
    place = Place("/project/train.py", line)
    return OpRow(phase, MATMUL, (dtype, dtype), dtype, place, None, calls=1, flops=flops, off=off)


@pytest.mark.parametrize(
    ("stray", "kept", "told"),
    [
        (0, 500_000, [(Severity.INFO, 9)]),  # turned off on purpose
        (500_000, 0, [(Severity.WARNING, 8)]),
        (700_000, 500_000, [(Severity.WARNING, 8), (Severity.INFO, 9)]),
        (100_000, 100_000, []),
    ],
)
def test_what_a_region_turns_off_on_purpose_is_no_warning(
    stray: int, kept: int, told: list[tuple[Severity, int]]
) -> None:
    rows = [
        work("bfloat16", 700_000, 7),
        work("bfloat16", 700_000, 7, phase="backward"),
        work("float32", stray, 8),
        work("float32", kept, 9, off=True),
        work("float32", kept // 5, 9, phase="backward", off=True),
    ]
    trace = Trace(samples.header(), [StepRecord(1, recorded=True, ops=rows)])
    found = [one for one in judge.findings([trace], BOOK) if one.rule == "AMP601"]
    assert [(one.severity, one.location.line) for one in found if one.location] == told
