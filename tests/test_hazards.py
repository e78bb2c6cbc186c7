"""The rules' event detectors on sequences of events: which rule, at which event, in both halves alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from amp_audit import rulebook
from amp_audit.events import Event, Kind, Via
from amp_audit.hazards import Happened, Hazard, Trail, Watch, bounds, phrase, settle
from amp_audit.state import State

BOOK = rulebook.load()
FP16, BF16 = "float16", "bfloat16"

# Short names: one optimizer "o" of one model "m", one scaler "s".
SCALER = Event(Kind.SCALER_NEW, scaler="s", site="here", enabled=True)
AGAIN = Event(Kind.SCALER_NEW, scaler="t", site="here", enabled=True)
OPTIMIZER = Event(Kind.OPTIMIZER_NEW, optimizer="o", owners=("m",))
OTHER = Event(Kind.OPTIMIZER_NEW, optimizer="p", owners=("n",))
SCALE = Event(Kind.SCALE, scaler="s")
BACK = Event(Kind.BACKWARD, owners=("m",), scaled=True, scaler="s", dtype=FP16)
BACK_BF16 = Event(Kind.BACKWARD, owners=("m",), scaled=True, scaler="s", dtype=BF16)
BOTH = Event(Kind.BACKWARD, owners=("m", "n"), scaled=True, scaler="s", dtype=FP16)
PLAIN = Event(Kind.BACKWARD, owners=("m",), scaled=False, dtype=FP16)
PLAIN_BF16 = Event(Kind.BACKWARD, owners=("m",), scaled=False, dtype=BF16)
UNSURE = Event(Kind.BACKWARD, owners=("m",), scaled=None, dtype=FP16)
LEAF = Event(Kind.BACKWARD, scaled=True, scaler="s", detached=True)
UNSCALE = Event(Kind.UNSCALE, scaler="s", optimizer="o", owners=("m",))
CLIP = Event(Kind.CLIP, owners=("m",))
STEP = Event(Kind.STEP, scaler="s", optimizer="o", owners=("m",), via=Via.SCALER)
STEP_OTHER = Event(Kind.STEP, scaler="s", optimizer="p", owners=("n",), via=Via.SCALER)
STEP_AGAIN = Event(Kind.STEP, scaler="t", optimizer="o", owners=("m",), via=Via.SCALER)
SCALE_AGAIN = Event(Kind.SCALE, scaler="t")
BACK_AGAIN = Event(Kind.BACKWARD, owners=("m",), scaled=True, scaler="t", dtype=FP16)
STEP_PLAIN = Event(Kind.STEP, optimizer="o", owners=("m",), via=Via.PLAIN)
STEP_FRAMEWORK = Event(Kind.STEP, optimizer="o", owners=("m",), via=Via.FRAMEWORK)
UPDATE = Event(Kind.UPDATE, scaler="s")
GIVEN = Event(Kind.UPDATE, scaler="s", given=True)
ZERO = Event(Kind.ZERO_GRAD, optimizer="o", owners=("m",))
END = Event(Kind.ITERATION_END)
EARLY = Event(Kind.ITERATION_END, early=True)
ENTER = Event(Kind.REGION_ENTER, region=1, device="cuda", dtype=FP16, enabled=True)
ENTER_OFF = Event(Kind.REGION_ENTER, region=1, device="cuda", dtype=FP16, enabled=False)
ENTER_NO_CACHE = Event(Kind.REGION_ENTER, region=1, device="cuda", dtype=FP16, enabled=True, cache=False)
NESTED = Event(Kind.REGION_ENTER, region=2, device="cuda", dtype=FP16, enabled=True)
NESTED_BF16 = Event(Kind.REGION_ENTER, region=2, device="cuda", dtype=BF16, enabled=True)
EXIT = Event(Kind.REGION_EXIT)
FORWARD = Event(Kind.FORWARD, owners=("m",))
CLEAR_CACHE = Event(Kind.CACHE_CLEAR)
SAVE = Event(Kind.SAVE, contents=frozenset({"model", "optimizer"}))
SAVE_ALL = Event(Kind.SAVE, contents=frozenset({"model", "optimizer", "scaler"}))
SAVE_SCALER = Event(Kind.SAVE, contents=frozenset({"scaler"}))
SAVE_WEIGHTS = Event(Kind.SAVE, contents=frozenset({"model"}))

START = [SCALER, OPTIMIZER]
ROUND = [SCALE, BACK, STEP, UPDATE, ZERO]

SEQUENCES: list[tuple[str, list[Event], list[tuple[str, int]]]] = [
    ("sound", [*START, *ROUND, *ROUND], []),
    ("sound with clip", [*START, SCALE, BACK, UNSCALE, CLIP, STEP, UPDATE, ZERO] * 2, []),
    ("no scaler", [OPTIMIZER, PLAIN, STEP_PLAIN], [("AMP201", 1)]),
    ("bfloat16 needs none", [OPTIMIZER, PLAIN_BF16, STEP_PLAIN], []),
    ("a framework scales", [OPTIMIZER, PLAIN, STEP_FRAMEWORK], []),
    ("gradients of an input only", [OPTIMIZER, PLAIN], []),
    ("hand-made scaling", [OPTIMIZER, UNSURE, STEP_PLAIN], []),
    ("clip before unscale", [*START, SCALE, BACK, CLIP, STEP, UPDATE], [("AMP202", 4)]),
    ("plain step", [*START, SCALE, BACK, STEP_PLAIN], [("AMP203", 4)]),
    ("step twice", [*START, SCALE, BACK, STEP, STEP_PLAIN, UPDATE], [("AMP203", 5)]),
    ("own inf check", [*START, SCALE, BACK, UNSCALE, STEP_PLAIN, UPDATE], []),
    ("second loss unscaled", [*START, SCALE, BACK, PLAIN, STEP, UPDATE], [("AMP204", 4)]),
    ("first loss unscaled", [*START, PLAIN, SCALE, BACK, STEP, UPDATE], [("AMP204", 2)]),
    ("penalty on unscaled gradients", [*START, SCALE, BACK, UNSCALE, PLAIN, STEP, UPDATE], []),
    ("late epochs unscaled", [*START, *ROUND, PLAIN, STEP, UPDATE], [("AMP204", 7)]),
    ("a loss without graph", [*START, SCALE, LEAF], [("AMP204", 3)]),
    ("no update", [*START, SCALE, BACK, STEP, ZERO, SCALE, BACK, STEP], [("AMP205", 8)]),
    ("no update, clip", [*START, SCALE, BACK, UNSCALE, STEP, ZERO, SCALE, BACK, UNSCALE], [("AMP205", 5)]),
    ("no update, one round", [*START, SCALE, BACK, STEP, END], [("AMP205", 4)]),
    ("update per micro-batch", [*START, SCALE, BACK, UPDATE], [("AMP206", 4)]),
    ("given scale", [*START, SCALE, BACK, STEP, GIVEN, GIVEN], []),
    (
        "update between optimizers",
        [*START, OTHER, SCALE, BOTH, STEP, UPDATE, STEP_OTHER, UPDATE],
        [("AMP206", 6)],
    ),
    ("update before the step", [*START, SCALE, BACK, UNSCALE, UPDATE, STEP], [("AMP206", 5)]),
    ("unscale twice", [*START, SCALE, BACK, UNSCALE, UNSCALE, STEP, UPDATE], [("AMP207", 5)]),
    ("unscale after step", [*START, SCALE, BACK, STEP, UNSCALE, UPDATE], [("AMP207", 5)]),
    ("unscale per micro-batch", [*START, *ROUND, SCALE, BACK, UNSCALE, END, SCALE, BACK, UNSCALE], [("AMP207", 13)]),
    (
        "unscale and update per micro-batch",
        [*START, SCALE, BACK, UNSCALE, UPDATE, END, SCALE, BACK, UNSCALE],
        [("AMP207", 9)],
    ),
    ("never scaled", [*START, PLAIN, STEP, UPDATE], [("AMP209", 3)]),
    ("scaled loss dropped", [*START, SCALE, PLAIN, STEP, UPDATE], [("AMP107", 2)]),
    ("clip after step", [*START, SCALE, BACK, STEP, CLIP, UPDATE], [("AMP211", 5)]),
    ("clip before backward", [*START, CLIP, SCALE, BACK, STEP, UPDATE], [("AMP211", 2)]),
    ("clear before step", [*START, SCALE, BACK, ZERO, STEP], [("AMP212", 4)]),
    ("clear what another backward left", [*START, SCALE, BACK, ZERO, SCALE, BACK, STEP, UPDATE], []),
    ("bfloat16 scaled", [*START, SCALE, BACK_BF16, STEP, UPDATE], [("AMP213", 0)]),
    ("scaler rebuilt", [*START, *ROUND, AGAIN, SCALE_AGAIN, BACK_AGAIN, STEP_AGAIN], [("AMP214", 7)]),
    (
        "loop in one region",
        [OPTIMIZER, ENTER, FORWARD, EXIT, ENTER, FORWARD, STEP_FRAMEWORK, FORWARD],
        [("AMP301", 4)],
    ),
    ("loop, inner region", [OPTIMIZER, ENTER, NESTED, FORWARD, STEP_FRAMEWORK, FORWARD], [("AMP301", 1)]),
    ("loop, cache cleared", [OPTIMIZER, ENTER, FORWARD, STEP_FRAMEWORK, CLEAR_CACHE, FORWARD], [("AMP303", 3)]),
    ("loop, cache off", [OPTIMIZER, ENTER_NO_CACHE, FORWARD, STEP_FRAMEWORK, FORWARD], [("AMP303", 3)]),
    ("region off", [OPTIMIZER, ENTER_OFF, FORWARD, STEP_FRAMEWORK, FORWARD], []),
    ("backward in region", [*START, ENTER, FORWARD, SCALE, BACK, EXIT, STEP, UPDATE], [("AMP302", 5)]),
    ("step in region", [*START, ENTER, FORWARD, SCALE, BACK, STEP, EXIT, UPDATE], [("AMP302", 5), ("AMP303", 6)]),
    ("two dtypes", [OPTIMIZER, ENTER, NESTED_BF16], [("AMP306", 2)]),
    ("checkpoint without scaler", [*START, *ROUND, SAVE], [("AMP701", 7)]),
    ("best weights apart", [*START, *ROUND, SAVE_WEIGHTS, SAVE_ALL], []),
    ("another checkpoint has it", [*START, *ROUND, SAVE, SAVE_ALL], [("AMP701", 7)]),
    ("saved in a file of its own", [*START, *ROUND, SAVE, SAVE_SCALER], []),
]
ONE_HALF_ONLY = {"AMP107": "runtime", "AMP208": "static", "AMP701": "runtime"}


def hazards(events: list[Event], half: str, known: Iterable[str] = ()) -> list[tuple[Hazard[int], list[Hazard[int]]]]:
    watch: Watch[int] = Watch(BOOK, half)
    state, trail, found = State(), None, []
    for place, event in enumerate(events):
        state, trail, new = watch.take(state, event, place, trail)
        found += new
    happened = Happened(events)
    happened.know(known)
    return settle(found, happened)


def seen_by(half: str, expected: list[tuple[str, int]]) -> bool:
    """Whether a half sees what the sequence shows: a run has no ``continue``, the code no dropped loss."""
    return all(ONE_HALF_ONLY.get(rule, half) == half for rule, _ in expected)


CASES = [
    pytest.param(events, expected, half, id=f"{name}-{half}")
    for name, events, expected in SEQUENCES
    for half in ("static", "runtime")
    if seen_by(half, expected)
]


@pytest.mark.parametrize(("events", "expected", "half"), CASES)
def test_sequence(events: list[Event], expected: list[tuple[str, int]], half: str) -> None:
    assert [(one.rule.id, one.place) for one, _ in hazards(events, half)] == expected


def test_leaving_early_is_told_where_it_happens_in_the_code() -> None:
    events = [*START, *ROUND, SCALE, BACK, UNSCALE, EARLY, SCALE, BACK, UNSCALE]
    ((one, losers),) = hazards(events, "static")
    assert (one.rule.id, one.place) == ("AMP208", 10)
    assert all(loser.rule.id in ("AMP206", "AMP207") for loser in losers)
    events.remove(EARLY)  # a run does not tell of it
    assert [(one.rule.id, one.place) for one, _ in hazards(events, "runtime")] == [("AMP207", 12)]


def test_the_loser_is_kept_with_the_winner() -> None:
    stale = [*START, ENTER, FORWARD, SCALE, BACK, STEP, UPDATE, FORWARD, EXIT]
    losers = {one.rule.id: [loser.rule.id for loser in gave_way] for one, gave_way in hazards(stale, "runtime")}
    assert losers == {"AMP301": ["AMP303"], "AMP302": []}


def test_a_hazard_is_told_with_what_led_to_it() -> None:
    ((one, _),) = hazards([*START, SCALE, BACK, CLIP, STEP, UPDATE], "runtime")
    assert one.steps == (
        (2, "the loss is scaled"),
        (3, "backward of the scaled loss"),
        (4, "gradients are clipped"),
    )
    assert one.facts["gradients"] == "scaled"


def test_a_proven_hazard_takes_the_place_of_an_assumed_one() -> None:
    watch: Watch[str] = Watch(BOOK, "runtime")
    found: list[Hazard[str]] = []
    happened = Happened()
    for owners in (None, ("m",)):
        state, trail = State(), None
        for event in [*START, OTHER, SCALE, BACK, Event(Kind.CLIP, owners=owners)]:
            happened.add(event)
            state, trail, new = watch.take(state, event, "one line", trail)
            found += new
    ((one, _),) = settle(found, happened)
    assert [hazard.assumed for hazard in found] == [True, False]
    assert not one.assumed


def test_what_one_scaler_did_says_nothing_of_another() -> None:
    other = Event(Kind.UPDATE, scaler="t", given=True)
    missing = [*START, AGAIN, SCALE, BACK, STEP, other, ZERO, SCALE, BACK, STEP, other]
    assert [one.rule.id for one, _ in hazards(missing, "runtime")] == ["AMP205"]


def test_a_trail_runs_backwards_and_events_have_words() -> None:
    trail = Trail(STEP, 2, Trail(BACK, 1))
    assert [step.place for step in trail.back()] == [2, 1]
    assert phrase(PLAIN) == "backward of the loss without the scale"
    assert (
        phrase(Event(Kind.STEP, scaler="s", via=Via.SCALER, skipped=True)) == "scaler.step (skipped: inf or NaN found)"
    )


@pytest.mark.parametrize(("newest", "expected"), [((2, 9), {"torch<2.10"}), ((2, 10), set()), (None, set())])
def test_a_bound_on_the_release_holds_below_it(newest: tuple[int, int] | None, expected: set[str]) -> None:
    assert all(bounds(BOOK, half, newest) == expected for half in ("static", "runtime"))


def test_a_pass_without_gradients_fills_the_cache_of_a_trained_model_on_an_old_torch() -> None:
    blank = replace(FORWARD, enabled=False)
    events = [OPTIMIZER, ENTER, blank, FORWARD, EXIT]
    assert rules_on(events, (2, 6)) == ["AMP305"]
    assert rules_on(events, (2, 13)) == []
    assert rules_on([OPTIMIZER, ENTER, FORWARD, blank, FORWARD, EXIT], (2, 6)) == []
    assert rules_on([OPTIMIZER, ENTER, blank, CLEAR_CACHE, FORWARD, EXIT], (2, 6)) == []
    assert rules_on([OPTIMIZER, ENTER, blank, EXIT, ENTER, FORWARD, EXIT], (2, 6)) == []
    assert rules_on([ENTER, blank, FORWARD, EXIT], (2, 6)) == []


def rules_on(events: list[Event], torch: tuple[int, int]) -> list[str]:
    return [one.rule.id for one, _ in hazards(events, "runtime", bounds(BOOK, "runtime", torch))]
