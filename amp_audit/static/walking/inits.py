"""What the ``__init__`` of classes leaves: walked once for all of a class's methods, and taken up again for each.

Walks of the methods of a class begin with the same walk, and all that it leaves is kept: the worlds, and what the
walker has learnt. It is taken up only where another walk would give the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from amp_audit.hazards import Happened, Hazard
from amp_audit.records import record
from amp_audit.static.walking.boundaries import Boundaries
from amp_audit.static.walking.calls import as_then
from amp_audit.static.walking.walk import Walker
from amp_audit.static.walking.world import Limits, Place, World


@record(frozen=True, slots=True)
class _Kept:
    """``visits``: how often the walk came to functions of other files; ``limits``: how many may go through them."""

    worlds: list[World]
    fuel: int
    cut: int
    widest: int
    followed: frozenset[tuple[str, int]]
    visits: dict[tuple[str, int], int]
    limits: dict[tuple[str, int], int]
    hazards: tuple[Hazard[Place], ...]
    happened: Happened
    boundaries: Boundaries
    stepped: frozenset[str]


@dataclass(slots=True)
class Inits:
    """The walks of one project."""

    _kept: dict[Hashable, _Kept] = field(default_factory=dict)

    def worlds(
        self,
        about: Hashable,
        walker: Walker,
        visits: Counter[tuple[str, int]],
        limits: Limits,
        walk: Callable[[], Iterable[World]],
    ) -> list[World]:
        """What ``walk()`` gives with a walker that has not walked yet; ``about`` is all that it depends on, but for
        ``visits`` and the width."""
        key = (about, limits.width)
        kept = self._kept.get(key)
        if kept is None or kept.fuel > walker.fuel or not as_then(kept.limits, kept.followed, visits):
            kept = self._kept[key] = _walked(walker, limits, walk)
        else:
            _taken_up(kept, walker, visits, limits)
        worlds = [world.fork() for world in kept.worlds]
        for world in worlds:
            world.limits = limits
        return worlds


def _walked(walker: Walker, limits: Limits, walk: Callable[[], Iterable[World]]) -> _Kept:
    fuel, cut = walker.fuel, limits.cut
    worlds = list(walk())
    happened = Happened()
    happened.include(walker.happened)
    return _Kept(
        worlds,
        fuel - walker.fuel,
        limits.cut - cut,
        limits.widest,
        frozenset(walker.followed),
        dict(walker.came),
        dict(walker.limits),
        tuple(walker.hazards),
        happened,
        walker.boundaries.copy(),
        frozenset(walker.effects.stepped),
    )


def _taken_up(kept: _Kept, walker: Walker, visits: Counter[tuple[str, int]], limits: Limits) -> None:
    walker.fuel -= kept.fuel
    limits.cut += kept.cut
    walker.followed |= kept.followed
    limits.widest = max(limits.widest, kept.widest)
    visits.update(kept.visits)
    walker.came.update(kept.visits)
    walker.limits.update(kept.limits)
    walker.hazards += kept.hazards
    walker.happened.include(kept.happened)
    walker.boundaries = kept.boundaries.copy()
    walker.effects.stepped |= kept.stepped
