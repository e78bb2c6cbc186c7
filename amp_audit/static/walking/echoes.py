"""What calls did, done once more for other paths: a function that is called alike does not have to be walked again.

A walk of a call is kept with what it was given and what it asked: the conditions, and the names in the code it went
through. Another path that comes to the same call, in the same state, and differs in nothing of that, gets what the walk
made of it: values, attributes, events, decisions. Where that cannot be said for certain, the call is walked.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TypeVar

from amp_audit.events import Kind
from amp_audit.hazards import Trail
from amp_audit.protocol import words
from amp_audit.records import record, replace
from amp_audit.state import State
from amp_audit.static.binding.project import External
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import names_in
from amp_audit.static.walking.cases import ANY, Case, told
from amp_audit.static.walking.values import (
    Condition,
    Func,
    Items,
    Literal,
    Region,
    Symbol,
    Tensor,
    Value,
    key_of,
    options,
    short,
)
from amp_audit.static.walking.world import MADE_OF, Place, World, is_data

WORTH = 12
"""Statements of a walk from which on it is kept: comparing two paths costs about as much as walking some."""
MOST = 6
"""Walks that are kept for one call."""

_LOOKS_AT_ALL = frozenset({"getattr", "setattr", "vars", "globals", "locals", "hasattr"})
"""What reads or sets names that are not spelled."""
_OF_ITERATIONS = frozenset({Kind.STEP, Kind.ZERO_GRAD, Kind.ITERATION_END, Kind.LEAVE_OUT})
"""Events that ask for the boundary tests of the loops around."""

_OF_REGIONS = frozenset({Kind.REGION_ENTER, Kind.REGION_EXIT})

K = TypeVar("K")


@record(frozen=True, slots=True)
class Call:
    """A function that is called with these arguments; ``site``: where, in which round, within how many tests;
    ``regions``: within how many without gradients, of inference mode, and of such as may be anything.
    """

    func: Func
    args: tuple[Value, ...]
    named: Mapping[str, Value]
    site: Hashable
    regions: tuple[int, int, int]


@record(frozen=True, slots=True)
class Start:
    """A path where it comes to a call."""

    state: State
    heap: Mapping[tuple[Hashable, str], Value]
    globals: Mapping[tuple[str, str], Value]
    flags: Mapping[str, bool]
    cases: tuple[Case, ...]
    trail: Trail[Place] | None
    left: tuple[Place, Trail[Place] | None] | None
    env: Mapping[str, Value]
    recent: tuple[Kind, ...]

    @classmethod
    def of(cls, world: World) -> Start:
        return cls(
            world.state,
            world.heap,
            world.globals,
            dict(world.flags),
            world.cases,
            world.trail,
            world.left,
            dict(world.env),
            _recent(world),
        )


@record(frozen=True, slots=True)
class Cost:
    """What a walk of a call has cost, and met: functions that were ``entered``, conditions that were ``asked``."""

    fuel: int
    cut: int
    entered: Mapping[tuple[str, int], int]
    asked: Set[str]
    unsteady: bool


@record(frozen=True, slots=True)
class _End:
    """One way a call went: what it gave, and what it left."""

    value: Value
    state: State
    heap: Mapping[tuple[Hashable, str], Value]
    globals: Mapping[tuple[str, str], Value]
    flags: Mapping[str, bool]
    cases: tuple[Case, ...] | None
    steps: tuple[Trail[Place], ...]
    left: tuple[Place, int] | None


@record(frozen=True, slots=True)
class Echo:
    """A walk that was kept. ``quiet``: it left the state as it was; ``bare``: and nothing of what it was given."""

    call: Call
    start: Start
    cost: Cost
    words: Set[str]
    ends: tuple[_End, ...]
    quiet: bool
    bare: bool

    def is_alike(self, call: Call, world: World) -> bool:
        """Whether a call that leaves the state as it is differs in nothing but data, wherever it is: which gradients
        there are and what was computed is nothing to it.
        """
        start = self.start
        return (
            world.state.regions == start.state.regions
            and call.func.bound == self.call.func.bound
            and (_given_same(call, self.call) or (self.bare and _given_alike(call, self.call)))
            and self._decides_less(world)
            and self._reads_alike(start.heap, world.heap)
            and self._reads_alike(start.globals, world.globals)
        )

    def is_same(self, call: Call, world: World) -> bool:
        """Whether this call on this path would go as that one did."""
        start = self.start
        return (
            _given_same(call, self.call)
            and call.func.bound == self.call.func.bound
            and (world.state is start.state or world.state == start.state)
            and _recent(world) == start.recent
            and self._decides_alike(world)
            and self._reads_alike(start.heap, world.heap)
            and self._reads_alike(start.globals, world.globals)
        )

    def _decides_alike(self, world: World) -> bool:
        start = self.start
        if not self.quiet and any(end.cases is not None for end in self.ends) and world.cases != start.cases:
            return False
        differing = {key for key, _ in start.flags.items() ^ world.flags.items()}
        if start.cases != world.cases:
            differing.update(key for case in (*start.cases, *world.cases) for key, _ in case)
        if any(step.event.kind in _OF_ITERATIONS for end in self.ends for step in end.steps):
            return not differing
        return not self._asks(differing, differing)

    def _decides_less(self, world: World) -> bool:
        """Whether nothing that the walk asked for was decided on its path only, and what was decided on this one only
        rules out some of the ways that the walk found: none of these stands for both sides of it.
        """
        start = self.start
        more = {key for key, truth in start.flags.items() if world.flags.get(key) is not truth}
        if start.cases != world.cases:
            more.update(key for case in start.cases for key, _ in case)
        if start.cases != world.cases:
            more.update(key for case in world.cases for key, _ in case)
        fresh = world.flags.keys() - start.flags.keys()
        if self._asks(more, more | fresh):
            return False
        asked = [key for key in fresh if self._asks({key}, {key})]
        told_apart = all(told(key, end.flags) is not None for key in asked for end in self.ends)
        return told_apart and any(self._open(world))

    def _open(self, world: World) -> Iterator[_End]:
        """The ways that a call which leaves the state as it is may go on a path, by what was decided there."""
        for end in self.ends:
            decided = (item for item in end.flags.items() if "@" not in item[0])
            if all(told(key, world.flags) is not (not truth) for key, truth in decided):
                yield end

    def _asks(self, decided: Set[str], rounds: Set[str]) -> bool:
        """Whether the walk asked for one of these conditions, or for all that were decided in one of these rounds."""
        if not rounds:
            return False
        if ANY in self.cost.asked:
            return True
        subjects = {_subject(key) for key in decided}
        subjects.update(f"@{stamp}" for key in rounds for stamp in key.rpartition("@")[2:] if "@" in key)
        return any(key in decided or _subject(key) in subjects for key in self.cost.asked)

    def _reads_alike(self, mine: Mapping[K, Value], other: Mapping[K, Value]) -> bool:
        for key, one, two in _differing(mine, other):
            name = key[-1] if isinstance(key, tuple) else ""
            if name == MADE_OF or (str(name).startswith("=") and (one is None or two is None)):
                continue
            spelled = name in self.words or not str(name).isidentifier()
            if self.quiet:
                passed_over = not spelled or (_is_number(one) and _is_number(two))
            else:
                read = spelled or not _LOOKS_AT_ALL.isdisjoint(self.words)
                passed_over = not read and _is_passive(one) and _is_passive(two)
            if not passed_over:
                return False
        return True

    def results(self, call: Call, world: World) -> list[tuple[Value, World]]:
        """What the call gives on this path."""
        found = []
        same = _given_same(call, self.call)
        ends = list(self._open(world)) if self.quiet else self.ends
        for number, end in enumerate(ends):
            after = world if number == len(ends) - 1 else world.fork()
            found.append((end.value if same else _renamed(end.value, call), after))
        for end, (_, after) in zip(ends, found):
            self._go(end, after)
        return found

    def _go(self, end: _End, world: World) -> None:
        trails = [world.trail]
        begun = self.start.trail.iteration if self.start.trail else 0
        before = world.trail.iteration if world.trail else 0
        for step in end.steps:
            trails.append(Trail(step.event, step.place, trails[-1], step.iteration - begun + before, step.raises))
        same = not self.quiet
        world.state = end.state if same else replace(world.state, ever=world.state.ever | end.state.ever)
        world.trail = trails[-1]
        if end.heap:
            world.heap = {**world.heap, **end.heap}
        if end.globals:
            world.globals = {**world.globals, **end.globals}
        world.flags.update(end.flags if same else {key: truth for key, truth in end.flags.items() if "@" not in key})
        if end.cases is not None and same:
            world.cases = end.cases
        if end.left is not None and same:
            place, steps = end.left
            world.left = place, trails[steps]


class Echoes:
    """The walks that are kept, of one walk of an entry."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, list[Echo]] = {}
        self._words: dict[int, frozenset[str]] = {}

    def find(self, call: Call, world: World) -> Echo | None:
        """A walk of this call that this path would repeat."""
        same = (echo for echo in self._kept.get(_key(call), ()) if echo.is_same(call, world))
        alike = (echo for echo in self._kept.get(_key_of_quiet(call), ()) if echo.is_alike(call, world))
        return next(itertools.chain(same, alike), None)

    def keep(
        self,
        call: Call,
        start: Start,
        cost: Cost,
        through: Iterable[ir.Function],
        results: Sequence[tuple[Value, World]],
    ) -> None:
        """Keep a walk ``through`` some functions that was worth it, if all that it read and changed can be told."""
        through = list(through)
        own = f"{call.func.function.qualname}."
        if cost.fuel < WORTH or any("<" in each.qualname and not each.qualname.startswith(own) for each in through):
            return
        ends = [_end(start, value, world) for value, world in results]
        whole = tuple(end for end in ends if end is not None)
        if len(whole) == len(ends):
            spoken = frozenset[str]().union(*map(self._spoken, through))
            quiet = all(_is_quiet(start, end) for end in whole)
            kept = self._kept.setdefault(_key_of_quiet(call) if quiet else _key(call), [])
            kept.insert(
                0, Echo(call, start, cost, spoken, whole, quiet, quiet and all(_is_bare(call, end) for end in whole))
            )
            del kept[MOST:]

    def _spoken(self, function: ir.Function) -> frozenset[str]:
        """The names that a function reads."""
        found = self._words.get(id(function))
        if found is None:
            outside = (*function.decorators, *(param.default for param in function.params if param.default is not None))
            found = self._words[id(function)] = function.words.union(*map(names_in, outside))
        return found


def _key(call: Call) -> Hashable:
    return (id(call.func.function), call.site)


def _key_of_quiet(call: Call) -> Hashable:
    return (id(call.func.function), call.regions)


def _end(start: Start, value: Value, world: World) -> _End | None:
    """What a walk has made of a path; None where that cannot be told from what was there before."""
    if world.dead or any(world.flags.get(key) is not truth for key, truth in start.flags.items()):
        return None
    if any(world.env.get(name) is not held for name, held in start.env.items()):
        return None
    steps = _steps(start.trail, world.trail)
    if steps is None:
        return None
    left = None
    if world.left is not None and world.left is not start.left:
        trails = [start.trail, *steps]
        numbers = [number for number, trail in enumerate(trails) if trail is world.left[1]]
        if not numbers:
            return None
        left = world.left[0], numbers[0]
    return _End(
        value,
        world.state,
        _changed(start.heap, world.heap),
        _changed(start.globals, world.globals),
        {key: truth for key, truth in world.flags.items() if key not in start.flags},
        None if world.cases == start.cases else world.cases,
        steps,
        left,
    )


def _steps(start: Trail[Place] | None, end: Trail[Place] | None) -> tuple[Trail[Place], ...] | None:
    """The events since then, oldest first."""
    found = []
    step = end
    while step is not None and step is not start:
        found.append(step)
        step = step.previous
    return tuple(reversed(found)) if step is start else None


def _changed(before: Mapping[K, Value], after: Mapping[K, Value]) -> dict[K, Value]:
    if before is after:
        return {}
    return {key: value for key, value in after.items() if before.get(key) is not value}


def _differing(mine: Mapping[K, Value], other: Mapping[K, Value]) -> Iterator[tuple[K, Value | None, Value | None]]:
    """The names that do not hold the same, with what they hold."""
    if mine is other:
        return
    for key, two in other.items():
        one = mine.get(key)
        if one is not two and one != two:
            yield key, one, two
    for key, one in mine.items():
        if key not in other:
            yield key, one, None


def _is_quiet(start: Start, end: _End) -> bool:
    """Whether models were run without gradients at the most, and data was given back."""
    before = replace(start.state, ever=end.state.ever)
    left = (value for key, value in end.heap.items() if key[1] != MADE_OF)
    return (
        before == end.state
        and _is_rootless(end.value)
        and all(map(_is_passive, (*left, *end.globals.values())))
        and all(step.event.kind in _OF_REGIONS or "evaluate" in words(step.event) for step in end.steps)
    )


def _is_rootless(value: Value) -> bool:
    """Whether something that is given back is data, or was computed and leads back to no model and no scaler."""
    if isinstance(value, Items):
        return all(map(_is_rootless, value.items))
    if isinstance(value, Tensor):
        return not value.owners and value.scaled is None and not value.taken
    return _is_passive(value)


def _is_bare(call: Call, end: _End) -> bool:
    """Whether nothing is left of what the call was given, but data that it gives back."""
    left = (value for key, value in end.heap.items() if key[1] != MADE_OF)
    given = [value.key for value in (*call.args, *call.named.values()) if isinstance(value, Symbol)]
    constant = all(isinstance(value, Literal) for value in (*left, *end.globals.values()))
    return constant and _is_made_here(end.value, given)


def _is_made_here(value: Value, given: Sequence[str]) -> bool:
    """Whether something is a constant or was computed, and is none of the things given, or a part of one."""
    if isinstance(value, Items):
        return all(_is_made_here(item, given) for item in value.items)
    if isinstance(value, Symbol):
        return not any(value.key == key or value.key.startswith((f"{key}.", f"{key}[")) for key in given)
    return isinstance(value, Literal)


def _renamed(value: Value, call: Call) -> Value:
    """Data that a call gives, called after what this one is given."""
    given = ",".join(map(key_of, (*call.args, *call.named.values())))
    return _renamed_part(value, f"{key_of(call.func)}({given})")


def _renamed_part(value: Value, key: str) -> Value:
    if isinstance(value, Items):
        return Items(tuple(_renamed_part(item, f"{key}[{number}]") for number, item in enumerate(value.items)))
    return replace(value, key=short(key), text="") if isinstance(value, Symbol) else value


def _given_same(one: Call, two: Call) -> bool:
    return one.args == two.args and one.named == two.named


def _given_alike(one: Call, two: Call) -> bool:
    """Whether what differs among the arguments is data that nothing is told by."""
    return (
        len(one.args) == len(two.args)
        and one.named.keys() == two.named.keys()
        and all(map(_are_alike, one.args, two.args))
        and all(_are_alike(value, two.named[name]) for name, value in one.named.items())
    )


def _are_alike(one: Value, two: Value) -> bool:
    return one == two or (isinstance(one, Symbol) and isinstance(two, Symbol))


def _is_number(value: Value | None) -> bool:
    return value is None or (isinstance(value, Literal) and is_data(value))


def _is_passive(value: Value | None) -> bool:
    """Whether what is done with all that is there, by whatever name, passes it over."""
    if isinstance(value, Items):
        return all(map(_is_passive, value.items))
    return value is None or isinstance(value, (Literal, Condition, Region, External)) or is_data(value)


def _subject(key: str) -> str:
    """What a condition is about: of the same thing others may follow from it."""
    return options(key)[0] or key.removesuffix(" is None")


def _recent(world: World) -> tuple[Kind, ...]:
    """What has happened since the innermost loop's round, or the last iteration, began: the latest first, each once."""
    found: dict[Kind, None] = {}
    step, begin = world.trail, world.rounds[-1] if world.rounds else None
    while step is not None and step is not begin and Kind.ITERATION_END not in found:
        found[step.event.kind] = None
        step = step.previous
    return tuple(found)
