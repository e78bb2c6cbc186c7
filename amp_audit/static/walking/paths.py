"""The entries of a project -> findings: scripts are walked from the top, functions that nothing calls by themselves."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from amp_audit import events
from amp_audit.hazards import Happened, Hazard, Trail, Watch, bounds, give_way, standing
from amp_audit.model import Confidence
from amp_audit.records import record, replace
from amp_audit.rulebook import Rulebook
from amp_audit.state import between_calls, forget
from amp_audit.static.binding.incoming import Incoming
from amp_audit.static.binding.project import ClassRef, Project
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.source import ir
from amp_audit.static.walking.calls import parameter
from amp_audit.static.walking.deciding import Deciding, Readings
from amp_audit.static.walking.fuel import (
    FUEL,
    LEAST_FUEL,
    NARROW,
    PLENTY,
    PROJECT_FUEL,
    SCALER_FUEL,
    SHARE,
    OutOfFuel,
)
from amp_audit.static.walking.hot import Heat
from amp_audit.static.walking.inits import Inits
from amp_audit.static.walking.liveness import Liveness
from amp_audit.static.walking.means import Means, of_word
from amp_audit.static.walking.reach import Reach, Start
from amp_audit.static.walking.repeats import Companions, repeated
from amp_audit.static.walking.values import Func, Instance, Literal, Value
from amp_audit.static.walking.walk import Walker
from amp_audit.static.walking.world import Frame, Limits, Place, World, melt, merge

MAX_STARTS = 4


WIDTHS = (64, 16, 4)
"""How many paths are followed side by side, in one attempt after the other, until an entry is walked to its end. A
width that would leave out less than half of the paths is passed over."""

ROOM = 60_000
"""How many pieces of code all settings together may be made of: each takes as long to make as it has."""

_SPOKEN = {
    "scale": ("scale", "backward.scaled"),
    "scale_loss": ("scale", "backward.scaled", "unscale"),
    "unscale_": ("unscale",),
    "update": ("update",),
    "step": ("step.scaler", "step.framework"),
}
"""What a call by that name may do on a path that was left out."""


_STEPS = re.compile(r"optim|scaler", re.IGNORECASE)
"""What steps, and what is updated after it, by the words for them."""

_BEGINS_OR_ENDS = frozenset({events.Kind.SCALER_NEW, events.Kind.OPTIMIZER_NEW, events.Kind.ITERATION_END})
"""What code does that trains from the beginning, or more than one iteration."""

_UNSCALES = frozenset({"unscale_", "unscale", "unscale_grads", "unscale_gradients", "get_scale", "inv_scale"})
"""Words of code that divides gradients by the loss scale, or multiplies a limit with it."""

_HALVES = frozenset(
    {"half", "float16", "bfloat16", "HalfTensor", "MixedPrecision", "MixedPrecisionPolicy", "fully_shard"}
    | {"apex", "deepspeed", "accelerate", "Accelerator", "Fabric", "LightningModule", "torch_xla"}
)
"""Words of code that may compute in half precision without a region."""


@dataclass(slots=True)
class Entry:
    """What the walks of one entry met: its hazards, what happened, the files it went through.

    ``note`` says what was not followed; then ``happened`` holds what may have happened there as well.
    """

    hazards: list[Hazard[Place]]
    happened: Happened
    paths: set[str]
    note: str | None = None


@record(frozen=True, slots=True)
class Setting:
    """What a walk goes by: which code matters, and which names decide. Both go by names, so that less of a project says
    more: a method of another program is not meant."""

    heat: Heat
    deciding: Deciding


@dataclass(slots=True)
class Survey:
    """All entries of a project, walked."""

    entries: list[Entry] = field(default_factory=list)
    followed: set[tuple[str, int]] = field(default_factory=set)
    visits: Counter[tuple[str, int]] = field(default_factory=Counter)
    fuel: int = PROJECT_FUEL


def find(project: Project, book: Rulebook, asked: Set[str] | None = None) -> tuple[list[RawFinding], list[str]]:
    """Findings of the rules' event detectors on all paths, and what could not be walked to the end. Of those outside of
    the files asked for (None: all), there may be some or none.
    """
    survey = _Surveyor(project, book).survey(asked)
    return list(_findings(survey.entries)), [entry.note for entry in survey.entries if entry.note]


@record(frozen=True, slots=True)
class _Attempt:
    """One walk of an entry; ``ends`` is None where the ``fuel`` was not enough."""

    walker: Walker
    limits: Limits
    fuel: int
    ends: list[World] | None

    def seen(self) -> set[tuple[str, int]]:
        """The functions that need no walk of their own. Where few paths were followed, most of what a function does may
        have been cut; but one that a single path came to, as ``main``, was walked as it would be by itself.
        """
        if self.limits.width == WIDTHS[0] or not self.limits.cut:
            return self.walker.followed
        return {function for function, times in self.walker.entered.items() if times == 1}

    def blank(self) -> bool:
        """Whether nothing happened as far as it went: it may be that nothing ever does."""
        return not self.walker.happened.words()

    def would_repeat(self, width: int, fuel: int) -> bool:
        """Whether a walk of ``width`` would be the same: there never were more paths, the same calls are followed."""
        return fuel <= self.fuel and self.limits.widest <= width and self.walker.would_repeat()

    def is_much_wider(self, width: int) -> bool:
        """Whether a walk of ``width`` would have much less to do."""
        return self.limits.widest >= 2 * width


class _Surveyor:
    """Walks the entries of a project one after the other."""

    def __init__(self, project: Project, book: Rulebook) -> None:
        self.project = project
        self.modules = list(project.modules.values())
        self.heat = Heat(self.modules, self._functions(self.modules))
        self.readings = Readings()
        self.starts: dict[str, list[Start]] = {}
        self.settings: dict[str, Setting] = {}
        self.room = ROOM
        self.watch: Watch[Place] = Watch(book, "static")
        scaling = sum("GradScaler" in module.words for module in self.modules)
        self.done = Survey(fuel=PROJECT_FUEL + SCALER_FUEL * scaling)
        self.reach = Reach(project, self.heat, book)
        self.bases: dict[str, World] = {}
        self.inits = Inits()
        self.liveness = Liveness()
        self.known = _spoken_of(frozenset().union(*(module.words for module in self.modules)))
        self.known |= bounds(book, "static", project.newest.torch)

    @cached_property
    def repeated(self) -> dict[str, set[Companions]]:
        """By method, what else loops call on its object; of interest where an entry goes backward, which few do."""
        found: dict[str, set[Companions]] = {}
        for module in self.modules:
            for name, companions in repeated(module):
                found.setdefault(name, set()).add(companions)
        return found

    def survey(self, asked: Set[str] | None = None) -> Survey:
        """Walk the entries that may end in a hazard in the files asked for, then those that have a say in whether one
        stands.
        """
        scripts: list[Start] = [(module, None, None) for module in self.modules]
        orphans = [(module, *orphan) for module in self.modules for orphan in self._orphans(module)]
        orphans.sort(key=lambda orphan: not self.heat.itself(orphan[1]))
        if asked is not None and asked >= self.project.modules.keys():
            asked = None
        hazardous, idle = list[Start](), list[Start]()
        starts = [*scripts, *orphans]
        for start, wanted in zip(starts, self._wanted(starts, asked)):
            (hazardous if wanted else idle).append(start)
        for start in hazardous:
            self.starts.setdefault(start[0].path, []).append(start)
        for start in hazardous:
            self._walk(*start)
        for entry in list(self.done.entries):
            self._consult(entry, idle)
        return self.done

    def _functions(self, modules: Iterable[ir.Module]) -> list[ir.Function]:
        return [function for module in modules for function, _ in self.project.definitions(module)]

    def setting(self, module: ir.Module) -> Setting:
        """That of a module's entries that may end in a hazard, which begin with what its own code leaves. Those that
        only have a say in whether one stands go by it, too."""
        found = self.settings.get(module.path)
        if found is None:
            found = self.settings[module.path] = self._setting(self.starts.get(module.path, [(module, None, None)]))
        return found

    def _setting(self, starts: Sequence[Start]) -> Setting:
        met = self.reach.functions(starts, self.room)
        if met is None:
            return self.whole
        functions, paths = met
        self.room -= len(functions)
        heat = self.heat.within(functions)
        return Setting(heat, self.readings.deciding([each for each in self.modules if each.path in paths], heat))

    @cached_property
    def whole(self) -> Setting:
        """That of walks which may go anywhere that any may go."""
        reached = self.reach.paths(start for starts in self.starts.values() for start in starts)
        return Setting(
            self.heat, self.readings.deciding([each for each in self.modules if each.path in reached], self.heat)
        )

    def _orphans(self, module: ir.Module) -> list[tuple[ir.Function, ClassRef | None]]:
        """Hot functions and methods, those first that no other one mentions."""
        heat = self.heat
        hot = [(f, c) for f, c in self.project.definitions(module) if heat.function(f) and not heat.spectates(f)]
        found = [(f, ClassRef(module, c) if c else None) for f, c in hot]
        mentioned = frozenset().union(*(f.words for f, _ in found)) if found else frozenset()
        return sorted(found, key=lambda pair: (pair[0].name in mentioned, pair[0].name == "__init__", pair[0].at))

    def _wanted(self, starts: list[Start], asked: Set[str] | None) -> list[bool]:
        """Which entries may end in a hazard and go through the files asked for."""
        if asked is None:
            return self.reach.hazardous(starts)
        incoming = Incoming(self.project, asked)
        near = [start for start in starts if incoming.has(start[0], start[1])]
        hazardous = [start for start, may in zip(near, self.reach.hazardous(near)) if may]
        through = {id(start) for start, goes in zip(hazardous, self.reach.through(hazardous, asked)) if goes}
        return [id(start) in through for start in starts]

    def _walk(self, module: ir.Module, function: ir.Function | None, cls: ClassRef | None) -> None:
        """Walk an entry, unless another one went through it."""
        if function is None:
            self._base(module)
        elif (module.path, function.at) not in self.done.followed:
            self.walk_orphan(module, function, cls, self._base(module))

    def _consult(self, asking: Entry, idle: list[Start]) -> None:
        """Walk entries that end in no hazard, where those of another one ask whether something happens there."""
        asked = _asked(asking)
        for start in idle if asked else ():
            means, paths = self.reach.may_come_to(start)
            if any(each & ~means == 0 for each in asked) and not asking.paths.isdisjoint(paths):
                self._walk(*start)

    def _base(self, module: ir.Module) -> World:
        """What a module's own code leaves, which is walked once."""
        if module.path not in self.bases:
            self.bases[module.path] = self.walk_module(module)
        return self.bases[module.path]

    def walk_module(self, module: ir.Module) -> World:
        """Run a module's own code as a script; returns what its names hold in the end."""

        def start() -> World:
            world = World([Frame(module)], deciding=self.setting(module).deciding)
            world.put_global(module.path, "__name__", Literal.of("__main__"))
            return world

        def run(walker: Walker, world: World) -> list[World]:
            ends = walker.block(module.body, [world]).fall
            for end in ends:
                walker.emit(end, events.Event(events.Kind.PROGRAM_END), 0)
            return ends

        ends = self._attempt(module, "its own code", start, run)
        return melt(ends) if ends else start()

    def walk_orphan(self, module: ir.Module, function: ir.Function, cls: ClassRef | None, base: World) -> None:
        """Walk a function that nothing in the project calls, with unknown arguments and nothing known of gradients."""

        def start() -> World:
            world = base.fork()
            world.state, world.trail, world.flags = replace(forget(base.state), regions=()), None, {}
            world.frames, world.limits = [Frame(module)], Limits()
            return world

        def run(walker: Walker, world: World) -> list[World]:
            for bound, each in self._selves(walker, module, function, cls, world):
                func = Func(module, function, bound, {}, cls)
                before = each.trail
                ends = merge(_follow_blindly(walker, func, each))
                looped = "backward" in walker.happened.words() and self._repeats(function, cls)
                steps = [] if looped else [step for end in ends for step in _whole_step(end, before)]
                handed = any(_is_handed(step, func) for step in steps)
                for end in ends if looped or steps else ():
                    if handed and "stepped" in dict(end.state.phases).values():
                        continue  # who handed the optimizer over may call again before the update
                    walker.end_iteration((module.path, function.at), end)
                    if handed:
                        continue
                    if not looped:
                        end.state = between_calls(end.state)
                    end.stamp = (1,)
                    _follow_blindly(walker, func, end)
            return []

        self._attempt(module, function.qualname, start, run)

    def _repeats(self, function: ir.Function, cls: ClassRef | None) -> bool:
        """Whether a loop calls this method and no other one of the object that could come in between."""
        if cls is None or function.name not in self.repeated:
            return False
        methods = self.project.methods(cls).items()
        own = {name for name, (_, found) in methods if self.heat.function(found) and _is_of_a_step(found.words)}
        return any(own.isdisjoint(companions) for companions in self.repeated[function.name])

    def _selves(
        self, walker: Walker, module: ir.Module, function: ir.Function, cls: ClassRef | None, start: World
    ) -> Iterator[tuple[Instance | None, World]]:
        """The objects a method may be called on: what ``__init__`` leaves, on each of its paths."""
        if cls is None or _unbound(function):
            yield None, start
            return
        identity = (module.path, cls.cls.at, ())
        instance = Instance(identity, cls, self.project.is_subclass(cls, "torch.nn.Module"))
        if function.name == "__init__":
            yield instance, start
            return
        init = self.project.methods(cls).get("__init__")
        worlds = [start]
        if init is not None:
            func = Func(init[0].module, init[1], instance, {}, init[0])
            worlds = self.inits.worlds(
                cls, walker, self.done.visits, start.limits, lambda: merge(_follow_blindly(walker, func, start))
            )
        for world in worlds[:MAX_STARTS]:
            world.state = replace(forget(world.state), regions=())
            yield instance, world

    def _attempt(
        self,
        module: ir.Module,
        name: str,
        start: Callable[[], World],
        run: Callable[[Walker, World], list[World]],
    ) -> list[World]:
        """Walk an entry, ever fewer paths at a time until there is fuel enough; what an attempt met stands."""
        entry = Entry([], Happened(), {module.path})
        entry.happened.know(self.known)
        last: _Attempt | None = None
        for width in WIDTHS:
            if last is not None and width != WIDTHS[-1] and (last.blank() or not last.is_much_wider(width)):
                continue
            fuel, spare = self._fuel(last)
            if last is not None and last.would_repeat(width, fuel + spare):
                self.done.visits.update(last.walker.came)
                continue
            last = self._walked(module, Limits(width), fuel, spare, start, run, entry)
            self.done.fuel -= last.fuel - last.walker.spare - max(0, last.walker.fuel)
            if last.ends is not None:
                self.done.followed |= last.seen()
                break
        assert last is not None
        entry.note = _note(module, name, last)
        if entry.note is not None:
            self._doubt(entry)
        self.done.entries.append(entry)
        return last.ends or []

    def _fuel(self, last: _Attempt | None) -> tuple[int, int]:
        """What an attempt may spend: the usual, and several times that if the project has plenty and none found many
        paths."""
        usual = min(FUEL, max(LEAST_FUEL, self.done.fuel))
        if last is not None and last.limits.widest > NARROW:
            return usual, 0
        return usual, max(0, min(FUEL * PLENTY, self.done.fuel // SHARE) - usual)

    def _walked(
        self,
        module: ir.Module,
        limits: Limits,
        fuel: int,
        spare: int,
        start: Callable[[], World],
        run: Callable[[Walker, World], list[World]],
        entry: Entry,
    ) -> _Attempt:
        """Walk an entry and take in what was met, be it that the fuel was not enough."""
        heat = self.setting(module).heat
        walker = Walker(self.project, self.watch, heat, module.path, self.done.visits, self.liveness)
        walker.fuel, walker.spare, walker.width, walker.thrifty = fuel, spare, limits, fuel < FUEL
        world = start()
        world.limits = limits
        try:
            ends: list[World] | None = run(walker, world)
        except OutOfFuel:
            ends = None
        entry.hazards += walker.hazards
        entry.happened.include(walker.happened)
        entry.paths |= {followed for followed, _ in walker.followed}
        return _Attempt(walker, limits, fuel + spare, ends)

    def _doubt(self, entry: Entry) -> None:
        """What may happen on the paths that were left out cannot be said to happen nowhere."""
        spoken = frozenset().union(*(self.project.modules[path].words for path in entry.paths))
        for name in spoken & _SPOKEN.keys():
            if name != "step" or self.heat.scales(spoken):
                entry.happened.allow(_SPOKEN[name])


def _whole_step(end: World, before: Trail[Place] | None) -> list[events.Event]:
    """The steps of a path that is one iteration from backward to update, of a scaler and an optimizer that were there
    before: such code is called again and again, whoever does it. Nothing for any other path.
    """
    steps = end.trail.back() if end.trail is not None else iter(())
    own = [step.event for step in itertools.takewhile(lambda step: step is not before, steps)]
    kinds = {event.kind for event in own}
    if not kinds.isdisjoint(_BEGINS_OR_ENDS) or not kinds >= {events.Kind.BACKWARD, events.Kind.UPDATE}:
        return []
    return [event for event in own if event.kind is events.Kind.STEP and event.via is events.Via.SCALER]


def _is_handed(step: events.Event, func: Func) -> bool:
    """Whether an optimizer comes from the arguments of a function: it may be another one each time."""
    return isinstance(step.optimizer, str) and parameter(func, "").key[:-1] in step.optimizer


def _is_of_a_step(words: frozenset[str]) -> bool:
    """Whether code that has these words may be a part of a training step; an evaluation is none."""
    if not words.isdisjoint(("backward", "unscale_", "zero_grad")):
        return True
    return not words.isdisjoint(("step", "update")) and any(map(_STEPS.search, words))


def _spoken_of(words: frozenset[str]) -> set[str]:
    """What a project does nowhere, by its words: half precision outside of regions, or at all; unscaling by itself."""
    halves = {"halves.in_regions"} if "autocast" in words else {"halves.in_regions", "halves.none"}
    return (set() if words & _HALVES else halves) | (set() if words & _UNSCALES else {"unscaling.none"})


def _note(module: ir.Module, name: str, attempt: _Attempt) -> str | None:
    """What an attempt did not follow of an entry."""
    if attempt.ends is not None and not attempt.limits.cut:
        return None
    left_out = (
        f"{attempt.limits.cut} of them were left out" if attempt.ends is not None else "it was not walked to the end"
    )
    return f"{module.path}: {name} has too many paths; {left_out}"


def _follow_blindly(walker: Walker, func: Func, world: World) -> list[World]:
    """Walk a function whose arguments are unknown; defaults are not taken, since callers may pass anything."""
    params = func.function.params[func.bound is not None :]
    args: list[Value] = [parameter(func, p.name) for p in params if p.kind == "positional"]
    named: dict[str, Value] = {p.name: parameter(func, p.name) for p in params if p.kind == "keyword"}
    return [after for _, after in walker.follow(func, func.function.at, args, named, world)]


def _unbound(function: ir.Function) -> bool:
    return any(isinstance(d, ir.Name) and d.id in ("staticmethod", "classmethod") for d in function.decorators)


def _findings(entries: list[Entry]) -> Iterator[RawFinding]:
    """Settle each entry's hazards; what is nowhere is looked for in the entry, or in all that share its files."""
    seen: dict[tuple[str, Place], RawFinding] = {}
    for entry in entries:
        if not entry.hazards:
            continue
        around = Happened()
        for other in entries:
            if other.paths & entry.paths:
                around.include(other.happened)
        closed = [hazard for hazard in entry.hazards if not _borrowed(hazard)]
        opened = [hazard for hazard in entry.hazards if _borrowed(hazard) and _in_sight(hazard, entry)]
        for hazard, losers in give_way(standing(closed, entry.happened) + standing(opened, around, any_scaler=True)):
            finding = _finding(hazard, losers)
            known = seen.get((hazard.rule.id, hazard.place))
            if known is None or known.confidence < finding.confidence:
                seen[(hazard.rule.id, hazard.place)] = finding
    yield from seen.values()


def _asked(entry: Entry) -> set[Means]:
    """What its hazards of things that were built out of sight ask of entries that share files with it."""
    words: set[str] = set()
    for hazard in entry.hazards:
        if _borrowed(hazard) and _in_sight(hazard, entry):
            words.update(hazard.detector.anywhere, hazard.detector.nowhere)
    return {of_word(word) for word in words if of_word(word)}


def _borrowed(hazard: Hazard[Place]) -> bool:
    """Whether it speaks of something that was built out of sight."""
    return any(isinstance(identity, str) for identity in hazard.about)


def _in_sight(hazard: Hazard[Place], entry: Entry) -> bool:
    """Whether absence says anything: code that is handed a scaler and trains nothing belongs to a loop elsewhere."""
    return not hazard.detector.nowhere or "backward" in entry.happened.words()


def _finding(hazard: Hazard[Place], gave_way: list[Hazard[Place]]) -> RawFinding:
    path, at = hazard.place
    steps = [RawStep(place[0], place[1], text) for place, text in hazard.steps]
    losers = [RawStep(h.place[0], h.place[1], h.rule.summary, h.rule.id) for h in gave_way]
    sure = not hazard.assumed and not _borrowed(hazard)
    return RawFinding(
        hazard.rule,
        path,
        at,
        hazard.detector.message,
        Confidence.HIGH if sure else Confidence.MEDIUM,
        hazard.detector.severity,
        tuple(steps + losers),
        hazard.facts,
    )
