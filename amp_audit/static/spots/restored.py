"""What becomes of a scaler's state after it was loaded (AMP702)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from amp_audit.model import Confidence, Severity
from amp_audit.rulebook import Detector, Rule
from amp_audit.static.binding.origins import Origins, Where
from amp_audit.static.binding.project import Project, Scope
from amp_audit.static.binding.signatures import SCALERS
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, dotted_text
from amp_audit.static.spots.devices import is_disabled
from amp_audit.static.spots.spaces import calls, method, own_method, spaces

_LOST = "the state loaded into the scaler is lost: a new one takes its place"
_DEEPEST = 2
"""How many methods deep a run of statements is followed."""
_IGNORED = "a scaler that is switched off ignores the state it is given"


def lost(rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins) -> Iterator[RawFinding]:
    """A scaler that is made anew right after its state was loaded, and state for a scaler that a literal turns off."""
    if "load_state_dict" not in module.words:
        return
    for where, body in spaces(module):
        for at, load in _replaced(body, where, project):
            step = RawStep(module.path, load.at, "the state is loaded here")
            yield RawFinding(rule, module.path, at, _LOST, Confidence.HIGH, detector.severity, (step,))
        for call in _loads(body):
            made = origins.constructors(call.func.base, where) if isinstance(call.func, ir.Attr) else None
            if made and all(is_disabled(each) for each, _ in made):
                yield RawFinding(rule, module.path, call.at, _IGNORED, Confidence.HIGH, Severity.INFO)


def _loads(body: Iterable[ir.Stmt]) -> Iterator[ir.Call]:
    return (call for call in calls(body) if method(call) == "load_state_dict")


def _replaced(body: Sequence[ir.Stmt], where: Where, project: Project) -> Iterator[tuple[int, ir.Call]]:
    """Where, in one run of statements, a variable gets a new scaler after the state of its old one was loaded and
    before anything else was done with that one; with the call that loaded it.
    """
    yield from _run(body, where, project, {}, _DEEPEST)
    for node in body:
        for inner in bodies(node) if not isinstance(node, (ir.Function, ir.Class)) else ():
            yield from _replaced(inner, where, project)


def _run(
    body: Sequence[ir.Stmt], where: Where, project: Project, loaded: dict[str, ir.Call], deep: int
) -> Iterator[tuple[int, ir.Call]]:
    """One run of statements, and of those of the object's own methods that it calls; ``loaded``: what was loaded."""
    for node in body:
        if isinstance(node, (ir.Function, ir.Class)):
            continue
        if isinstance(node, ir.Assign) and isinstance(node.value, ir.Call):
            is_scaler = project.called(where.module, node.value.func, where.scope) in SCALERS
            for target in map(dotted_text, node.targets if is_scaler else ()):
                if target in loaded:
                    yield node.value.at, loaded.pop(target)
        for call in calls([node]):
            own = own_method(call, where) if deep else None
            name = dotted_text(call.func.base) if isinstance(call.func, ir.Attr) else ""
            if own is not None:
                inside = {key: load for key, load in loaded.items() if "." in key}
                found = list(_run(own.body, Where(where.module, Scope(own), where.cls), project, inside, deep - 1))
                loaded = {key: load for key, load in (loaded | inside).items() if "." not in key or key in inside}
                yield from found if isinstance(node, ir.Evaluate) else ()
            elif method(call) == "load_state_dict" and name and (deep == _DEEPEST or "." in name):
                loaded[name] = call
            else:
                for used in (name, *(dotted_text(arg.value) for arg in call.args)):
                    loaded.pop(used, None)
