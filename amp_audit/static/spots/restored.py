"""What becomes of a scaler's state after it was loaded (AMP702)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from amp_audit.model import Confidence, Severity
from amp_audit.rulebook import Detector, Rule
from amp_audit.static.binding.origins import Origins, Where
from amp_audit.static.binding.project import Project, Scope
from amp_audit.static.binding.signatures import SCALERS
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, dotted_text, root_name, statements, walk
from amp_audit.static.spots.devices import is_disabled
from amp_audit.static.spots.spaces import calls, method, own_method, spaces

_LOST = "the state loaded into the scaler is lost: a new one takes its place"
_DEEPEST = 2
"""How many methods deep a run of statements is followed."""
_REFUSED: dict[str, tuple[str, Severity | None]] = {
    "always": ("this state is empty, as that of a scaler that is switched off: one that is on refuses it", None),
    "perhaps": ("where there is no state, an empty one stands in, which a scaler refuses that is on", Severity.WARNING),
}
_NAMED = re.compile(r"(^|_)scaler$")
_OTHERS = "{other} is given this state too: that of a scaler has other keys, and there is a KeyError"
_IGNORED = "a scaler that is switched off ignores the state it is given"


def lost(rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins) -> Iterator[RawFinding]:
    """A scaler that is made anew right after its state was loaded, and state for a scaler that a literal turns off."""
    if "load_state_dict" not in module.words:
        return
    builds = any("GradScaler" in word for word in module.words)
    for where, body in spaces(module):
        for at, load in _replaced(body, where, project) if builds else ():
            step = RawStep(module.path, load.at, "the state is loaded here")
            yield RawFinding(rule, module.path, at, _LOST, Confidence.HIGH, detector.severity, (step,))
        loads = list(_loads(body))
        for call, tests in loads:
            made = origins.constructors(call.func.base, where) if isinstance(call.func, ir.Attr) else None
            is_given = made is None and _is_given(call, where, origins)
            confidence = Confidence.MEDIUM if is_given else Confidence.HIGH
            if made and all(is_disabled(each) for each, _ in made):
                yield RawFinding(rule, module.path, call.at, _IGNORED, Confidence.HIGH, Severity.INFO)
            elif (made is not None or is_given) and call.args:
                state = call.args[0].value
                message, severity = _REFUSED.get(_emptiness(state, where, origins), ("", None))
                if message and not any(_speaks_of(test, state) for test in tests):
                    yield RawFinding(rule, module.path, call.at, message, confidence, severity)
                beside = [each for each, around in loads if each is not call and around == tests]
                other = next(
                    (each for each in beside if _is_same(each, call) and not _is_bound_anew(state, body)), None
                )
                if other is not None:
                    name = dotted_text(other.func.base) if isinstance(other.func, ir.Attr) else ""
                    yield RawFinding(rule, module.path, call.at, _OTHERS.format(other=name), confidence)


def _is_given(call: ir.Call, where: Where, origins: Origins) -> bool:
    """Whether the state is loaded into a parameter that is called a scaler, of which nothing else is known."""
    base = call.func.base if isinstance(call.func, ir.Attr) else None
    if not isinstance(base, ir.Name) or not _NAMED.search(base.id):
        return False
    found = list(origins.of(base, where))
    return bool(found) and all(origin.param is not None and origin.param.annotation is None for origin in found)


def _is_same(one: ir.Call, two: ir.Call) -> bool:
    """Whether two calls that load a state take it from the same key of the same dict, into what is no scaler there."""
    key = _key(one.args[0].value) if one.args else None
    return "scaler" not in dotted_text(one).lower() and key is not None and key == _key(two.args[0].value)


def _key(state: ir.Expr) -> tuple[str, object] | None:
    """The dict, and the key in it, that ``dict["key"]`` names."""
    if not isinstance(state, ir.Subscript) or not isinstance(state.base, (ir.Name, ir.Attr)):
        return None  # two calls may give two dicts
    if isinstance(state.index, ir.Const) and isinstance(state.index.value, str):
        return dotted_text(state.base), state.index.value
    return None


def _is_bound_anew(state: ir.Expr, body: Sequence[ir.Stmt]) -> bool:
    """Whether the dict of a state has its name from more than one statement."""
    name = root_name(state)
    bound = [node for node in statements(body) if isinstance(node, ir.Assign) and name in map(root_name, node.targets)]
    return len(bound) > 1


def _loads(body: Iterable[ir.Stmt], tests: tuple[ir.Expr, ...] = ()) -> Iterator[tuple[ir.Call, tuple[ir.Expr, ...]]]:
    """The calls that load a state, with the tests around them. What an error handler is there for is left out."""
    for node in body:
        inner = bodies(node)
        if isinstance(node, ir.Try) and node.handlers:
            continue
        if not inner:
            yield from ((call, tests) for call in calls([node]) if method(call) == "load_state_dict")
        for number, block in enumerate(inner) if not isinstance(node, (ir.Function, ir.Class)) else ():
            test = (ir.Unary(node.at, "not", node.test) if number else node.test,) if isinstance(node, ir.If) else ()
            yield from _loads(block, (*tests, *test))


def _emptiness(state: ir.Expr, where: Where, origins: Origins) -> str:
    """Whether a state is empty: ``always``, ``perhaps`` (it stands in for one that is not there), else no text."""
    if isinstance(state, ir.Mapping):
        return "" if state.items else "always"
    if isinstance(state, ir.BoolOp) and state.op == "or":
        return "perhaps" if _emptiness(state.right, where, origins) == "always" else ""
    if isinstance(state, ir.IfExp):
        return "perhaps" if "always" in {_emptiness(arm, where, origins) for arm in (state.body, state.orelse)} else ""
    if isinstance(state, ir.Call) and isinstance(state.func, ir.Attr) and state.func.name == "get":
        default = state.args[1].value if len(state.args) == 2 else None
        return "perhaps" if default is not None and _emptiness(default, where, origins) == "always" else ""
    if isinstance(state, ir.Call) and isinstance(state.func, ir.Attr) and state.func.name == "state_dict":
        made = origins.constructors(state.func.base, where)
        return "always" if made and all(is_disabled(each) for each, _ in made) else ""
    if isinstance(state, ir.Name):  # a dict of its own may be filled
        found = [(origin.expr, origin.where) for origin in origins.of(state, where)]
        given = [_emptiness(expr, at, origins) for expr, at in found if isinstance(expr, ir.Call)]
        return "always" if given and len(given) == len(found) and {*given} == {"always"} else ""
    return ""


def _speaks_of(test: ir.Expr, state: ir.Expr) -> bool:
    """Whether a test asks for what a state is taken from: one that has passed it is there."""
    return not _mentioned(test).isdisjoint(_mentioned(state))


def _mentioned(expr: ir.Expr) -> set[object]:
    names = {part.id for part in walk(expr) if isinstance(part, ir.Name)}
    texts = {part.value for part in walk(expr) if isinstance(part, ir.Const) and isinstance(part.value, str)}
    return {*names, *(("key", text) for text in texts)}


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
