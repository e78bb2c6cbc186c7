"""What magnitudes say of loss scales, and of which steps they say nothing."""

from __future__ import annotations

from amp_audit.report.summary import summarize
from amp_audit.trace.ranges import magnitudes
from amp_audit.trace.schema import Number, StepRecord, Trace

from ..report import samples


def gradients(step: int, scale: float, *numbers: Number) -> StepRecord:
    """Gradients of 2**-10 without their loss scale, 1,000 of them."""
    exponent = (scale * 2.0**-10).hex().partition("p")[2].lstrip("+")
    spread = Number("exponents", subject="", phase="backward", values={exponent: 1000, "scale": scale})
    return StepRecord(step, recorded=True, deep=True, numbers=[spread, *numbers])


def nonfinite(phase: str, *, nan: int = 0) -> Number:
    return Number("nonfinite", op="aten.sum", phase=phase, values={"inf": 3, "nan": nan, "elements": 9})


def loss(value: float | None) -> Number:
    return Number("loss", values={"value": value, "scale": 16.0})


def test_steps_that_no_loss_scale_would_have_saved_recommend_none() -> None:
    bad = [
        gradients(1, 16.0, nonfinite("forward")),
        gradients(2, 8.0, nonfinite("backward", nan=2)),
        gradients(3, 4.0, loss(None)),
    ]
    trace = Trace(samples.header(), bad)
    found = magnitudes(trace)
    assert (found.counts, found.steps, found.broken) == ({}, [], [1, 2, 3])
    window = summarize([trace]).window
    assert window is not None and (window.low, window.high, window.broken) == (None, None, (1, 2, 3))


def test_the_search_for_a_scale_and_good_steps_do() -> None:
    steps = [
        gradients(1, 2.0**30, nonfinite("backward"), loss(0.5)),  # too large for that scale, and for no smaller one
        gradients(2, 16.0, nonfinite("forward")),
        gradients(3, 16.0, loss(0.5)),
    ]
    found = magnitudes(Trace(samples.header(), steps))
    assert (found.counts, found.steps, found.broken) == ({-10: 2000}, [1, 3], [2])
    window = summarize([Trace(samples.header(), steps)]).window
    assert window is not None and (window.low, window.high) == (2.0**-15, 2.0**25)
