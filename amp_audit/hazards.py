"""Events with their places -> hazards: where rules' ``event`` detectors are held against the state machine.

Both halves come through here, so that no rule about order is written twice: the static half with one ``Trail`` per
path through the code, the runtime half with the one trail of what happened.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Generic, TypeVar

from amp_audit.events import Event, Id, Kind, Via
from amp_audit.protocol import Facts, advance, words
from amp_audit.records import record
from amp_audit.rulebook import Detector, Rule, Rulebook
from amp_audit.state import State

P = TypeVar("P")  # what a half uses as a place


@record(frozen=True, slots=True, eq=False)
class Trail(Generic[P]):
    """The events of one path, newest first: a linked list, so that paths share what they have in common.

    ``raises``: torch refuses this call, so that a program ends here unless it catches the error.
    """

    event: Event
    place: P
    previous: Trail[P] | None = None
    iteration: int = 0
    raises: bool = False

    def back(self) -> Iterator[Trail[P]]:
        step: Trail[P] | None = self
        while step is not None:
            yield step
            step = step.previous


@record(frozen=True, slots=True)
class Hazard(Generic[P]):
    """A rule met at a place, with the steps that led there (oldest first) and what was true.

    ``about`` holds the identities it speaks of (scaler, optimizer, region); two hazards that share one of them speak
    of the same thing when it comes to which of them gives way.
    """

    rule: Rule
    detector: Detector
    place: P
    steps: tuple[tuple[P, str], ...]
    facts: Facts = field(compare=False)
    about: frozenset[Id] = frozenset()
    scaler: Id | None = None
    assumed: bool = False


PHRASES = {
    "scaler_new": "the GradScaler is built",
    "region_enter": "autocast is entered",
    "region_exit": "autocast is left",
    "forward": "forward pass",
    "evaluate": "forward pass without gradients",
    "jit_trace": "the model is traced",
    "scale": "the loss is scaled",
    "backward": "backward",
    "backward.scaled": "backward of the scaled loss",
    "backward.plain": "backward of the loss without the scale",
    "autograd_grad": "gradients are taken by autograd.grad",
    "drop": "the scaled loss is dropped",
    "scale_read": "the scale is read",
    "descale": "divided by the scale that was read",
    "unscale": "gradients are unscaled",
    "clip": "gradients are clipped",
    "grad_read": "gradients are read",
    "grad_write": "gradients are changed",
    "average": "the moving average advances",
    "loss_read": "the scaled loss is read",
    "thread": "work is handed to a thread",
    "leave_out": "this rank leaves the iteration",
    "pickle": "the scaler itself is pickled",
    "hook": "a hook on gradients is registered",
    "step": "the optimizer steps",
    "step.scaler": "scaler.step",
    "step.plain": "optimizer.step, not through the scaler",
    "update": "scaler.update",
    "zero_grad": "gradients are cleared",
    "weight_write": "weights are written",
    "cache_clear": "the cached low-precision weights are dropped",
    "save": "a checkpoint is written",
    "iteration_end": "the iteration ends here",
}

_TOLD = frozenset({Kind.SCALE, Kind.BACKWARD, Kind.UNSCALE, Kind.CLIP, Kind.STEP, Kind.UPDATE, Kind.ZERO_GRAD})
_REGIONAL = frozenset({Kind.REGION_ENTER, Kind.REGION_EXIT, Kind.FORWARD, Kind.WEIGHT_WRITE})


class Watch(Generic[P]):
    """The rules' event detectors, ready to be held against events. Stateless but for its tables."""

    def __init__(self, book: Rulebook, half: str) -> None:
        self._detectors = list(book.detectors(half, "event"))
        self._by_words: dict[frozenset[str], list[tuple[Rule, Detector]]] = {}

    def take(
        self, state: State, event: Event, place: P, trail: Trail[P] | None, told: set[Hashable] | None = None
    ) -> tuple[State, Trail[P], list[Hazard[P]]]:
        """Advance over one event: the new state, the longer trail, and the hazards met. Of those that other paths have
        met as well only the first is ``told``.
        """
        after, facts = advance(state, event)
        iteration = (trail.iteration if trail else 0) + (event.kind is Kind.ITERATION_END)
        longer = Trail(event, place, trail, iteration, bool(facts.get("raises")))
        found = []
        for rule, detector in self._of(words(event)):
            if not detector.holds(facts):
                continue
            hazard = _hazard(rule, detector, longer, facts, state, told)
            if hazard is not None:
                found.append(hazard)
        return after, longer, found

    def _of(self, named: frozenset[str]) -> list[tuple[Rule, Detector]]:
        """The detectors that are held against events of these words."""
        fitting = self._by_words.get(named)
        if fitting is None:
            fitting = [each for each in self._detectors if not named.isdisjoint(each[1].targets)]
            self._by_words[named] = fitting
        return fitting


def _hazard(
    rule: Rule, detector: Detector, trail: Trail[P], facts: Facts, state: State, told: set[Hashable] | None
) -> Hazard[P] | None:
    spot = _spot(detector, trail, state)
    if spot is None:
        return None
    event = trail.event
    carried = facts.get("scaler")
    scaler = event.scaler if event.scaler is not None else carried if isinstance(carried, Hashable) else None
    named = (scaler, event.optimizer, spot.event.scaler, spot.event.optimizer, spot.event.region)
    about = frozenset(x for x in (*named, *(region.id for region in state.regions)) if x is not None)
    assumed = bool(facts.get("assumed"))
    if told is not None:
        same = (id(detector), spot.place, about, scaler, assumed)
        if same in told:
            return None
        told.add(same)
    return Hazard(rule, detector, spot.place, _steps(trail, spot), facts, about, scaler, assumed)


def _spot(detector: Detector, trail: Trail[P], state: State) -> Trail[P] | None:
    """The event where the finding stands: this one, or the latest of the kind that ``at`` names.

    A region is the outermost one in force, for it is this one that keeps the cached weights.
    """
    if detector.at is None or detector.at in words(trail.event):
        return trail
    wanted = trail.event
    outermost = state.regions[0].id if state.regions else None
    for step in trail.back():
        same = wanted.scaler is None or step.event.scaler in (None, wanted.scaler)
        same &= wanted.optimizer is None or step.event.optimizer in (None, wanted.optimizer)
        if step.event.kind is Kind.REGION_ENTER and outermost is not None:
            same = step.event.region == outermost
        if same and detector.at in words(step.event):
            return step
    return None


def _steps(trail: Trail[P], spot: Trail[P]) -> tuple[tuple[P, str], ...]:
    """What to show of the path: what happened since the last iteration to what the finding speaks of, up to its end."""
    regional = trail.event.kind in _REGIONAL or spot.event.kind in _REGIONAL or spot.event.region is not None
    told = _TOLD | _REGIONAL if regional else _TOLD
    recent = list(itertools.takewhile(lambda step: step.iteration >= trail.iteration - 1, trail.back()))
    strangers = _strangers(recent, trail.event, spot.event)
    shown: list[Trail[P]] = []
    seen: set[tuple[Kind, object]] = set()
    for step in recent:
        if len(shown) >= 12:
            break
        key = (step.event.kind, step.place)
        fits = step.event.kind in told and key not in seen and strangers.isdisjoint(_identities(step.event))
        if step is trail or step is spot or fits:
            seen.add(key)
            shown.append(step)
    if spot not in shown:
        shown.append(spot)
    return tuple((step.place, phrase(step.event)) for step in reversed(shown))


def _identities(event: Event) -> set[Id]:
    own = (event.scaler, event.optimizer, *(event.owners or ()))
    return {identity for identity in own if identity is not None}


def _strangers(recent: Sequence[Trail[P]], *about: Event) -> set[Id]:
    """Identities of recent events that no event ties to those of ``about``: another model's optimizer, say."""
    groups = [_identities(step.event) for step in recent]
    known = set().union(*(_identities(event) for event in about))
    if not known:
        return set()
    while True:
        joined = known.union(*(group for group in groups if group & known))
        if joined == known:
            return set().union(*groups) - known
        known = joined


def phrase(event: Event) -> str:
    """An event in words, as precise as the event is."""
    named = words(event)
    best = max((word for word in named if word in PHRASES), key=len, default=event.kind.value)
    text = PHRASES.get(best, best)
    if event.kind is Kind.STEP and event.via is Via.SCALER and event.skipped:
        return f"{text} (skipped: inf or NaN found)"
    return text


def bounds(book: Rulebook, half: str, newest: tuple[int, int] | None) -> set[str]:
    """Of the releases that rules ask for, as ``torch<2.10`` in ``anywhere``, those that the newest torch that may run
    lies below.
    """
    asked = {word for _, detector in book.detectors(half, "event") for word in detector.anywhere if "<" in word}
    return {word for word in asked if newest is not None and newest < _release(word.partition("<")[2])}


def _release(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


class Happened:
    """The words of all events on any path, apart for each scaler, so that a rule can speak of what is nowhere."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._words: dict[Id | None, set[str]] = {}
        self._possible: set[str] = set()
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        self._words.setdefault(event.scaler, set()).update(words(event))

    def include(self, other: Happened) -> None:
        for scaler, found in other._words.items():
            self._words.setdefault(scaler, set()).update(found)
        self._possible |= other._possible

    def allow(self, found: Iterable[str]) -> None:
        """Something out of sight may have done this: it is not seen, and not nowhere."""
        self._possible.update(found)

    def know(self, found: Iterable[str]) -> None:
        """What holds of all the code around the events, in words."""
        self._words.setdefault(None, set()).update(found)

    def may(self, scaler: Id | None = None) -> frozenset[str]:
        """What happened or may have happened."""
        return self.words(scaler) | self._possible

    def words(self, scaler: Id | None = None) -> frozenset[str]:
        """What happened to one scaler or without any; to all of them when none is given."""
        wanted = self._words if scaler is None else (None, scaler)
        return frozenset().union(*(self._words.get(key, ()) for key in wanted))


def settle(hazards: Iterable[Hazard[P]], happened: Happened) -> list[tuple[Hazard[P], list[Hazard[P]]]]:
    """The hazards that stand, each once, with those that gave way to it."""
    return give_way(standing(hazards, happened))


def standing(hazards: Iterable[Hazard[P]], happened: Happened, *, any_scaler: bool = False) -> list[Hazard[P]]:
    """Drop what absence conditions rule out. ``any_scaler``: what happened to another scaler counts as well (it may
    be the same one under another name).
    """
    kept = []
    for hazard in hazards:
        about = None if any_scaler else hazard.scaler
        seen, possible = happened.words(about), happened.may(about)
        if seen.issuperset(hazard.detector.anywhere) and possible.isdisjoint(hazard.detector.nowhere):
            kept.append(hazard)
    return kept


def give_way(hazards: Iterable[Hazard[P]]) -> list[tuple[Hazard[P], list[Hazard[P]]]]:
    """One hazard per (rule, place), and rules give way to others that speak of the same thing (docs/contracts: One
    hazard, one finding). Returns each kept hazard with the losers. What a detector yields to wins at its place alone,
    what its rule yields to wherever both share an identity.
    """
    kept: dict[tuple[str, P], Hazard[P]] = {}
    for hazard in hazards:
        key = (hazard.rule.id, hazard.place)
        if key not in kept or (kept[key].assumed and not hazard.assumed):
            kept[key] = hazard
    unique = list(kept.values())
    winner = {id(one): _winner(one, unique) for one in unique}
    return [(one, [two for two in unique if winner[id(two)] is one]) for one in unique if winner[id(one)] is None]


def _winner(one: Hazard[P], hazards: Sequence[Hazard[P]]) -> Hazard[P] | None:
    for rule in one.rule.yields_to:
        for other in hazards:
            if other.rule.id == rule and (other.about & one.about or other.place == one.place):
                return other
    same = (other for other in hazards if other.place == one.place and other.rule.id in one.detector.yields_to)
    return next(same, None)
