"""What becomes of a scaler's state after it was loaded (AMP702)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from amp_audit.model import Confidence, Severity
from amp_audit.rulebook import Detector, Rule
from amp_audit.static.binding.origins import Origins, Where
from amp_audit.static.binding.project import Project
from amp_audit.static.binding.signatures import SCALERS
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, dotted_text
from amp_audit.static.spots.devices import is_disabled
from amp_audit.static.spots.spaces import calls, method, spaces

_LOST = "the state loaded into the scaler is lost: a new one takes its place"
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
    loaded: dict[str, ir.Call] = {}
    for node in body:
        if isinstance(node, (ir.Function, ir.Class)):
            continue
        if isinstance(node, ir.Assign) and isinstance(node.value, ir.Call):
            is_scaler = project.called(where.module, node.value.func, where.scope) in SCALERS
            for target in map(dotted_text, node.targets if is_scaler else ()):
                if target in loaded:
                    yield node.value.at, loaded.pop(target)
        for call in calls([node]):
            name = dotted_text(call.func.base) if isinstance(call.func, ir.Attr) else ""
            if method(call) == "load_state_dict" and name:
                loaded[name] = call
            else:
                for used in (name, *(dotted_text(arg.value) for arg in call.args)):
                    loaded.pop(used, None)
        for inner in bodies(node):
            yield from _replaced(inner, where, project)
