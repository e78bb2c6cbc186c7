"""Which dtype a tensor has where, and the rules that ask for it.

The program is run abstractly (``dtype_walk``): first every function that enters a region, casts or trains, then the
``forward`` of each model that no such run came by, under the region in which the project trains. The rules' ``op``
detectors are held against the ops that were met on the way.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from amp_audit import policy
from amp_audit.model import Confidence
from amp_audit.rulebook import Detector, Rule, Rulebook, RuleError
from amp_audit.static import ir
from amp_audit.static.deep import with_deep_stack
from amp_audit.static.dtypes import surface
from amp_audit.static.dtypes.record import Training, Use
from amp_audit.static.dtypes.values import HALVES, LOW, Const, Region, rounded
from amp_audit.static.dtypes.walk import Walk
from amp_audit.static.project import ClassRef, FunctionRef, ModuleRef, Project
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.traverse import statements

_PRECISION_WORDS = frozenset({"autocast", "half", "bfloat16", "float16", "custom_fwd"})
_TRAINS = re.compile(r"backward$|step$|clip_grad|zero_grad|autograd|state_dict|^save$")
_IMPORTING_WORDS = frozenset({"importlib", "import_module", "__import__"})
_TRAINING_WORDS = frozenset({"optim", "optimizer", "backward"})


def find(project: Project, book: Rulebook) -> list[RawFinding]:
    """What the rules' ``op`` detectors say of a project, one finding per rule and place."""
    if not any(_PRECISION_WORDS & module.words for module in project.modules.values()):
        return []
    walk = with_deep_stack(lambda: _run(project))
    found = [*_of_uses(walk, book), *_of_casts(walk, book)]
    best: dict[tuple[str, str, int], RawFinding] = {}
    for finding in found:
        held = best.get(finding.key)
        if held is None or held.confidence < finding.confidence:
            best[finding.key] = finding
    return sorted(best.values(), key=lambda finding: (finding.path, finding.at, finding.rule.id))


def _run(project: Project) -> Walk:
    walk = Walk(project)
    for module in project.modules.values():
        if module.words & (_PRECISION_WORDS | _TRAINING_WORDS):
            walk.run_module(module)
    for module in project.modules.values():
        for function, cls in _functions(module):
            if function.words & _PRECISION_WORDS or function.words | {"backward", "optimizer"} >= _TRAINING_WORDS:
                walk.run_function(module, function, cls, None)
    _run_models(project, walk)
    return walk


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


def _run_models(project: Project, walk: Walk) -> None:
    region = _training_region(walk)
    if region is None:
        return
    reached = _reached(project, walk.record.live_modules)
    for cls in _outer_first(project, reached):
        own = next(
            (node for node in statements(cls.cls.body) if isinstance(node, ir.Function) and node.name == "forward"),
            None,
        )
        if own is not None and walk.is_module(cls) and (cls.module.path, own.at) not in walk.visited:
            walk.run_function(cls.module, own, cls, region)


def _training_region(walk: Walk) -> Region | None:
    """The region in which the project's models run: float16 if any of its regions is, else bfloat16."""
    live = [region for regions in walk.record.live_modules.values() for region in regions if region.live]
    for dtype in ("float16", "bfloat16"):
        having = [region for region in live if dtype in region.dtypes]
        if having:
            devices = {region.device for region in having}
            return Region("cuda" if "cuda" in devices else min(devices), frozenset({dtype}), None, assumed=True)
    return None


def _reached(project: Project, live: Mapping[str, object]) -> set[str]:
    """The modules of the programs that enter a region: what they import, their own packages, what they load by name."""
    imports = {path: set(_imports(project, module)) for path, module in project.modules.items()}
    trains = {path for path, module in project.modules.items() if any(map(_TRAINS.search, module.words))}
    programs = set(live)
    while True:
        more = {path for path in trains if imports[path] & programs} - programs
        if not more:
            break
        programs |= more
    todo = [*programs]
    while todo:
        for path in imports.get(todo.pop(), set()) - programs:
            programs.add(path)
            todo.append(path)
    return programs | _unnamed(project, live, programs)


def _unnamed(project: Project, live: Mapping[str, object], programs: Iterable[str]) -> set[str]:
    """What a program may load without importing it by name: the package that enters a region, and what lies beside
    and below a program that imports by a name it computes."""
    folders = {project.layout.package(path) for path in live}
    for path in programs:
        if path in project.modules and _IMPORTING_WORDS & project.modules[path].words:
            folders.add(os.path.dirname(os.path.abspath(path)))
    below = tuple(f"{folder}{os.sep}" for folder in folders if folder)
    return {path for path in project.modules if below and os.path.abspath(path).startswith(below)}


def _imports(project: Project, module: ir.Module) -> Iterator[str]:
    for node in statements(module.body, into=True):
        if isinstance(node, ir.Import):
            for target in (*(target for _, target in node.bindings), *node.loads):
                found = project.imported(module, target)
                if isinstance(found, (ModuleRef, FunctionRef, ClassRef)) and found.module is not None:
                    yield found.module.path


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


# Ops


def _of_uses(walk: Walk, book: Rulebook) -> Iterator[RawFinding]:
    detectors: dict[str, list[tuple[Rule, Detector]]] = {}
    for rule, detector in book.detectors("static", "op"):
        _validate(rule, detector)
        for target in detector.targets:
            detectors.setdefault(target, []).append((rule, detector))
    for use in walk.record.uses:
        for rule, detector in detectors.get(surface.canonical(use.op), ()):
            found = _match(use, detector)
            if found is not None:
                yield _finding(rule, detector, use, found)


def _validate(rule: Rule, detector: Detector) -> None:
    """Raises RuleError for options of an ``op`` detector that are not of the right kind."""
    for key, kind in (("region", dict), ("constant", dict), ("inputs", list)):
        if key in detector.options and not isinstance(detector.options[key], kind):
            word = "a mapping" if kind is dict else "a list"
            raise RuleError(f"{rule.id}: `{key}` of an `op` detector must be {word}")


@dataclass(frozen=True, slots=True)
class _Match:
    dtype: str
    constant: Const | None
    sure: bool


def _match(use: Use, detector: Detector) -> _Match | None:
    """Whether an op is what a detector looks for."""
    if not _region_fits(use, detector.options.get("region")):
        return None
    wanted = detector.options.get("inputs")
    dtypes = [*use.computes] if wanted is None else [dtype for dtype in use.computes if dtype in wanted or dtype == LOW]
    constant = detector.options.get("constant")
    for dtype in dtypes:
        concrete = "float16" if dtype == LOW else dtype
        sure = len(use.computes) == 1 and dtype != LOW
        if constant is None:
            return _Match(concrete, None, sure or wanted is None)
        for name, value in use.numbers:
            if _constant_fits(name, value, constant, concrete):
                return _Match(concrete, value, sure)
    return None


def _region_fits(use: Use, wanted: Mapping[str, object] | None) -> bool:
    region = use.region
    for key, value in (wanted or {}).items():
        if key == "live" and (region is not None and region.live) is not value:
            return False
        if key == "policy":
            if region is None or not region.live:
                return False
            if surface.kind_of(use.op, region.device) != value:
                return False
    return True


def _constant_fits(name: str, value: Const, wanted: Mapping[str, object], dtype: str) -> bool:
    """``argument`` (names), ``beyond: finfo.max`` (finite, yet larger than the dtype holds), ``rounds_to`` (another
    number than itself, in the dtype)."""
    number = value.number
    arguments = wanted.get("argument")
    if number is None or (isinstance(arguments, list) and name not in arguments):
        return False
    if wanted.get("beyond") == "finfo.max":
        return math.isfinite(number) and abs(number) > policy.MAX_FINITE.get(dtype, math.inf)
    target = wanted.get("rounds_to")
    return dtype in HALVES and number != target and rounded(number, dtype) == target


def _finding(rule: Rule, detector: Detector, use: Use, match: _Match) -> RawFinding:
    assumed = use.assumed or (match.constant is not None and match.constant.assumed)
    confidence = Confidence.LOW if not match.sure else Confidence.MEDIUM if assumed else Confidence.HIGH
    number = match.constant.number if match.constant is not None else None
    facts = {"op": use.op, "dtype": match.dtype, "by": use.by or "a cast", "constant": number}
    if use.region is not None and use.region.assumed:
        facts["assumed"] = f"that the code runs under the project's {match.dtype} autocast"
    value = f"{number:g}" if number is not None else ""
    message = _filled(detector.message, {**facts, "value": value})
    if assumed and message:
        message += ", assuming that it runs in the project's autocast region" if use.region is not None else ""
    path, at = use.place
    return RawFinding(rule, path, at, message, confidence, detector.severity, facts=facts)


def _filled(message: str, facts: Mapping[str, object]) -> str:
    """``message`` with ``{word}`` replaced where it is a fact; other braces are left alone."""
    return re.sub(r"\{(\w+)\}", lambda found: str(facts.get(found[1], found[0])), message)


# Models that are cast and trained


def _of_casts(walk: Walk, book: Rulebook) -> Iterator[RawFinding]:
    detectors = [pair for pair in book.detectors("static", "op") if "cast" in pair[1].targets]
    for training in walk.record.trainings:
        facts = _facts(walk, training)
        if facts is None:
            continue
        for rule, detector in detectors:
            inputs = detector.options.get("inputs")
            dtypes = training.cast.dtypes if inputs is None else training.cast.dtypes & {*inputs, LOW}
            if dtypes and detector.holds(facts):
                yield _cast_finding(rule, detector, training, facts)


def _facts(walk: Walk, training: Training) -> dict[str, object] | None:
    """What is known of a cast model in training; None if it is not trained in low precision after all."""
    cast, record = training.cast, walk.record
    if any(walk.inside(cast.of, owner) for owner in record.frozen | record.managed):
        return None
    near = any(walk.inside(cast.of, model) or walk.inside(model, cast.of) for model in record.live_calls)
    dtype = next(iter(cast.dtypes)) if len(cast.dtypes) == 1 else LOW
    return {"trained": True, "autocast": near, "scaler": training.optimizer in record.scaled, "dtype": dtype}


def _cast_finding(rule: Rule, detector: Detector, training: Training, facts: Mapping[str, object]) -> RawFinding:
    path, at = training.cast.place
    unsure = facts["dtype"] not in ("float16", "bfloat16") or training.assumed
    name = training.cast.name or "the model"
    message = _filled(detector.message, {**facts, "name": name})
    related = (RawStep(*training.optimizer, "its parameters go to this optimizer"),)
    confidence = Confidence.MEDIUM if unsure else Confidence.HIGH
    return RawFinding(rule, path, at, message, confidence, detector.severity, related, facts)
