"""Traces written by hand, without torch: what the judge finds in them, where, and in which words."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from amp_audit import rulebook
from amp_audit.model import Confidence, Finding, Location, Severity, Subject, Verdict
from amp_audit.trace import judge
from amp_audit.trace.replay import event_of, where
from amp_audit.trace.schema import VERSION, CastRow, End, EventRow, Header, Number, Place, StepRecord, Trace

BOOK = rulebook.load()
PATH = "/work/train.py"


def header(rank: int = 0) -> Header:
    return Header(
        schema=VERSION,
        amp_audit="0",
        torch="2.13.0+cpu",
        python="3.11",
        device="cpu",
        policy="cpu",
        rank=rank,
        world_size=1,
        argv=(),
        cwd="/work",
        sample="all",
        steps=None,
        started="",
    )


def at(line: int) -> Place:
    return Place(PATH, line, 5, 20)


def trace(*steps: StepRecord, rank: int = 0, reason: str = "finished") -> Trace:
    numbered = [replace(step, step=number) for number, step in enumerate(steps, 1)]
    return Trace(header(rank), numbered, End(reason, 0, len(steps)))


def step(*events: EventRow, numbers: list[Number] | None = None, casts: list[CastRow] | None = None) -> StepRecord:
    return StepRecord(0, recorded=True, events=list(events), numbers=numbers or [], casts=casts or [])


START = step(
    EventRow("optimizer_new", at(1), optimizer=1, owners=(9,)),
    EventRow("scaler_new", at(2), scaler=2, enabled=True, site=f"{PATH}:2:5", names=("scaler",)),
)


def iteration(*middle: EventRow, scaled: bool = True) -> list[EventRow]:
    return [
        EventRow("zero_grad", at(3), optimizer=1, owners=(9,)),
        EventRow("scale", at(5), scaler=2),
        EventRow("backward", at(5), owners=(9,), scaled=scaled, dtype="float16", scaler=2 if scaled else None),
        *middle,
        EventRow("step", at(8), scaler=2, optimizer=1, owners=(9,), via="scaler"),
        EventRow("update", at(9), scaler=2),
    ]


CLIP = EventRow("clip", at(7), owners=(9,))
UNSCALE = EventRow("unscale", at(6), scaler=2, optimizer=1, owners=(9,))


def found(*traces: Trace) -> list[Finding]:
    return judge.findings(traces, BOOK)


def test_a_sound_run_is_silent() -> None:
    assert found(trace(START, *(step(*iteration(UNSCALE, CLIP)) for _ in range(5)))) == []


def test_a_clip_of_scaled_gradients_with_the_norm_it_saw() -> None:
    norm = Number("clip", place=at(7), values={"norm": 65536.0, "max_norm": 1.0, "scale": 32768.0})
    (finding,) = found(trace(START, step(*iteration(UNSCALE, CLIP)), *(step(*iteration(CLIP), numbers=[norm]),) * 2))
    assert (finding.rule, finding.location) == ("AMP202", Location(PATH, 7, 5, 7, 20))
    assert (finding.verdict, finding.confidence, finding.severity) == (Verdict.RUNTIME, Confidence.HIGH, Severity.ERROR)
    numbers = {item.name: item for item in finding.evidence if item.kind == "number"}
    assert numbers["steps"].steps == (3, 4)
    assert numbers["gradient_norm"].value == 65536.0
    assert "6.55e+04 with the loss scale 32768 in it, 2 without, clipped to 1" in numbers["gradient_norm"].text
    assert [item.line for item in finding.evidence if item.kind == "step"][-1] == 7


def test_one_hazard_is_one_finding_and_the_loser_is_related() -> None:
    plain = [
        EventRow("backward", at(5), owners=(9,), scaled=False, dtype="float16"),
        EventRow("scale", at(4), scaler=2),
        EventRow("step", at(8), scaler=2, optimizer=1, owners=(9,), via="scaler"),
        EventRow("update", at(9), scaler=2),
    ]
    (finding,) = found(trace(START, step(*plain)))
    assert finding.rule == "AMP107"
    assert [(item.location.line, item.message[:6]) for item in finding.related] == [(5, "AMP204")]


def test_a_run_that_ends_without_update_is_told_only_when_it_ended_by_itself() -> None:
    events = iteration()[:-1]
    assert [one.rule for one in found(trace(START, step(*events)))] == ["AMP205"]
    assert found(trace(START, step(*events), reason="stopped")) == []


def test_the_users_own_line_stands_for_a_library() -> None:
    place = Place("/env/site-packages/lib.py", 90, 1, 5, user_path=PATH, user_line=12)
    assert where(place) == Location(PATH, 12)
    assert where(at(3)) == Location(PATH, 3, 5, 3, 20)
    assert where(Place()) is None


def test_ranks_that_say_the_same_are_one_finding() -> None:
    steps = (START, step(*iteration(CLIP)))
    (finding,) = found(trace(*steps, rank=0), trace(*steps, rank=1))
    assert {item.rank for item in finding.evidence} == {0, 1}


def test_long_runs_are_judged_with_their_beginning_in_mind() -> None:
    bf16 = [replace(row, dtype="bfloat16") if row.kind == "backward" else row for row in iteration()]
    (finding,) = found(trace(START, *(step(*iteration()) for _ in range(600)), step(*bf16)))
    assert (finding.rule, finding.location and finding.location.line) == ("AMP213", 2)


def test_a_row_of_an_unknown_kind_is_passed_over() -> None:
    assert found(trace(START, step(EventRow("dance", at(1))))) == []
    with pytest.raises(ValueError, match="dance"):
        event_of(EventRow("dance", at(1)))


# Measures


def flush(line: int, op: str, nonzero: int, flushed: int, phase: str = "backward") -> Number:
    values = {"elements": nonzero, "nonzero": nonzero, "flushed": flushed, "subnormal": 0, "zero": 0}
    return Number("underflow", place=at(line), op=op, phase=phase, dtype="float16", values=values)


def test_gradient_underflow_stands_where_most_was_lost() -> None:
    cast = CastRow(
        "backward", "float32", "float16", at(5), nonzero=1000, flushed=900, subnormal=0, zero=0, overflowed=0
    )
    numbers = [
        flush(4, "aten.mm.default", 1000, 100),
        flush(3, "aten.mul.Tensor", 1000, 1000, phase="forward"),
        Number("gradient", subject="fc.weight", values={"nonzero": 100, "flushed": 10, "scale": 8.0}),
        Number("scale", subject="scaler", values={"before": 8.0, "after": 8.0, "skipped": 0}),
    ]
    (finding,) = found(trace(START, step(*iteration(), numbers=numbers, casts=[cast])))
    assert (finding.rule, finding.location and finding.location.line) == ("AMP511", 5)
    assert finding.message == (
        "90.0% of the nonzero gradient elements became zero in the cast to float16 (900 of 1,000), "
        "with a loss scale of 8"
    )
    assert [item.location.line for item in finding.related] == [4]
    assert "fc.weight: 10.0% of its gradient flushed" in [item.text for item in finding.evidence]


def test_a_layer_that_got_no_gradient_is_named_with_what_lost_it() -> None:
    starved = Number("starved", at(4), "aux.weight", "aten._to_copy.default", "backward", "float16", {"elements": 128})
    steps = [step(*iteration(), numbers=[flush(4, "aten.mm.default", 1000, 500), starved]) for _ in range(30)]
    (finding,) = found(trace(START, *steps))
    (item,) = (item for item in finding.evidence if item.name == "starved")
    assert item.text == "aux.weight: its gradient is zero, all of it was lost upstream by the cast to float16"
    assert (item.value, item.line, item.steps) == (128, 4, tuple(range(2, 32)))


def test_a_scalar_that_becomes_zero_counts_as_what_starves_for_it() -> None:
    """The loss itself underflows: one element is flushed, and with it every gradient."""
    starved = [
        Number("starved", at(4), name, "aten.mul.Tensor", "backward", "float16", {"elements": 40}) for name in "ab"
    ]
    steps = [step(*iteration(), numbers=[flush(4, "aten.mul.Tensor", 1, 1), *starved])]
    (finding,) = (one for one in judge.findings([trace(START, *steps)], BOOK) if one.rule == "AMP511")
    assert finding.message.endswith("(1 of 1), with a loss scale of 1; gradients of 80 elements are zero for it")
    # Python 3.10 knows no columns: others of the line are counted with it
    steps[0].numbers.append(flush(4, "aten.pow.Tensor_Scalar", 99, 0))
    (finding,) = (one for one in judge.findings([trace(START, *steps)], BOOK) if one.rule == "AMP511")
    assert "in mul (1 of 100)" in finding.message
    without = [step(*iteration(), numbers=[flush(4, "aten.mul.Tensor", 1, 1)])]
    assert all(one.rule != "AMP511" for one in judge.findings([trace(START, *without)], BOOK))


@pytest.mark.parametrize(("nonzero", "flushed"), [(10_000, 499), (100, 50), (0, 0)])
def test_little_underflow_is_no_finding(nonzero: int, flushed: int) -> None:
    assert found(trace(START, step(*iteration(), numbers=[flush(4, "aten.mm.default", nonzero, flushed)]))) == []


def test_underflow_that_depends_on_the_autocast_lists_says_so() -> None:
    op = "aten.native_layer_norm_backward.default"
    (finding,) = found(trace(START, step(*iteration(), numbers=[flush(4, op, 1000, 500)])))
    assert finding.note == "counted under the autocast lists of cpu; CUDA's treat layer_norm otherwise"
    (finding,) = found(trace(START, step(*iteration(), numbers=[flush(4, "aten.mm.default", 1000, 500)])))
    assert finding.note == ""


def test_underflow_without_a_scaler_is_the_missing_scalers_evidence() -> None:
    events = [
        EventRow("backward", at(5), owners=(9,), scaled=False, dtype="float16"),
        EventRow("step", at(8), optimizer=1, owners=(9,), via="plain"),
    ]
    start = StepRecord(0, recorded=True, events=START.events[:1])
    (finding,) = found(trace(start, step(*events, numbers=[flush(4, "aten.mm.default", 1000, 500)])))
    assert finding.rule == "AMP201"
    assert any(item.name == "flushed_share" and item.value == 0.5 for item in finding.evidence)


def nonfinite(phase: str, op: str | None = "aten.mul.Tensor", nan: int = 0) -> Number:
    values = {"inf": 12, "nan": nan, "elements": 64, "input_max": 3e4}
    return Number("nonfinite", place=at(4), op=op, phase=phase, dtype="float16", values=values)


SKIP = Number("scale", subject="scaler", values={"before": 16.0, "after": 8.0, "skipped": 1})


def test_an_overflow_of_the_forward_is_told_with_its_counts() -> None:
    (finding,) = found(trace(START, *(step(*iteration(), numbers=[nonfinite("forward"), SKIP]) for _ in range(2))))
    assert (finding.rule, finding.location and finding.location.line) == ("AMP512", 4)
    assert finding.message == "mul made 12 inf of 64 elements out of finite inputs (largest 3e+04)"
    assert finding.evidence[0].steps == (2, 3)


def test_the_search_for_a_loss_scale_is_no_overflow() -> None:
    assert found(trace(START, step(*iteration(), numbers=[nonfinite("backward"), SKIP]))) == []
    assert [f.rule for f in found(trace(START, step(*iteration(), numbers=[nonfinite("backward", nan=3), SKIP])))] == [
        "AMP512"
    ]
    assert [f.rule for f in found(trace(START, step(numbers=[nonfinite("backward")])))] == ["AMP512"]
    assert found(trace(START, step(numbers=[nonfinite("forward", op=None)]))) == []


def updates(name: str, total: int, lost: int, **more: int) -> Number:
    return Number(
        "lost_updates",
        subject=name,
        dtype="bfloat16",
        values={"elements": total, "updates": total, "lost": lost, **more},
    )


def test_lost_updates_name_the_worst_parameter() -> None:
    numbers = [updates("a", 100, 60), updates("b", 1000, 990), updates("c", 1000, 10)]
    (finding,) = found(trace(step(numbers=numbers), step(numbers=numbers)))
    assert (finding.rule, finding.subject, finding.location) == ("AMP514", Subject("parameter", "b"), None)
    assert finding.message.startswith("99.0% of the nonzero updates of b (bfloat16) left the weight unchanged; 2 of 3")
    assert [item.value for item in finding.evidence] == [0.99, 0.6]
    assert found(trace(step(numbers=[updates("c", 1000, 500), updates("d", 4, 4), updates("e", 0, 0)]))) == []


def test_a_guess_about_updates_is_called_one() -> None:
    (finding,) = found(trace(step(numbers=[updates("b", 1000, 990, by_gradient=1)])))
    assert finding.confidence is Confidence.MEDIUM
    assert "not one of torch's own" in finding.note


def timeline(*skips: bool, start: float = 65536.0, fixed: bool = False, interval: int = 2000) -> Trace:
    scale, good, steps = start, 0, []
    for skipped in skips:
        after = scale if fixed else scale / 2 if skipped else scale
        good = 0 if skipped else good + 1
        if good == interval:
            after, good = scale * 2, 0
        values = {"before": scale, "after": after, "skipped": int(skipped)}
        steps.append(step(numbers=[Number("scale", subject="scaler", values=values)]))
        scale = after
    return trace(START, *steps)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (timeline(*[True] * 30), "fell to"),
        (timeline(*[True] * 10, start=8.0), "fell to"),
        (timeline(*[True] * 6, fixed=True), "6 steps in a row were skipped and the loss scale stayed at 65536"),
        (timeline(*[False, True] * 20, start=2.0**60), "20 of 40 steps"),
        (timeline(*[True] * 12, *[False] * 40), None),
        (timeline(*[False] * 60, True, *[False] * 60), None),
        (timeline(*[*[False] * 5, True] * 10, interval=5), None),
        (timeline(True, False, True, *[False] * 20, True, start=2.0), None),
    ],
)
def test_when_a_loss_scale_is_unstable(made: Trace, words: str | None) -> None:
    findings = found(made)
    if words is None:
        assert findings == []
        return
    (finding,) = findings
    assert (finding.rule, finding.subject) == ("AMP515", Subject("scaler", "scaler"))
    assert words in finding.message
    assert [item.location.line for item in finding.related] == [2]


def test_nothing_recorded_is_nothing_found() -> None:
    assert found() == []
    assert found(Trace(header(), [], None)) == []


def test_judging_needs_neither_torch_nor_libcst() -> None:
    code = "import sys; import amp_audit.trace.judge; sys.exit(bool({'torch', 'libcst'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
