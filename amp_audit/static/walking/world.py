"""One path through the code: what names hold, what the state machine says, which conditions were decided.

Worlds are copied where paths fork and merged where they agree again. A condition that was decided stays decided, so a
flag that governs several branches takes the same arm in all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from amp_audit.hazards import Trail
from amp_audit.policy import DEFAULT_DTYPES
from amp_audit.records import replace
from amp_audit.state import State, join
from amp_audit.static.binding.project import ClassRef, External, ModuleRef
from amp_audit.static.source import ir
from amp_audit.static.walking.cases import ANY, Case, simplified, told
from amp_audit.static.walking.deciding import Choosing, Deciding, is_word
from amp_audit.static.walking.values import (
    Condition,
    Func,
    Instance,
    Items,
    Literal,
    Method,
    Optimizer,
    Parameters,
    Region,
    Scale,
    Scaler,
    Scheduler,
    StateDict,
    Symbol,
    Table,
    Tensor,
    Value,
    is_there,
    key_of,
    label,
    rounds_of,
    short,
)

K = TypeVar("K")
Told: TypeAlias = dict[tuple[object, ...], tuple[Sequence[Mapping[Any, Value]], list[Hashable]]]
MOST_TOLD = 64
Place = tuple[str, int]
"""A module's path and an ordinal in it."""

MADE_OF = "#made_of"
"""The attribute that says what a value was made of. No path depends on it."""

_ALWAYS_TRUE = (
    Scaler,
    Optimizer,
    Scheduler,
    Region,
    Instance,
    Func,
    ClassRef,
    ModuleRef,
    StateDict,
    Parameters,
)


@dataclass(slots=True)
class Limits:
    """How many paths are followed side by side; ``cut``: how many there were beyond that, and were not; ``widest``: how
    many there were at the most. ``asked``: the conditions that were asked for, while somebody wants to know. ``told``:
    what tells the paths apart that were compared last, by the names of each."""

    width: int = 64
    cut: int = 0
    widest: int = 0
    asked: set[str] | None = None
    told: Told = field(default_factory=dict)


@dataclass(slots=True)
class Frame:
    """The names of one call of a function, or of a module's own code (``function`` is None).

    ``cls`` is the class whose method runs, ``shared`` the names declared global or nonlocal. ``live``: the names
    that may still be read, None: any.
    """

    module: ir.Module
    function: ir.Function | None = None
    env: dict[str, Value] = field(default_factory=dict)
    cls: ClassRef | None = None
    shared: dict[str, str] = field(default_factory=dict)
    calls: tuple[int, ...] = ()
    live: frozenset[str] | None = None

    def copy(self) -> Frame:
        return Frame(self.module, self.function, dict(self.env), self.cls, dict(self.shared), self.calls, self.live)


@dataclass(slots=True)
class World:
    """``heap``: attributes of instances and of symbols; ``globals``: module-level names by (path, name).

    ``stamp`` names the iteration of the loops around, ``no_grad`` counts entered no_grad regions, ``inference`` those
    of inference mode, ``veiled`` contexts that may be anything. ``left`` is the last early return or continue, with the
    trail as it was there; ``rounds`` are the trails where each loop's round began.
    ``dead``: torch has refused a call, and the program with it. ``cases``: where paths have met, what each of them had
    decided; one of these holds (none: nothing is known). Thus ``if a and b`` takes the same arm the next time, though
    it was false on one path for want of a and on the other for want of b. ``deciding`` are the names whose truth may
    choose a path that matters. ``limits`` is one for all paths of an entry.

    Worlds share what they have in common: ``heap`` and ``globals`` are never changed in place, and of the frames only
    the last one is. The first ``borrowed`` frames belong to the world that this one was forked from.
    """

    frames: list[Frame] = field(default_factory=list)
    heap: Mapping[tuple[Hashable, str], Value] = field(default_factory=dict)
    globals: Mapping[tuple[str, str], Value] = field(default_factory=dict)
    state: State = field(default_factory=State)
    flags: dict[str, bool] = field(default_factory=dict)
    trail: Trail[Place] | None = None
    stamp: tuple[int, ...] = ()
    no_grad: int = 0
    inference: int = 0
    veiled: int = 0
    left: tuple[Place, Trail[Place] | None] | None = None
    rounds: tuple[Trail[Place] | None, ...] = ()
    dead: bool = False
    cases: tuple[Case, ...] = ()
    deciding: Deciding = field(default_factory=Deciding)
    limits: Limits = field(default_factory=Limits)
    borrowed: int = 0

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def identity(self, at: int) -> Hashable:
        """What is built here, told from what the same code builds in another round or for another caller."""
        return (self.frame.module.path, at, self.stamp, self.frame.calls)

    @property
    def env(self) -> dict[str, Value]:
        return self.frames[-1].env

    def put(self, owner: Hashable, name: str, value: Value) -> None:
        """Set an attribute of an instance or of a symbol."""
        self.heap = {**self.heap, (owner, name): value}

    def put_global(self, path: str, name: str, value: Value) -> None:
        self.globals = {**self.globals, (path, name): value}

    def back_to(self, depth: int) -> None:
        """Leave the frames above the first ``depth``; what is the last one now is this world's own."""
        self.frames = self.frames[:depth]
        if self.borrowed >= depth:
            self.own_frame()

    def own_frame(self) -> None:
        """Take a copy of the last frame, so that no other world sees what is set in it."""
        self.frames = [*self.frames[:-1], self.frame.copy()]
        self.borrowed = min(self.borrowed, len(self.frames) - 1)

    def fork(self) -> World:
        return World(
            [*self.frames[:-1], self.frame.copy()],
            self.heap,
            self.globals,
            self.state,
            dict(self.flags),
            self.trail,
            self.stamp,
            self.no_grad,
            self.inference,
            self.veiled,
            self.left,
            self.rounds,
            self.dead,
            self.cases,
            self.deciding,
            self.limits,
            len(self.frames) - 1,
        )

    def standing(self) -> Hashable:
        """What the state machine says, without what happened at all."""
        return (self._protocol(), self.stamp)

    def _protocol(self) -> Hashable:
        """What the state machine says, in whichever round of the loops around."""
        state = self.state
        known = (state.owners, state.phases, state.left, state.links, state.scalers, state.stepped_by, state.regions)
        return (
            known,
            state.whole,
            state.parts,
            state.reads,
            state.strangers,
            state.unknown_stepped,
            state.stepped,
            state.trained,
            state.blind,
            self.no_grad,
            self.inference,
            len(self.frames),
        )

    def outlook(self) -> Hashable:
        """All that can tell this path from another one in time to come, but the round and what was decided."""
        told: list[Hashable] = [self._protocol()]
        told += (_telling(frame.env, self.deciding.local(frame.function), frame.live) for frame in self.frames)
        told.append(_telling(self.heap, self.deciding.attributes))
        own = self.frames[0]
        live = own.live if own.function is None else None
        told.append(_telling(self.globals, self.deciding.globals, live, own.module.path))
        return tuple(told)

    def settled(self) -> frozenset[tuple[str, bool]]:
        """What was decided for good, and not for the round of a loop alone."""
        return frozenset(item for item in self.flags.items() if "@" not in item[0])

    def absorb(self, other: World) -> None:
        """Take in a world that differs only in what is data: this becomes either of both."""
        mine, theirs = self.state, other.state
        if mine is not theirs and (mine.ever != theirs.ever or mine.lowered != theirs.lowered):
            lowered = tuple(pair for pair in mine.lowered if pair in theirs.lowered)
            self.state = replace(mine, ever=mine.ever | theirs.ever, lowered=lowered)
        common = {key: value for key, value in self.flags.items() if other.flags.get(key) is value}
        self.cases = simplified({*self._beyond(common), *other._beyond(common)})
        self.flags = common
        for number, (frame, twin) in enumerate(zip(self.frames, other.frames)):
            if frame is not twin:
                own = self.frames[number] = frame if frame is self.frame else frame.copy()
                own.env.update(_differing(frame.env, twin.env))
        self.heap = blended(self.heap, other.heap)
        self.globals = blended(self.globals, other.globals)

    def decided(self) -> frozenset[str]:
        """The conditions of which something is known."""
        return frozenset(self.flags).union(key for case in self.cases for key, _ in case)

    def retain(self, known: frozenset[str]) -> None:
        """Forget all conditions but those that are ``known``."""
        self.flags = {key: value for key, value in self.flags.items() if key in known}
        if self.cases:
            self.cases = simplified({frozenset(item for item in case if item[0] in known) for case in self.cases})

    def _beyond(self, common: dict[str, bool]) -> list[Case]:
        """What this path knows besides what is common."""
        own = frozenset(self.flags.items() - common.items())
        return [case | own for case in self.cases] or [own]

    def condition_key(self, condition: Condition) -> str:
        return f"{condition.key}@{self.stamp}" if condition.volatile else condition.key

    def known(self, condition: Condition) -> bool | None:
        """How a condition was decided on this path, if it was."""
        key = self.condition_key(condition)
        if self.limits.asked is not None:
            self.limits.asked.add(key)
        found = told(key, self.flags)
        if found is None and self.cases:
            found = self._agreed(key)
        return None if found is None else found is not condition.negated

    def all_decided(self) -> Iterator[tuple[str, bool]]:
        """All conditions that were decided, for those who look through them."""
        if self.limits.asked is not None:
            self.limits.asked.add(ANY)
        yield from self.flags.items()

    def decided_in_round(self) -> Iterator[str]:
        """The conditions that were decided for this round of the innermost loop alone."""
        found = [key for key in self.flags if key.endswith(f"@{self.stamp}")]
        if self.limits.asked is not None:
            self.limits.asked.add(f"@{self.stamp}")
        yield from found

    def _agreed(self, key: str) -> bool | None:
        """What all cases say of a condition."""
        said: bool | None = None
        for case in self.cases:
            found = told(key, {**self.flags, **dict(case)})
            if found is None or said not in (None, found):
                return None
            said = found
        return said

    def decide(self, condition: Condition, truth: bool) -> None:
        key, value = self.condition_key(condition), truth is not condition.negated
        self.flags[key] = value
        if value and self.deciding.exclusive:
            base, _, name = key.rpartition(".")
            for other in self.deciding.exclusive.get(name, ()):
                self.flags.setdefault(f"{base}.{other}", False)
        if self.cases:
            self.cases = tuple(case for case in self.cases if told(key, dict(case)) is not (not value))
            if len(self.cases) == 1:
                self.flags.update(self.cases[0])
                self.cases = ()


def split(world: World, value: Value) -> list[tuple[bool, World]]:
    """The truth of a value: one world when it is known, else two, each with the condition decided."""
    condition = truth_of(value)
    if isinstance(condition, bool):
        return [(condition, world)]
    known = world.known(condition)
    if known is not None:
        return [(known, world)]
    other = world.fork()
    world.decide(condition, True)
    other.decide(condition, False)
    return [(True, world), (False, other)]


def truth_of(value: Value) -> bool | Condition:
    if isinstance(value, Literal):
        return bool(value.value)
    if isinstance(value, Condition):
        return value
    if isinstance(value, _ALWAYS_TRUE):
        return True
    if isinstance(value, Items):
        return bool(value.items)
    if isinstance(value, Table) and not value.open:
        return bool(value.items)
    if isinstance(value, External):
        return is_there(value) or Condition(value.dotted)
    if isinstance(value, Symbol):
        return Condition(value.key, volatile=value.volatile)
    return Condition(short(f"truth of {key_of(value)}"), volatile=True)


def merge(worlds: Iterable[World]) -> list[World]:
    """Worlds that agree in all but decided conditions become one. Of those that are still too many, some go on: first
    one for each state of the protocol, then further ones of each. A path that goes on is a real one, whatever is left.
    """
    kept: dict[Hashable, list[World]] = {}
    groups: dict[Hashable, list[World]] = {}  # the same by the identity of states, most of which are shared
    for world in worlds:
        around = (id(world.state), world.stamp, world.no_grad, world.inference, len(world.frames))
        if around not in groups:
            groups[around] = kept.setdefault(world.standing(), [])
        groups[around].append(world)
    for standing, group in kept.items():
        if len(group) > 1:
            kept[standing] = _joined(group)
    merged = [world for group in kept.values() for world in group]
    limits = merged[0].limits if merged else Limits()
    limits.widest = max(limits.widest, len(merged))
    if len(merged) <= limits.width:
        return merged
    limits.cut += len(merged) - limits.width
    turns = itertools.zip_longest(*kept.values())
    return [world for turn in turns for world in turn if world is not None][: limits.width]


def settle_volatile(worlds: list[World], before: frozenset[str]) -> list[World]:
    """At the end of a loop: worlds that differ only in conditions that change from round to round become one.

    Which of these conditions held last is not known after the loop, so nothing may be concluded from it. ``before``
    are the conditions decided before the loop, which stay. The worlds have left the loop.
    """

    def lasts(key: str, depth: int) -> bool:
        return "@" not in key and rounds_of(key) <= depth

    alike: dict[Hashable, list[World]] = {}
    for world in worlds:
        depth = len(world.stamp)
        world.flags = {key: value for key, value in world.flags.items() if key in before or lasts(key, depth)}
        lasting = {frozenset(item for item in case if lasts(item[0], depth)) for case in world.cases}
        world.cases = simplified(lasting)
        alike.setdefault(frozenset(world.flags.items()), []).append(world)
    return [group[0] if len(group) == 1 else melt(group) for group in alike.values()]


def melt(worlds: list[World]) -> World:
    """One world that knows only what all of them share."""
    first, *rest = worlds
    melted = first.fork()
    for world in rest:
        melted.state = join(melted.state, world.state)
        melted.frames = [
            mine if mine is other else replace(mine, env=dict(_shared(mine.env, other.env)))
            for mine, other in zip(melted.frames, world.frames)
        ]
        melted.heap = _shared(melted.heap, world.heap)
        melted.globals = _shared(melted.globals, world.globals)
        melted.cases = ()
        melted.flags = {key: value for key, value in melted.flags.items() if world.flags.get(key) is value}
    return melted


def _shared(one: Mapping[K, Value], two: Mapping[K, Value]) -> Mapping[K, Value]:
    if one is two:
        return one
    return {key: either(value, two[key]) if key in two else value for key, value in one.items()}


def blended(mine: Mapping[K, Value], other: Mapping[K, Value]) -> Mapping[K, Value]:
    """Names that hold different things in two worlds hold either."""
    differing = {} if mine is other else _differing(mine, other)
    return {**mine, **differing} if differing else mine


def _differing(mine: Mapping[K, Value], other: Mapping[K, Value]) -> dict[K, Value]:
    """What the names hold that do not hold the same in two worlds: either, or what only the other one has."""
    return {
        key: value if own is None else either(own, value)
        for key, value in other.items()
        if (own := mine.get(key)) is not value
    }


def _joined(worlds: list[World]) -> list[World]:
    """Worlds of one standing, of which those become one that differ only in decided conditions, in the way here and in
    what is only data. What tells are identities, what carries a scale, and switches that choose a path.
    """
    telling: list[list[Hashable]] = [[] for _ in worlds]
    first = worlds[0]
    for depth, frame in enumerate(first.frames):
        envs = [world.frames[depth].env for world in worlds]
        _compare(envs, first.deciding.local(frame.function), telling, _live(worlds, depth))
    told = first.limits.told
    _compare([world.heap for world in worlds], first.deciding.attributes, telling, told=told)
    own = first.frames[0]
    live = None if own.function is not None else _live(worlds, 0)
    _compare([world.globals for world in worlds], first.deciding.globals, telling, live, own.module.path, told)
    kept: dict[Hashable, World] = {}
    for world, outline in zip(worlds, telling):
        same = kept.setdefault(tuple(outline), world)
        if same is not world:
            same.absorb(world)
    return list(kept.values())


def _live(worlds: list[World], depth: int) -> frozenset[str] | None:
    """The names of a frame that one of the worlds may still read; None: any."""
    found = {world.frames[depth].live for world in worlds}
    return found.pop() if len(found) == 1 else None


def _compare(
    names: Sequence[Mapping[K, Value]],
    deciding: Choosing | None,
    telling: list[list[Hashable]],
    live: frozenset[str] | None = None,
    path: str | None = None,
    told: Told | None = None,
) -> None:
    """Add to each world's list what its names hold that tells, if not all of them hold the same.

    ``live`` are those that may still be read, of the module at ``path`` if one is given; None: any. ``told``: what was
    found before of names that are never changed in place.
    """
    if all(other is names[0] for other in names):
        return
    key = (path, live, *map(id, names))
    found = told.get(key) if told is not None else None
    if found is None:
        found = names, _tellings(names, deciding, live, path)
        if told is not None:
            if len(told) >= MOST_TOLD:
                told.clear()
            told[key] = found
    for outlines, outline in zip(telling, found[1]):
        outlines.append(outline)


def _tellings(
    names: Sequence[Mapping[K, Value]], deciding: Choosing | None, live: frozenset[str] | None, path: str | None
) -> list[Hashable]:
    first, differing = names[0], set[K]()
    for other in names:
        if other is not first:
            differing.update([name for name, value in other.items() if first.get(name) is not value])
            differing.update(first.keys() - other.keys())
    if live is not None:
        differing = {name for name in differing if _lives(name, live, path)}
    return [_telling({name: own[name] for name in differing if name in own}, deciding) for own in names if differing]


def _telling(
    held: Mapping[K, Value],
    deciding: Choosing | None,
    live: frozenset[str] | None = None,
    path: str | None = None,
) -> Hashable:
    """What some names hold that tells one path from another."""
    return frozenset(
        (name, _outline(value))
        for name, value in held.items()
        if (live is None or _lives(name, live, path)) and _tells(name, value, deciding)
    )


def _lives(key: Hashable, live: frozenset[str], path: str | None) -> bool:
    """Whether a name may still be read. Other modules' names may, and so may the values of expressions (``=17``)."""
    if isinstance(key, tuple):
        owner, name = key
        return owner != path or not name.isidentifier() or name in live
    return key in live


_DEVICES = frozenset({*DEFAULT_DTYPES, "meta"})


def _tells(key: Hashable, value: Value, deciding: Choosing | None) -> bool:
    name = key[-1] if isinstance(key, tuple) else key
    if name == MADE_OF:
        return False
    spelt = name[2:-2] if isinstance(name, str) and name.startswith("['") else name
    if is_data(value):
        parts = [item for _, item in value.items] if isinstance(value, Table) else [value]
        return deciding is not None and spelt in deciding.words and any(map(_speaks, parts))
    if deciding is None or not isinstance(value, (Literal, Condition)):
        return True
    return spelt in deciding or (isinstance(spelt, str) and spelt.startswith(("#", "[")))


def _speaks(value: Value) -> bool:
    """Whether a value is a word by which code may go on. On which device it is, no rule asks."""
    word = value.value if isinstance(value, Literal) else None
    return is_word(word) and not (isinstance(word, str) and word.partition(":")[0] in _DEVICES)


def _outline(value: Value) -> Value:
    """A tensor without what it leads back to and its divisors, which are joined where worlds meet; a dict without what
    is only data.
    """
    if isinstance(value, Table):
        return replace(value, items=tuple(each for each in value.items if _speaks(each[1]) or not is_data(each[1])))
    return (
        replace(value, owners=frozenset(), divided=frozenset(), ran=frozenset(), cut=False)
        if isinstance(value, Tensor)
        else value
    )


def is_data(value: Value) -> bool:
    """Whether a value tells no path from another: numbers, texts, tensors of which nothing is known."""
    if isinstance(value, Symbol):
        return True
    if isinstance(value, Literal):
        return value.kind in ("int", "float", "str") and value.value != 0
    if isinstance(value, Tensor):
        return value.scaled is None and value.dtype is None and not value.doubt and not value.leaf
    if isinstance(value, Items):
        return all(map(is_data, value.items))
    if isinstance(value, Method):
        return value.name == "*" and is_data(value.base)  # the items of something unknown, in a display
    if isinstance(value, Scale):
        return True
    return isinstance(value, Table) and all(is_data(item) for _, item in value.items)


def either(one: Value, two: Value) -> Value:
    """A value that may be either of two: what they have in common, else something unknown."""
    if one == two:
        return one
    if isinstance(one, Tensor) and _is_number(two):
        return one  # a sum that begins with 0 and got no term on one of the paths: it leads back to nothing there
    if isinstance(two, Tensor) and _is_number(one):
        return two
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        doubt = one.doubt or two.doubt or one.scaled != two.scaled
        same = one.dtype == two.dtype
        return Tensor(
            one.owners | two.owners,
            one.dtype if same else None,
            None if doubt else one.scaled,
            doubt,
            one.leaf and two.leaf,
            divided=one.divided | two.divided,
            ran=one.ran | two.ran,
            plain=one.plain and two.plain,
        )
    if isinstance(one, Instance) and isinstance(two, Instance) and one.model and two.model:
        return Instance(_one_of(one.id, two.id), None, True)
    if isinstance(one, Table) and isinstance(two, Table):
        other = dict(two.items)
        return Table(tuple((key, either(item, other[key])) for key, item in one.items if key in other), True)
    if isinstance(one, Symbol) and two == _NOTHING:
        return one  # settings or {}: what is asked of the empty dict is as good as asked of settings that lack it
    if isinstance(two, Symbol) and one == _NOTHING:
        return two
    giver = one.giver if isinstance(one, Symbol) and isinstance(two, Symbol) and one.giver == two.giver else None
    return Symbol(short(f"either({key_of(one)},{key_of(two)})"), giver=giver)


_NOTHING = Table()
_ONE_OF = "one of"


def _one_of(*identities: Hashable) -> Hashable:
    """The identity of what is one of some models, whichever was built."""
    found: set[Hashable] = set()
    for identity in identities:
        several = isinstance(identity, tuple) and identity[:1] == (_ONE_OF,)
        found.update(identity[1:] if isinstance(identity, tuple) and several else (identity,))
    return (_ONE_OF, *sorted(found, key=label))


def _is_number(value: Value) -> bool:
    return isinstance(value, Literal) and value.kind in ("int", "float")
