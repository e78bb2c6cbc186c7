"""What the state machine remembers: immutable, hashable, and joined where paths meet. ``protocol.py`` changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from amp_audit.events import Id
from amp_audit.gradients import Gradients
from amp_audit.records import record, replace

LOW_PRECISION = frozenset({"float16", "bfloat16"})
V = TypeVar("V")
Table = tuple[tuple[Id, V], ...]


@record(frozen=True, slots=True)
class Scaler:
    """One GradScaler. ``round``: unknown | open (nothing checked since the last update) | checked. ``whole``: all that
    happened to it since it was built is known. ``used``: a loss was multiplied by its scale since the last update.
    """

    site: Id | None = None
    round: str = "unknown"
    whole: bool = False
    used: bool = False


@record(frozen=True, slots=True)
class Region:
    """One entered autocast region; ``filled``: owners whose weights have a cached low-precision copy.

    ``stale``: of these, those whose weights changed since, and how: step | write. ``blank``: of these, those whose
    copies were made while no gradients were recorded. ``ran``: without a cache, owners whose weights were cast here and
    are still the same. ``foreign``: a framework entered it, so that nobody but the framework can close it earlier.
    """

    id: Id | None
    device: str | None
    dtype: str | None
    enabled: bool | None
    cache: bool = True
    filled: frozenset[Id] = frozenset()
    stale: Table[str] = ()
    blank: frozenset[Id] = frozenset()
    ran: frozenset[Id] = frozenset()
    foreign: bool = False

    @property
    def live(self) -> bool:
        return self.enabled is True and (self.dtype is None or self.dtype in LOW_PRECISION)


@record(frozen=True, slots=True)
class State:
    """All that the machine remembers. Tables are sorted tuples of pairs, so equal states compare equal."""

    owners: Table[Gradients] = ()
    phases: Table[str] = ()  # key: (scaler, optimizer); value: ready | unscaled | stepped | unknown
    left: Table[str] = ()  # the same keys, where an iteration ended in between: early | fell
    links: Table[tuple[Id, ...]] = ()  # optimizer -> owners
    whole: frozenset[Id] = frozenset()  # optimizers that have all parameters of their owners
    parts: Table[tuple[Id, ...]] = ()  # optimizer -> models of which it has some parameters
    scalers: Table[Scaler] = ()
    stepped_by: Table[Id] = ()  # optimizer -> the scaler that last stepped it
    strangers: Table[str] = ()  # optimizers of nobody knows whose parameters -> what they are in (strangers.py)
    unknown_stepped: bool = False  # whether an optimizer of nobody knows whose parameters has stepped
    stepped: tuple[tuple[Id, ...], bool] | None = None  # by a scaler in this iteration: in which loops, and if skipped
    trained: Table[str] = ()  # owner -> where it ran for its last backward: inside | outside a region
    lowered: Table[str] = ()  # owner -> the dtype of the region in which it last ran with gradients
    reads: Table[str] = ()  # (scaler, where its scale was read) -> fresh | next: after an update | stale
    regions: tuple[Region, ...] = ()
    blind: bool = False  # whether gradients of which nothing is known have been clipped since anything was done to them
    ever: frozenset[str] = frozenset()


def get(table: Table[V], key: Id) -> V | None:
    return next((value for name, value in table if name == key), None)


def put(table: Table[V], key: Id, value: V) -> Table[V]:
    kept = [pair for pair in table if pair[0] != key]
    return tuple(sorted([*kept, (key, value)], key=lambda pair: repr(pair[0])))


def change(state: State, owners: Iterable[Id], how: Callable[[Gradients], Gradients]) -> State:
    """The state with the gradients of these owners changed."""
    table = state.owners
    for owner in owners:
        table = put(table, owner, how(get(table, owner) or Gradients("unknown")))
    return replace(state, owners=table)


def join(one: State, two: State) -> State:
    """What holds in both states; where they differ, unknown. Used when too many paths meet."""
    return State(
        owners=_join(one.owners, two.owners, _join_gradients, Gradients()),
        phases=_join(one.phases, two.phases, lambda a, b: a if a == b else "unknown", "ready"),
        left=tuple(pair for pair in one.left if pair in two.left),
        links=tuple(pair for pair in one.links if pair in two.links),
        whole=one.whole & two.whole,
        parts=tuple(pair for pair in one.parts if pair in two.parts),
        scalers=_join(one.scalers, two.scalers, lambda a, b: a if a == b else Scaler(a.site), Scaler()),
        stepped_by=tuple(pair for pair in one.stepped_by if pair in two.stepped_by),
        strangers=tuple(pair for pair in one.strangers if pair in two.strangers),
        unknown_stepped=one.unknown_stepped or two.unknown_stepped,
        trained=tuple(pair for pair in one.trained if pair in two.trained),
        lowered=tuple(pair for pair in one.lowered if pair in two.lowered),
        stepped=one.stepped if one.stepped == two.stepped else None,
        reads=tuple(pair for pair in one.reads if pair in two.reads),
        regions=_join_regions(one.regions, two.regions),
        blind=one.blind or two.blind,
        ever=one.ever | two.ever,
    )


def blur(state: State, owners: Iterable[Id]) -> State:
    """The state when something happened to a part of what these owners stand for."""
    return replace(change(state, tuple(owners), lambda held: Gradients("unknown")), strangers=())


def forget(state: State) -> State:
    """The state after, or before, something out of sight: identities stay, what happened to them is unknown."""
    unknown = Gradients("unknown")
    return replace(
        state,
        owners=tuple((owner, unknown) for owner, _ in state.owners),
        phases=tuple((key, "unknown") for key, _ in state.phases),
        left=(),
        stepped=None,
        reads=(),
        scalers=tuple((key, replace(scaler, round="unknown", whole=False)) for key, scaler in state.scalers),
        stepped_by=(),
        strangers=(),
        blind=False,
    )


def between_calls(state: State) -> State:
    """The state where code that does a whole step is called again from out of sight: who calls it may clear gradients
    or make some, but leaves the scaler alone.
    """
    return replace(forget(state), phases=state.phases, left=state.left, scalers=state.scalers)


def _join(one: Table[V], two: Table[V], both: Callable[[V, V], V], absent: V) -> Table[V]:
    left, right = dict(one), dict(two)
    keys = sorted({*left, *right}, key=repr)
    return tuple((key, both(left.get(key, absent), right.get(key, absent))) for key in keys)


def _join_regions(one: tuple[Region, ...], two: tuple[Region, ...]) -> tuple[Region, ...]:
    """The same regions, with all that either way left in their caches; none, where the ways are in different ones."""
    if one == two:
        return one
    if [_bare(region) for region in one] != [_bare(region) for region in two]:
        return ()
    return tuple(map(_join_caches, one, two))


def _bare(region: Region) -> Region:
    return replace(region, filled=frozenset(), stale=(), blank=frozenset(), ran=frozenset())


def _join_caches(one: Region, two: Region) -> Region:
    stale = one.stale
    for owner, how in two.stale:
        stale = put(stale, owner, how)
    kept = one.filled | two.filled, one.blank | two.blank, one.ran | two.ran
    return replace(one, filled=kept[0], stale=stale, blank=kept[1], ran=kept[2])


def _join_gradients(one: Gradients, two: Gradients) -> Gradients:
    return one if one == two else Gradients("unknown", assumed=True)


# Which region is in force


def live_region(state: State) -> Region | None:
    """The innermost region, when autocast is on in it."""
    innermost = state.regions[-1] if state.regions else None
    return innermost if innermost is not None and innermost.live else None


def region_dtype(state: State) -> str | None:
    region = live_region(state)
    return region.dtype if region else None
