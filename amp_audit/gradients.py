"""What is in the ``.grad`` of one parameter owner, and what backward, clearing and an iteration's end make of it."""

from __future__ import annotations

from collections.abc import Iterable

from amp_audit.events import Boundary, Event, Id
from amp_audit.records import record, replace


@record(frozen=True, slots=True)
class Gradients:
    """What is in the ``.grad`` of one parameter owner.

    ``value``: none | plain | scaled | mixed | unscaled | unknown. ``consumed``: a step used them and nothing was
    added since. ``cleared``: unspent gradients were thrown away in this iteration. ``rescaled``: the scale changed
    while they still carried the old one. ``assumed``: attributed to this owner without proof. ``dtype``: the
    low-precision dtype in which the losses were computed. ``scaler``: whose scale they carry. ``clipped``: clipping in
    this iteration found none to clip.

    Of an accumulation: ``leftover``: part of them a step has used before. ``fresh``: added to in this iteration.
    ``carried``: the boundary tests for want of which they outlived an iteration. ``divided``: what the losses may have
    been divided by. ``wiped``: the boundary tests under which carried gradients were thrown away in this iteration.
    """

    value: str = "none"
    consumed: bool = False
    cleared: bool = False
    rescaled: bool = False
    assumed: bool = False
    dtype: str | None = None
    scaler: Id | None = None
    clipped: bool = False
    leftover: bool = False
    fresh: bool = False
    carried: frozenset[Boundary] = frozenset()
    divided: frozenset[Id] = frozenset()
    wiped: frozenset[Boundary] = frozenset()

    @property
    def waiting(self) -> bool:
        """Whether there are gradients that no step has used."""
        return self.value not in ("none", "unknown") and not self.consumed


def added(held: Gradients, event: Event, assumed: bool) -> Gradients:
    """After a backward, which adds to what is there."""
    first = held.value in ("none", "unknown") or held.consumed
    unspent = held.value != "none" and not held.consumed
    return Gradients(
        _value_added(held, event.scaled),
        rescaled=held.rescaled and unspent,
        assumed=assumed or (held.assumed and unspent),
        dtype=event.dtype if first or held.dtype == event.dtype else None,
        scaler=event.scaler,
        leftover=(held.consumed and held.value != "none") or (held.leftover and unspent),
        fresh=True,
        carried=held.carried if unspent else frozenset(),
        divided=event.divided | held.divided if unspent else event.divided,
        wiped=held.wiped,
    )


def _value_added(held: Gradients, scaled: bool | None) -> str:
    if scaled is None:
        return "unknown"
    new = "scaled" if scaled else "plain"
    if held.value in ("none", "unknown", new) or held.consumed:
        return new
    return "unscaled" if (held.value, new) == ("unscaled", "plain") else "mixed"


def divided_by_scale(held: Gradients) -> Gradients:
    """After ``unscale_``."""
    return held if held.value == "none" else replace(held, value="unscaled", rescaled=False)


def spent(held: Gradients) -> Gradients:
    """After a step."""
    return replace(held, consumed=True, cleared=False, rescaled=False, fresh=False, carried=frozenset())


def cleared(held: Gradients, event: Event) -> Gradients:
    """After they were set to zero or to None."""
    wiped = held.carried & event.boundaries if held.waiting else frozenset()
    return Gradients(
        cleared=held.cleared or held.waiting,
        assumed=held.assumed and held.waiting,
        wiped=held.wiped | wiped,
    )


def carried_on(held: Gradients, event: Event) -> Gradients:
    """After the end of an iteration: what no step has used waits for the boundary tests that did not come true."""
    carried = held.carried | event.boundaries if held.waiting else held.carried
    return replace(
        held,
        cleared=False,
        clipped=held.clipped and held.value == "none",
        fresh=False,
        carried=carried,
        wiped=frozenset(),
    )


def wasted(held: Iterable[Gradients], event: Event) -> str:
    """How clearing throws away what an accumulation has gathered, or clipping changes it: no | every | between.

    ``every``: after each micro-batch, whatever the boundary test says. ``between``: under a boundary test of its own,
    that comes true after another count than the step's.
    """
    waiting = [(one, _around(one.carried, event)) for one in held if one.waiting]
    if event.boundaries:
        fresh = [carried for one, carried in waiting if one.fresh]
        return "between" if fresh and all(_elsewhere(carried, event.boundaries) for carried in fresh) else "no"
    missed = [(one, _around(event.missed, event)) for one, _ in waiting if one.fresh]
    meant = any(b.named or b.modulus in one.divided for one, tests in (*waiting, *missed) for b in tests)
    return "every" if meant and not event.sometimes else "no"


def _around(tests: Iterable[Boundary], event: Event) -> list[Boundary]:
    """Those of tests that stand in loops which the event is in as well."""
    return [test for test in tests if event.loops[: len(test.loops)] == test.loops]


def _elsewhere(one: Iterable[Boundary], two: Iterable[Boundary]) -> bool:
    """Whether two boundary tests have the same modulus and counter and come true at another count."""
    return any(a.modulus == b.modulus and a.counter == b.counter and _differ(a, b) for a in one for b in two)


def _are_one_each(event: Event) -> bool:
    """Whether tests that come true at different counts have both come true: each step has one micro-batch, then."""
    return _elsewhere(event.boundaries, event.boundaries)


def _differ(one: Boundary, two: Boundary) -> bool:
    if one.residue is None or two.residue is None:
        return False
    distance = one.residue - two.residue
    return distance % one.modulus != 0 if isinstance(one.modulus, int) else distance != 0


def summed(held: Iterable[Gradients], event: Event) -> bool:
    """Whether a step uses the gradients of several micro-batches, summed where their mean was meant."""
    waiting = [one for one in held if one.waiting]
    return (
        bool(waiting) and not _are_one_each(event) and all(_gathered(one, event) and not one.divided for one in waiting)
    )


def _gathered(held: Gradients, event: Event) -> bool:
    return any(not boundary.nominal for boundary in held.carried & event.boundaries)


def wiped_late(held: Iterable[Gradients], event: Event) -> bool:
    """Whether what was gathered was thrown away in the very iteration in which the step was to use it."""
    late = [] if _are_one_each(event) else [one.wiped & event.boundaries for one in held]
    return any(boundary.residue is not None for each in late for boundary in each)
