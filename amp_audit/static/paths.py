"""The entries of a project -> findings: scripts are walked from the top, functions that nothing calls by themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from amp_audit import events
from amp_audit.hazards import Happened, Hazard, Watch, give_way, standing
from amp_audit.model import Confidence
from amp_audit.protocol import forget
from amp_audit.rulebook import Rulebook
from amp_audit.static import ir, walk
from amp_audit.static.calls import parameter
from amp_audit.static.deciding import Deciding, deciding
from amp_audit.static.hot import Heat, definitions
from amp_audit.static.project import ClassRef, Project
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.values import Func, Instance, Literal, Value
from amp_audit.static.walk import OutOfFuel, Walker
from amp_audit.static.world import Frame, Place, World, melt, merge

MAX_STARTS = 4


@dataclass(slots=True)
class Entry:
    """What one walk met: its hazards, what happened, the files it went through."""

    hazards: list[Hazard[Place]]
    happened: Happened
    paths: set[str]
    exhausted: str | None = None


@dataclass(slots=True)
class Survey:
    """All entries of a project, walked."""

    deciding: Deciding
    entries: list[Entry] = field(default_factory=list)
    followed: set[tuple[str, int]] = field(default_factory=set)
    visits: Counter[tuple[str, int]] = field(default_factory=Counter)
    fuel: int = walk.PROJECT_FUEL
    left_out: int = 0


def find(project: Project, book: Rulebook) -> tuple[list[RawFinding], list[str]]:
    """Findings of the rules' event detectors on all paths, and what could not be walked to the end."""
    modules = list(project.modules.values())
    heat = Heat(modules)
    watch: Watch[Place] = Watch(book, "static")
    survey = Survey(deciding(modules, heat))
    bases = {module.path: _walk_module(module, project, watch, heat, survey) for module in modules}
    orphans = [(module, function, cls) for module in modules for function, cls in _orphans(module, heat)]
    for module, function, cls in sorted(orphans, key=lambda orphan: not heat.itself(orphan[1])):
        if (module.path, function.at) in survey.followed:
            continue
        if survey.fuel <= 0:
            survey.left_out += 1
            continue
        _walk_orphan(module, function, cls, bases[module.path], project, watch, heat, survey)
    notes = [entry.exhausted for entry in survey.entries if entry.exhausted]
    if survey.left_out:
        notes.append(f"{survey.left_out} functions were not walked: the project has too many paths")
    return list(_findings(survey.entries)), notes


def _walker(project: Project, watch: Watch[Place], heat: Heat, module: ir.Module, survey: Survey) -> Walker:
    walker = Walker(project, watch, heat, module.path, survey.visits)
    walker.fuel = max(0, min(walk.FUEL, survey.fuel))
    survey.fuel -= walker.fuel
    return walker


def _walk_module(module: ir.Module, project: Project, watch: Watch[Place], heat: Heat, survey: Survey) -> World:
    """Run a module's own code as a script; returns what its names hold in the end."""
    world = World([Frame(module)], deciding=survey.deciding)
    world.globals[(module.path, "__name__")] = Literal.of("__main__")
    walker = _walker(project, watch, heat, module, survey)
    ends = [world]
    exhausted = None
    try:
        ends = walker.block(module.body, [world]).fall
        for end in ends:
            walker.emit(end, events.Event(events.Kind.PROGRAM_END), 0)
    except OutOfFuel:
        exhausted = f"{module.path}: too many paths; its own code was not walked to the end"
    _keep(walker, module.path, survey, exhausted)
    return melt(ends) if ends else world


def _walk_orphan(
    module: ir.Module,
    function: ir.Function,
    cls: ClassRef | None,
    base: World,
    project: Project,
    watch: Watch[Place],
    heat: Heat,
    survey: Survey,
) -> None:
    """Walk a function that nothing in the project calls, with unknown arguments and nothing known of gradients."""
    walker = _walker(project, watch, heat, module, survey)
    start = base.fork()
    start.state, start.trail, start.flags, start.frames = (
        replace(forget(base.state), regions=()),
        None,
        {},
        [Frame(module)],
    )
    exhausted = None
    try:
        for bound, world in _selves(walker, module, function, cls, start):
            func = Func(module, function, bound, {}, cls)
            _follow_blindly(walker, func, world)
    except OutOfFuel:
        exhausted = f"{module.path}: too many paths in {function.qualname}; it was not walked to the end"
    _keep(walker, module.path, survey, exhausted)


def _selves(
    walker: Walker, module: ir.Module, function: ir.Function, cls: ClassRef | None, start: World
) -> Iterator[tuple[Instance | None, World]]:
    """The objects a method may be called on: what ``__init__`` leaves, on each of its paths."""
    if cls is None or _unbound(function):
        yield None, start
        return
    identity = (module.path, cls.cls.at, ())
    instance = Instance(identity, cls, walker.project.is_subclass(cls, "torch.nn.Module"))
    if function.name == "__init__":
        yield instance, start
        return
    init = walker.project.methods(cls).get("__init__")
    worlds = [start]
    if init is not None:
        func = Func(init[0].module, init[1], instance, {}, init[0])
        worlds = merge(_follow_blindly(walker, func, start))
    for world in worlds[:MAX_STARTS]:
        world.state = replace(forget(world.state), regions=())
        yield instance, world


def _follow_blindly(walker: Walker, func: Func, world: World) -> list[World]:
    """Walk a function whose arguments are unknown; defaults are not taken, since callers may pass anything."""
    params = func.function.params[func.bound is not None :]
    args: list[Value] = [parameter(func, p.name) for p in params if p.kind == "positional"]
    named: dict[str, Value] = {p.name: parameter(func, p.name) for p in params if p.kind == "keyword"}
    return [after for _, after in walker.follow(func, func.function.at, args, named, world)]


def _unbound(function: ir.Function) -> bool:
    return any(isinstance(d, ir.Name) and d.id in ("staticmethod", "classmethod") for d in function.decorators)


def _orphans(module: ir.Module, heat: Heat) -> list[tuple[ir.Function, ClassRef | None]]:
    """Hot functions and methods, those first that no other one mentions."""
    found = [(f, ClassRef(module, c) if c else None) for f, c in definitions(module.body) if heat.function(f)]
    mentioned = frozenset().union(*(f.words for f, _ in found)) if found else frozenset()
    return sorted(found, key=lambda pair: (pair[0].name in mentioned, pair[0].name == "__init__", pair[0].at))


def _keep(walker: Walker, path: str, survey: Survey, exhausted: str | None) -> None:
    paths = {path, *(followed for followed, _ in walker.followed)}
    survey.fuel += max(0, walker.fuel)
    if exhausted is None:
        survey.followed |= walker.followed
    survey.entries.append(Entry(walker.hazards, walker.happened, paths, exhausted))


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
