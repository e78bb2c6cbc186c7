"""Ranks that do not take the same steps, from traces made by hand and from two real ranks."""

from __future__ import annotations

from dataclasses import replace

from amp_audit import rulebook
from amp_audit.model import Severity
from amp_audit.trace import judge
from amp_audit.trace.schema import Number, StepRecord, Trace
from tests.report import samples

BOOK = rulebook.load()


def rank(number: int, *scales: tuple[float, int], **changes: object) -> Trace:
    steps = [
        StepRecord(at, True, numbers=[Number("scale", subject="scaler", values={"before": scale, "skipped": skipped})])
        for at, (scale, skipped) in enumerate(scales, 1)
    ]
    header = replace(samples.header(), rank=number, world_size=2, **changes)  # type: ignore[arg-type]
    return Trace(header, steps)


def told(*traces: Trace) -> list[tuple[str, str, tuple[int | None, ...], list[str]]]:
    return [
        (one.rule, one.subject.name, tuple(item.rank for item in one.evidence), [item.text for item in one.evidence])
        for one in judge.findings(traces, BOOK)
        if one.rule == "AMP708" and one.subject is not None
    ]


def test_ranks_that_agree_are_no_finding() -> None:
    both = [(8.0, 0), (8.0, 1), (4.0, 0)]
    assert told(rank(0, *both), rank(1, *both)) == []


def test_a_skip_of_one_rank_is_named_with_its_step() -> None:
    one, two = rank(0, (8.0, 0), (8.0, 0), (8.0, 0)), rank(1, (8.0, 0), (8.0, 1), (4.0, 0))
    ((_, ranks, of, texts),) = told(two, one)
    assert ranks == "1" and of == (1, 1)
    assert texts == ["rank 1 skipped step 2 of scaler", "step 3: 8.0 on rank 0, 4.0 on rank 1"]
    (found,) = [one for one in judge.findings([one, two], BOOK) if one.rule == "AMP708"]
    assert found.severity is Severity.ERROR and "rank 1 skipped step 2" in found.message


def test_the_lowest_rank_can_be_the_one_that_skips() -> None:
    ((_, _, _, texts),) = told(rank(0, (8.0, 1)), rank(1, (8.0, 0)))
    assert texts == ["rank 0 skipped step 1 of scaler"]


def test_programs_that_belong_to_different_jobs_may_differ() -> None:
    assert told(rank(0, (8.0, 0)), rank(1, (4.0, 0), argv=("other.py",))) == []
    assert told(rank(0, (8.0, 0), (8.0, 0)), rank(1, (8.0, 0))) == []  # one was killed a step earlier
