"""The events of a trace -> hazards, through the same state machine and the same rules that read the code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from amp_audit.events import Event, Kind, Via
from amp_audit.hazards import Happened, Hazard, Trail, Watch, bounds, settle
from amp_audit.model import Location
from amp_audit.rulebook import Rulebook
from amp_audit.state import State
from amp_audit.trace.schema import EventRow, Place, Trace

_TRAIL = 600
"""So many events back a hazard can be told; constructors are kept for ever."""

_KEPT = frozenset({Kind.SCALER_NEW, Kind.OPTIMIZER_NEW})
_KINDS = frozenset(kind.value for kind in Kind)


def where(place: Place) -> Location | None:
    """The place in the user's own code where there is one, else the innermost line that was seen."""
    if place.user_path and place.user_line and (place.user_path, place.user_line) != (place.path, place.line):
        return Location(place.user_path, place.user_line)
    if not place.path or not place.line:
        return None
    if place.column is None:
        return Location(place.path, place.line)
    return Location(place.path, place.line, place.column, place.line, place.end_column)


@dataclass(slots=True)
class Replay:
    """What the events of one process amount to.

    ``hazards``: those that stand, each with those that gave way. ``steps``: in which steps each (rule, place) was met.
    """

    hazards: list[tuple[Hazard[Location | None], list[Hazard[Location | None]]]] = field(default_factory=list)
    steps: dict[tuple[str, Location | None], list[int]] = field(default_factory=dict)


def replay(trace: Trace, book: Rulebook) -> Replay:
    """Hold the events of a process against the rules, in the order in which they happened."""
    watch: Watch[Location | None] = Watch(book, "runtime")
    state, happened = State(), Happened()
    happened.know(bounds(book, "runtime", _release(trace.header.torch)))
    trail: Trail[Location | None] | None = None
    found: dict[tuple[str, str, Location | None], Hazard[Location | None]] = {}
    done = Replay()
    length = 0
    for step, event, place in _events(trace):
        happened.add(event)
        state, trail, hazards = watch.take(state, event, place, trail)
        for hazard in hazards:
            found.setdefault((hazard.rule.id, repr(hazard.detector), hazard.place), hazard)
            steps = done.steps.setdefault((hazard.rule.id, hazard.place), [])
            if step not in steps[-1:]:
                steps.append(step)
        length += 1
        if length >= 2 * _TRAIL:
            trail, length = _shortened(trail), _TRAIL
    done.hazards = settle(found.values(), happened)
    return done


def _release(torch: str) -> tuple[int, int] | None:
    major, minor = (*torch.split("."), "")[:2]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _events(trace: Trace) -> Iterator[tuple[int, Event, Location | None]]:
    step, place = 0, None
    for record in trace.steps:
        step = record.step
        for row in record.events:
            if row.kind in _KINDS:
                place = where(row.place)
                yield step, event_of(row), place
    if trace.end is not None and trace.end.reason == "finished":
        yield step, Event(Kind.PROGRAM_END), place


def event_of(row: EventRow) -> Event:
    """The event that a row records. Raises ``ValueError`` for a kind or a way of stepping that is not known."""
    return Event(
        kind=Kind(row.kind),
        scaler=row.scaler,
        optimizer=row.optimizer,
        owners=row.owners,
        via=Via(row.via) if row.via else None,
        scaled=row.scaled,
        region=row.region,
        device=row.device,
        dtype=row.dtype,
        enabled=row.enabled,
        cache=row.cache,
        foreign=row.foreign,
        contents=frozenset(row.contents),
        site=row.site,
        skipped=row.skipped,
        given=row.given,
        detached=row.detached,
    )


def _shortened(trail: Trail[Location | None]) -> Trail[Location | None]:
    """The latest part of a trail, and the constructors before it."""
    events = [step for number, step in enumerate(trail.back()) if number < _TRAIL or step.event.kind in _KEPT]
    short: Trail[Location | None] | None = None
    for step in reversed(events):
        short = Trail(step.event, step.place, short, step.iteration, step.raises)
    return short if short is not None else trail
