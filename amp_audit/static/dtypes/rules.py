"""Which dtype a tensor has where, and the rules that ask for it.

The program is run abstractly (``walk``): first every function that enters a region, casts or trains, then the
``forward`` of each model that no such run came by, under the region in which the project trains. The rules' ``op``
detectors are held against the ops that were met on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from amp_audit.model import Confidence
from amp_audit.records import replace
from amp_audit.rulebook import Rulebook
from amp_audit.static.binding.incoming import Incoming
from amp_audit.static.binding.programs import Programs
from amp_audit.static.binding.project import ClassRef, Project
from amp_audit.static.dtypes import matching, trainings
from amp_audit.static.dtypes.inferred import only_inferred
from amp_audit.static.dtypes.told import Told
from amp_audit.static.dtypes.values import Region
from amp_audit.static.dtypes.walk import Walk
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.source import ir
from amp_audit.static.source.deep import with_deep_stack
from amp_audit.static.source.traverse import statements, words_in

_PRECISION_WORDS = frozenset(
    {"autocast", "half", "bfloat16", "float16", "custom_fwd", "set_default_dtype", "set_default_tensor_type"}
)
_TRAINING_WORDS = frozenset({"optim", "optimizer", "backward"})
_GIVES_NOTHING = frozenset({"backward", "step"})
"""What code says that trains in its region: nothing of low precision is left of that."""
_CHOOSY = frozenset(
    {"numpy", "quantile", "linalg", "inverse", "cholesky", "svd", "svd_lowrank", "pca_lowrank", "pinverse"}
)
"""Words of what takes no low precision at all."""
_HALVES = ("float16", "bfloat16")
_REGIONS = tuple(
    Region(device, frozenset({dtype}), None, assumed=True)
    for device in ("cuda", "cpu", "xpu", "mps")
    for dtype in _HALVES
)
"""Those in which a project may train."""
_MUCH = 4
"""Where code that may come to some files is less than the whole by this factor, it is run first, alone."""


def find(project: Project, book: Rulebook, asked: Set[str] | None = None) -> list[RawFinding]:
    """What the rules' ``op`` detectors say of a project, one finding per rule and place. Of places outside of the files
    asked for (None: all) there may be findings or none.
    """
    told = Told(project)
    if not told.regions and not any(_PRECISION_WORDS & module.words for module in project.modules.values()):
        return []
    if asked is not None and not asked >= project.modules.keys() and not _may_find(project, book, asked, told):
        return []
    reach = Programs(project)
    walk = with_deep_stack(lambda: _run(project, reach, told))
    best: dict[tuple[str, str, int], RawFinding] = {}
    low = reach.around(_low_modules(walk))
    for finding in (*matching.of_uses(walk.record, book, low), *trainings.of_casts(walk, book)):
        held = best.get(finding.key)
        if held is None or held.confidence < finding.confidence:
            best[finding.key] = finding
    shown = _once([*_settled([*best.values()])])
    return sorted(shown, key=lambda finding: (finding.path, finding.at, finding.rule.id))


def _once(found: list[RawFinding]) -> Iterator[RawFinding]:
    """One hazard, one finding: of what a rule says of one region (``facts["region"]``) the surest is told, of these
    the first met, and the others belong to it.
    """
    groups: dict[tuple[str, object], list[RawFinding]] = {}
    for number, finding in enumerate(found):
        groups.setdefault((finding.rule.id, finding.facts.get("region", number)), []).append(finding)
    for group in groups.values():
        first = max(group, key=lambda finding: finding.confidence)
        steps = [step for other in group if other is not first for step in (*_unseen(other, first), *other.related)]
        yield replace(first, related=tuple(dict.fromkeys((*first.related, *steps))))


def _unseen(other: RawFinding, first: RawFinding) -> tuple[RawStep, ...]:
    """``other`` as a step of a finding at another place."""
    op = str(other.facts["op"]).removesuffix("_")
    return (
        ()
        if (other.path, other.at) == (first.path, first.at)
        else (RawStep(other.path, other.at, f"{op} does so, too"),)
    )


def _settled(found: list[RawFinding]) -> Iterator[RawFinding]:
    """One hazard, one finding: at one place a rule gives way to those it yields to, which then tell of it."""
    by_place: dict[tuple[str, int], list[RawFinding]] = {}
    for finding in found:
        by_place.setdefault((finding.path, finding.at), []).append(finding)
    for group in by_place.values():
        beaten: dict[str, list[RawStep]] = {}
        kept = []
        for loser in group:
            winner = next((one for one in group if one.rule.id in loser.rule.yields_to and _as_sure(one, loser)), None)
            if winner is None:
                kept.append(loser)
            else:
                step = RawStep(loser.path, loser.at, loser.rule.summary, loser.rule.id)
                beaten.setdefault(winner.rule.id, []).append(step)
        for one in kept:
            yield replace(one, related=(*one.related, *beaten.get(one.rule.id, ())))


def _low_modules(walk: Walk) -> dict[str, object]:
    """The modules that enter a live region or cast a model that is trained."""
    live = {path: None for path, regions in walk.record.live_modules.items() if any(one.live for one in regions)}
    return {**live, **{training.cast.place[0]: None for training in walk.record.trainings}}


def _as_sure(winner: RawFinding, loser: RawFinding) -> bool:
    """Whether the winner will be shown if the loser would be."""
    return winner.confidence >= min(loser.confidence, Confidence.MEDIUM)


def _may_find(project: Project, book: Rulebook, asked: Set[str], told: Told) -> bool:
    """Whether a rule may say something of the files asked for: of what an entry meets that may come to them, be its
    program one in low precision or not, or a model that may come to them, whatever region it runs in.

    What other entries do has a say in which of that is told, and in how; so where there is something, all are run. So
    they are where much of the project may come to the files.
    """
    incoming = Incoming(project, asked)
    functions = [(module, *found) for module in project.modules.values() for found in _functions(module)]
    near = [(function, cls) for module, function, cls in functions if incoming.has(module, function)]
    models = [(cls, function) for function, cls in near if function.name == "forward" and cls is not None]
    if (len(near) + len(models) * len(_REGIONS)) * _MUCH > len(functions):
        return True
    walk = with_deep_stack(lambda: _run_incoming(project, incoming, models, told))
    found = (
        *matching.of_uses(walk.record, book, project.modules),
        *matching.of_uses(walk.record, book, ()),
        *trainings.of_casts(walk, book),
    )
    return any(finding.path in asked for finding in found)


def _run_incoming(
    project: Project, incoming: Incoming, models: Sequence[tuple[ClassRef, ir.Function]], told: Told
) -> Walk:
    walk = Walk(project)
    _run_entries(project, walk, incoming.has, told)
    walk.guessing = True
    for region in _REGIONS:
        for cls, own in models:
            if walk.is_module(cls):
                walk.run_function(cls.module, own, cls, region)
    return walk


def _run(project: Project, reach: Programs, told: Told) -> Walk:
    walk = Walk(project)
    _run_entries(project, walk, lambda module, function: True, told)
    for path, regions in told.regions.items():
        walk.record.live_modules.setdefault(path, set()).update(regions)
    _run_models(project, walk, reach)
    return walk


_Chosen = Callable[[ir.Module, ir.Function | None], bool]
"""Says whether a function, or (None) a module's own code, is to be run."""


def _run_entries(project: Project, walk: Walk, chosen: _Chosen, told: Told) -> None:
    """Run the code that says a word of precision or training."""
    for module in project.modules.values():
        if module.words & (_PRECISION_WORDS | _TRAINING_WORDS) and chosen(module, None):
            walk.run_module(module)
    for module in project.modules.values():
        entering = [function for function, _ in _functions(module) if "autocast" in _words(function)]
        names = frozenset(function.name for function in entering)
        giving = frozenset(function.name for function in entering if not function.words & _GIVES_NOTHING)
        for function, cls in _functions(module):
            trains = function.words | {"backward", "optimizer"} >= _TRAINING_WORDS
            uses = "backward" in function.words and not names.isdisjoint(function.words)  # what a region gives
            uses = uses or not (giving.isdisjoint(function.words) or _CHOOSY.isdisjoint(function.words))
            says = trains or uses or _words(function) & _PRECISION_WORDS
            if (says or told.is_step(function, cls)) and chosen(module, function):
                walk.run_function(module, function, cls, told.region(function, cls))
    _run_joining(project, walk, chosen)
    _run_users(project, walk, chosen)


def _words(function: ir.Function) -> frozenset[str]:
    """The words of a function, those of its decorators and of what its parameters default to included."""
    around = (*function.decorators, *(param.default for param in function.params if param.default is not None))
    return function.words.union(*map(words_in, around)) if around else function.words


def _run_joining(project: Project, walk: Walk, chosen: _Chosen) -> None:
    """Run code that has no word of either itself, but hands what one function makes in low precision to one that
    trains.
    """
    makers, trainers = _named(project, _PRECISION_WORDS - {"autocast"}), _named(project, {"backward"})
    for module in project.modules.values():
        if not _joins(module.words, makers, trainers):
            continue
        if chosen(module, None):
            walk.run_module(module)
        for function, cls in _functions(module):
            is_new = (module.path, function.at) not in walk.record.calls and not _words(function) & _PRECISION_WORDS
            if is_new and _joins(function.words, makers, trainers) and chosen(module, function):
                walk.run_function(module, function, cls, None)


def _run_users(project: Project, walk: Walk, chosen: _Chosen) -> None:
    """Run the methods that say no such word themselves, of classes that make something in low precision for them: a
    model in their ``__init__``, as a rule.
    """
    words = _PRECISION_WORDS - {"autocast"}
    for module in project.modules.values():
        if words.isdisjoint(module.words):
            continue
        makers = {
            cls for function, cls in _functions(module) if function.name == "__init__" and words & _words(function)
        }
        for function, cls in _functions(module):
            is_new = (module.path, function.at) not in walk.record.calls and not _words(function) & _PRECISION_WORDS
            uses = cls is not None and cls in makers and function.name != "__init__" and not walk.is_module(cls)
            if is_new and uses and chosen(module, function):
                walk.run_function(module, function, cls, None)


def _named(project: Project, words: Set[str]) -> frozenset[str]:
    """The names by which functions that say one of these words are called: their own, and those of their classes."""
    return frozenset(
        name
        for module in project.modules.values()
        if not words.isdisjoint(module.words)
        for function, cls in _functions(module)
        if not words.isdisjoint(function.words)
        for name in ([function.name, cls.cls.name] if cls is not None else [function.name])
    )


def _joins(words: Set[str], makers: Set[str], trainers: Set[str]) -> bool:
    """Whether code speaks of a function of either kind, and not of a single one that is both."""
    made, trained = words & makers, words & trainers
    return bool(made) and bool(trained) and len(made | trained) > 1


def _functions(module: ir.Module) -> Iterator[tuple[ir.Function, ClassRef | None]]:
    """The functions of a module and the methods of its classes, with their class; not those nested in functions."""
    for node in statements(module.body):
        if isinstance(node, ir.Function):
            yield node, None
        elif isinstance(node, ir.Class):
            for inner in statements(node.body):
                if isinstance(inner, ir.Function):
                    yield inner, ClassRef(module, node)


# The models of a project that trains in low precision


def _run_models(project: Project, walk: Walk, reach: Programs) -> None:
    region = _training_region(walk)
    if region is None:
        return
    classes = _outer_first(project, reach.around(_live(walk), walk.record.live_modules))
    walk.guessing = True
    idle = only_inferred(project, [cls for cls in classes if walk.is_module(cls)])
    for cls in classes:
        if cls.key in idle:
            continue
        own = _forward(cls)
        if own is None or not walk.is_module(cls):
            continue
        # One that enters a region for a part of itself says thereby that the rest runs outside of one.
        if (cls.module.path, own.at) not in walk.visited | walk.record.entering:
            walk.run_function(cls.module, own, cls, region)


def _forward(cls: ClassRef) -> ir.Function | None:
    """The ``forward`` that a class defines itself."""
    methods = (node for node in statements(cls.cls.body) if isinstance(node, ir.Function))
    return next((method for method in methods if method.name == "forward"), None)


def _live(walk: Walk) -> dict[str, list[Region]]:
    """The regions that are on, by the modules that enter them; some only switch it off."""
    modules = walk.record.live_modules.items()
    found = {path: [region for region in regions if region.live] for path, regions in modules}
    return {path: regions for path, regions in found.items() if regions}


def _training_region(walk: Walk) -> Region | None:
    """The region in which the project's models run: float16 if any of its regions is, else bfloat16."""
    live = [region for regions in _live(walk).values() for region in regions]
    for dtype in _HALVES:
        having = [region for region in live if dtype in region.dtypes]
        if having:
            devices = {region.device for region in having}
            return Region("cuda" if "cuda" in devices else min(devices), frozenset({dtype}), None, assumed=True)
    return None


def _outer_first(project: Project, paths: Iterable[str]) -> list[ClassRef]:
    """The classes of these modules; those that no other class speaks of first, for they call the others."""
    classes = [
        ClassRef(project.modules[path], node)
        for path in sorted(paths)
        if path in project.modules
        for node in statements(project.modules[path].body)
        if isinstance(node, ir.Class)
    ]
    spoken: dict[str, int] = {}
    for cls in classes:
        for word in cls.cls.words:
            spoken[word] = spoken.get(word, 0) + 1
    return sorted(classes, key=lambda cls: spoken.get(cls.cls.name, 0) - (cls.cls.name in cls.cls.words) > 0)
