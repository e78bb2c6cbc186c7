"""Where work is spent that low precision was meant to save."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amp_audit import rulebook
from amp_audit.model import Severity
from amp_audit.trace import judge
from amp_audit.trace.schema import CastRow, Number, OpRow, Place, StepRecord, Trace

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


def placed(dtype: str, line: int, module: str, *, autocast: str | None = None, flops: int = 1_000_000) -> list[OpRow]:
    """Forward and backward of one product."""
    place = Place("/project/train.py", line, module=module)
    row = OpRow("forward", MATMUL, (dtype, dtype), dtype, place, autocast, calls=1, flops=flops)
    return [row, replace(row, phase="backward", flops=2 * flops)]


LOW = "bfloat16"
BOTH = [*placed(LOW, 7, "a", autocast=LOW), *placed(LOW, 8, "a.b", autocast=LOW)]


@pytest.mark.parametrize(
    ("rows", "severity"),
    [
        # a gradient penalty: the discriminator once more, in float32
        ([*placed(LOW, 7, "D.0", autocast=LOW), *placed("float32", 9, "D.0")], Severity.INFO),
        # a function of a module that runs both ways
        ([*BOTH, *placed("float32", 7, "a")], Severity.INFO),
        # another line of a module that has more: a part of its forward is outside of the region
        ([*BOTH, *placed("float32", 6, "a")], Severity.WARNING),
        # blocks of one class, half of them outside
        ([*placed(LOW, 7, "late.fc", autocast=LOW), *placed("float32", 7, "early.fc")], Severity.WARNING),
        # inside a region something makes it float32
        ([*placed(LOW, 7, "D.0", autocast=LOW), *placed("float32", 9, "D.0", autocast=LOW)], Severity.WARNING),
        # an actor that is trained in float32 beside its critic
        ([*placed(LOW, 7, "critic.0", autocast=LOW), *placed("float32", 9, "actor.0")], Severity.INFO),
        # "act" is another model than "actor"
        ([*placed(LOW, 7, "critic.0", autocast=LOW), *placed("float32", 9, "act.0")], Severity.WARNING),
    ],
)  # fmt: skip
def test_float32_that_shows_its_purpose_is_no_warning(rows: list[OpRow], severity: Severity) -> None:
    norms = [Number("grad_norm", subject=name, values={"norm": 1.0, "scale": 1.0}) for name in ("actor", "critic")]
    trace = Trace(samples.header(), [StepRecord(1, recorded=True, ops=rows, numbers=norms)])
    (found,) = (one for one in judge.findings([trace], BOOK) if one.rule == "AMP601")
    assert found.severity is severity
    assert ("on purpose as it seems" in found.message) is (severity is Severity.INFO)


@pytest.mark.parametrize(
    ("moved", "again", "told"),
    [
        (10_000, 20_000, Severity.WARNING),
        (3_000_000, 20_000, Severity.INFO),  # 120,000 bytes beside 3.5 MB: little would be saved
        (10_000, 9_000, None),  # too few
        (10_000, 0, None),
    ],
)
def test_weights_cast_again_count_by_what_that_costs(moved: int, again: int, told: Severity | None) -> None:
    place = Place("/project/train.py", 12, module="teacher")
    cast = CastRow("forward", "float32", "bfloat16", place, 2, 80_000, 160_000, again=again)
    product = OpRow("forward", MATMUL, (LOW, LOW), LOW, place, LOW, calls=1, bytes=moved, flops=200 * moved)
    trace = Trace(samples.header(), [StepRecord(1, recorded=True, ops=[product], casts=[cast])])
    found = [one for one in judge.findings([trace], BOOK) if one.rule == "AMP602"]
    assert [one.severity for one in found] == ([told] if told else [])
    for one in found:
        cost = {item.name: item.value for item in one.evidence}["cast_again_cost"]
        assert cost == pytest.approx(6 * again / (moved + 6 * 80_000))


def widened(amount: int, together: int, line: int, op: str = "aten.add.Tensor") -> Number:
    values = {"bytes": amount, "ops": 2, "together": together}
    return Number("widened", Place("/project/net.py", line), "pe", op, "forward", "bfloat16", values)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([[widened(200_000, 2_000_000, 7)]], [(7, 0.1)]),
        ([[widened(90_000, 2_000_000, 7)]], []),  # less than a twentieth
        ([[widened(90_000, 100_000, 7)]], []),  # too little to matter
        ([[widened(200_000, 2_000_000, 7)], [widened(100_000, 1_000_000, 7)]], [(7, 0.1)]),
        ([[widened(60_000, 2_000_000, 7), widened(60_000, 2_000_000, 7, "aten.mul.Tensor")]], [(7, 0.06)]),
        ([[widened(200_000, 2_000_000, 7), widened(300_000, 2_000_000, 8)]], [(7, 0.1), (8, 0.15)]),
        ([[]], []),
    ],
)
def test_what_tables_have_widened_is_a_share_of_what_the_forward_pass_writes(
    steps: list[list[Number]], told: list[tuple[int, float]]
) -> None:
    trace = Trace(samples.header(), [StepRecord(n, True, True, numbers=own) for n, own in enumerate(steps, 1)])
    found = [one for one in judge.findings([trace], BOOK) if one.rule == "AMP607"]
    assert [(one.location.line, one.evidence[0].value) for one in found if one.location] == told
    assert all(one.severity is Severity.WARNING for one in found)
