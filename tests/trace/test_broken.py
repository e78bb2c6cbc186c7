"""Losses and gradients that break on a step on which no operator was followed."""

from __future__ import annotations

import pytest

from amp_audit.model import Confidence, Finding, Severity
from amp_audit.trace import judge
from amp_audit.trace.schema import EventRow, Number, OpRow, Place, StepRecord
from tests.trace.test_judge import BOOK, PATH, at, trace


def loss(value: float | None) -> Number:
    return Number("loss", at(9), values={"value": value})


def norm(value: float | None) -> Number:
    return Number("grad_norm", subject="model", values={"norm": value, "scale": 1.0})


def spread(name: str, bad: int, phase: str = "output") -> Number:
    values = {"-1": 60, "nonfinite": bad} if bad else {"-1": 64}
    return Number("exponents", subject=name, phase=phase, dtype="bfloat16", values=values)


def row(module: str, line: int) -> OpRow:
    place = Place(PATH, line, 5, 20, module=module)
    return OpRow("forward", "aten.addmm", ("bfloat16",), "bfloat16", place, "bfloat16", 1, 64, 128)


def step(*numbers: Number, ops: tuple[OpRow, ...] = (), deep: bool = False) -> StepRecord:
    return StepRecord(0, recorded=True, deep=deep, numbers=list(numbers), ops=list(ops))


SCALED = Number("scale", values={"before": 65536.0, "after": 32768.0, "skipped": 1})
SOUND = step(loss(1.0), spread("enc", 0), spread("dec", 0), norm(2.0))
BROKEN = step(loss(None), spread("enc", 0), spread("dec", 4), spread("", 4), norm(None), ops=(row("dec", 5),))


def broken(*steps: StepRecord) -> list[Finding]:
    return [one for one in judge.findings([trace(*steps)], BOOK) if one.rule == "AMP512"]


def test_the_step_and_the_first_module_are_told() -> None:
    (finding,) = broken(SOUND, SOUND, BROKEN, BROKEN)
    assert finding.message == (
        "the loss is inf or NaN, in 2 steps, first in step 3; the first module to return some was dec, after enc"
    )
    assert finding.location is not None and finding.location.line == 5
    assert (finding.severity, finding.confidence) == (Severity.ERROR, Confidence.MEDIUM)
    assert finding.evidence[0].steps == (3, 4) and "--deep all" in finding.note


def test_without_counts_the_backward_is_where_it_shows() -> None:
    (finding,) = broken(SOUND, StepRecord(0, recorded=False, numbers=[loss(None)]))
    assert finding.message == "the loss is inf or NaN, in step 2"
    assert finding.location is not None and finding.location.line == 9


def test_a_gradient_breaks_where_the_loss_is_sound() -> None:
    first = step(loss(1.0), norm(None), spread("enc.weight", 0, "gradient"), spread("dec.weight", 2, "gradient"))
    (finding,) = broken(SOUND, first, BROKEN)
    assert (
        finding.message
        == "gradients are inf or NaN where the loss is finite, in 2 steps, first in step 2: those of dec.weight"
    )
    assert finding.location is not None and finding.location.line == 9


@pytest.mark.parametrize(
    "numbers",
    [
        (loss(1.0), norm(None), SCALED),
        (loss(1.0), norm(1.0), spread("scores", 8)),
        (Number("loss", at(9)), norm(1.0)),
        (loss(None), SCALED, Number("nonfinite", at(4), None, "aten.mm", "backward", "float16", {"inf": 3, "nan": 0})),
    ],
    ids=["a scaler looks for its scale", "a mask of -inf", "not known with the scale in it", "a penalty of scaled"],
)
def test_what_is_no_break(numbers: tuple[Number, ...]) -> None:
    assert broken(SOUND, step(*numbers), SOUND) == []


@pytest.mark.parametrize(("scaled", "count"), [(True, 0), (None, 0), (False, 1)])
def test_a_penalty_of_scaled_gradients_breaks_the_loss_while_the_scaler_searches(
    scaled: bool | None, count: int
) -> None:
    record = step(loss(None), SCALED)
    record.events.append(EventRow("autograd_grad", at(5), scaled=scaled))
    assert len(broken(SOUND, record)) == count


def test_a_scaler_that_is_never_updated_searches_all_the_same() -> None:
    record = step(loss(1.0), norm(None))
    record.events.append(EventRow("scale", at(8), scaler=2))
    assert broken(SOUND, record) == []


def test_a_known_operator_says_it_better() -> None:
    origin = Number(
        *("nonfinite", at(4), None, "aten.mm.default", "forward", "bfloat16"),
        {"inf": 3, "nan": 0, "elements": 64, "input_max": 2.0},
    )
    (finding,) = broken(SOUND, BROKEN, step(loss(None), origin, deep=True))
    assert finding.location is not None and finding.location.line == 4 and finding.message.startswith("mm made 3 inf")


def test_a_weight_that_held_some_is_named() -> None:
    """What the optimizer's latest step has broken shows in the next one."""
    leaf = Number("nonfinite", None, "enc.weight", None, "other", "float16", {"inf": 5, "nan": 0, "elements": 64})
    (finding,) = broken(SOUND, step(loss(None), leaf, deep=True))
    assert finding.message.endswith("in step 2; enc.weight held some when step 2 began")
    assert finding.note == "no operator made it: it is what the optimizer has left in the step before"


def test_what_came_in_with_the_data_is_said() -> None:
    leaf = Number("nonfinite", None, None, None, "other", "float32", {"inf": 0, "nan": 1, "elements": 64})
    (finding,) = broken(SOUND, step(loss(None), leaf, deep=True))
    assert finding.message.endswith("; what came in from outside (data, another rank) held some when step 2 began")
    assert finding.note == "no operator made it"
