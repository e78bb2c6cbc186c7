"""Checks that no declarative detector can say; each is named by its rule file, which gives the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from amp_audit.model import Confidence
from amp_audit.rulebook import Detector, Rule
from amp_audit.static.binding.origins import Origins, Where
from amp_audit.static.binding.project import Project
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.source import ir
from amp_audit.static.source.conditions import NO_FACTS, exclude, facts_at
from amp_audit.static.source.traverse import bodies, dotted_text, expressions, statements, walk
from amp_audit.static.spots.handed import Space, reached
from amp_audit.static.spots.prepared import Prepared, has_prepared, identities
from amp_audit.static.spots.spaces import CLIPS, calls, method, spaces

ACCELERATOR = ("accelerate.Accelerator",)

_UNSCALED = frozenset({"no", "bf16", "fp8"})
_THROUGH = frozenset({"backward", "clip_grad_norm_", "clip_grad_value_"})
"""Methods of an accelerator that know of its loss scale."""


# AMP108: SAM and its relatives


def sam_under_scaler(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """``optimizer.first_step()`` after ``scaler.scale(loss).backward()``, where nothing unscales by hand."""
    if "first_step" not in module.words:
        return
    for where, body in spaces(module):
        methods = [call for call in calls(body) if isinstance(call.func, ir.Attr)]
        scaled = [
            call.at
            for call in methods
            if method(call) == "scale"
            and isinstance(call.func, ir.Attr)
            and origins.constructors(call.func.base, where) is not None
        ]
        by_hand = any(method(call) in ("unscale_", "get_scale") for call in methods)
        for call in methods:
            if method(call) == "first_step" and not by_hand and any(at < call.at for at in scaled):
                yield RawFinding(rule, module.path, call.at, detector.message, Confidence.MEDIUM)


# AMP803: Accelerate bypassed


def accelerate_bypassed(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """Raw backward or clip of what an Accelerator prepared, unless it is known not to scale."""
    if "prepare" not in module.words:
        return
    around = list(spaces(module))
    prepared = _prepared(around, origins)
    if not prepared.keys:
        return
    confidence = Confidence.HIGH if prepared.sure else Confidence.MEDIUM
    assumed = "" if prepared.sure else " (if mixed_precision is fp16)"
    through = [any(_goes_through(call, where, project) for call in calls(body)) for where, body in around]
    own = [
        Space(where, body, (frozenset(prepared.keys),), project)
        for (where, body), goes_through in zip(around, through)
        if goes_through or not (prepared.sometimes and any(through))  # else it trains the runs without accelerator
    ]
    without = {
        (module.path, at) for where, body in around for at in _without_accelerator(where, body, prepared, project)
    }
    made = [facts_at(body, call.at) for _, body in around for call in calls(body) if method(call) == "prepare"]
    under = made[0].intersection(*made[1:]) if made else NO_FACTS
    for space in reached(own, without):
        for at, message in _bypasses(space, replace(prepared, keys=set(space.groups[0])), project, origins):
            if exclude(under, facts_at(space.body, at)):
                continue
            step = RawStep(module.path, prepared.at, "the accelerator prepares it here")
            yield RawFinding(rule, space.where.module.path, at, message + assumed, confidence, related=(step,))


def _prepared(around: Sequence[tuple[Where, Sequence[ir.Stmt]]], origins: Origins) -> Prepared:
    found = Prepared()
    for where, body in around:
        guards = _guards(body)
        tested = {at.at for node in statements(body) if isinstance(node, ir.If) for at in statements((node,))}
        for node in statements(body):
            if (
                not isinstance(node, ir.Assign)
                or not isinstance(node.value, ir.Call)
                or method(node.value) != "prepare"
            ):
                continue
            func = node.value.func
            made = origins.constructors(func.base, where, ACCELERATOR) if isinstance(func, ir.Attr) else None
            modes = [mixed_precision(call, at, origins) for call, at in made or ()]
            if made is None or any(mode in _UNSCALED for mode in modes):
                continue
            found.at = node.at
            found.sure = found.sure and bool(made) and all(mode == "fp16" for mode in modes)
            found.steps = found.steps or any(_accumulates(call) for call, _ in made)
            found.keys |= {key for target in node.targets for key in identities(target, where)}
            found.switches.add(guards.get(node.at))
            found.sometimes = found.sometimes and node.at in tested
    return found


def _guards(body: Sequence[ir.Stmt]) -> dict[int, tuple[str, bool]]:
    """The assignments under a flag, with the flag and whether it is on there; of several the innermost."""
    found: dict[int, tuple[str, bool]] = {}
    for node in statements(body):
        switch = _switch(node.test) if isinstance(node, ir.If) else None
        if isinstance(node, ir.If) and switch is not None:
            for arm, side in ((node.body, True), (node.orelse, False)):
                found.update({inner.at: (switch[0], switch[1] is side) for inner in statements(arm)})
    return found


def mixed_precision(call: ir.Call, where: Where, origins: Origins) -> str | None:
    """The literal ``mixed_precision`` of an Accelerator; None when it is decided elsewhere."""
    args = origins.unpacked(call, where).args
    given = next((arg.value for arg in args if arg.keyword == "mixed_precision"), None)
    if given is None:
        return None
    values = {o.expr.value if isinstance(o.expr, ir.Const) else None for o in origins.of(given, where)}
    only = values.pop() if len(values) == 1 else None
    return only if isinstance(only, str) else None


def _accumulates(call: ir.Call) -> bool:
    for arg in call.args:
        if arg.keyword in ("gradient_accumulation_steps", "gradient_accumulation_plugin"):
            return not (isinstance(arg.value, ir.Const) and arg.value.value == 1)
    return False


def _bypasses(space: Space, prepared: Prepared, project: Project, origins: Origins) -> Iterator[tuple[int, str]]:
    where, body = space.where, space.body
    by_hand = any(method(call) == "unscale_gradients" for call in calls(body))
    without = set(_without_accelerator(where, body, prepared, project))
    for call in calls(body):
        if call.at in without:
            continue
        name = project.qualified(where.module, call.func, where.scope)
        if method(call) == "backward" and isinstance(call.func, ir.Attr):
            if name is None and space.carries(call.func.base):
                yield call.at, "backward past the accelerator: the loss is not scaled, yet the step unscales it"
        elif name in CLIPS and not by_hand and call.args and has_prepared(call.args[0].value, where, prepared):
            yield call.at, "torch's own clip sees gradients that still carry the accelerator's loss scale"
    if prepared.steps:
        yield from _unguarded_clips(body, where, origins, False)


def _without_accelerator(where: Where, body: Sequence[ir.Stmt], prepared: Prepared, project: Project) -> Iterator[int]:
    """The calls for a run that has no accelerator: in the arm opposite to one that calls its ``backward(loss)``, or
    behind one that does and leaves, and where the switch under which it prepares is off.
    """
    for block in _blocks(body):
        for number, node in enumerate(block):
            if not isinstance(node, ir.If):
                continue
            switch = _switch(node.test)
            rest = block[number + 1 :]
            arms = ((node.body, node.orelse or _left_by(node.body, rest), True), (node.orelse, node.body, False))
            for other, arm, side in arms:
                off = switch is not None and prepared.switches == {(switch[0], switch[1] is side)}
                if off or any(_goes_through(call, where, project) for call in calls(other)):
                    yield from (call.at for call in calls(arm))


def _blocks(body: Sequence[ir.Stmt]) -> Iterator[Sequence[ir.Stmt]]:
    """A body and those of the statements in it."""
    yield body
    for node in body:
        for inner in bodies(node):
            yield from _blocks(inner)


def _left_by(arm: Sequence[ir.Stmt], rest: Sequence[ir.Stmt]) -> Sequence[ir.Stmt]:
    """What follows an arm for those only that do not take it: it ends by leaving."""
    return rest if arm and isinstance(arm[-1], (ir.Return, ir.Continue)) else ()


def _goes_through(call: ir.Call, where: Where, project: Project) -> bool:
    """Whether a call is ``accelerator.backward(loss)``, or its clip, by what it is given."""
    given = bool(call.args) and call.args[0].keyword is None
    return method(call) in _THROUGH and given and project.qualified(where.module, call.func, where.scope) is None


def _switch(test: ir.Expr) -> tuple[str, bool] | None:
    """The flag that a test asks for, and whether it asks for it to be on."""
    if isinstance(test, ir.Unary) and test.op == "not":
        inner = _switch(test.operand)
        return None if inner is None else (inner[0], not inner[1])
    is_chain = all(isinstance(part, (ir.Name, ir.Attr)) for part in walk(test))
    return (dotted_text(test), True) if is_chain else None


def _unguarded_clips(
    body: Iterable[ir.Stmt], where: Where, origins: Origins, accumulating: bool
) -> Iterator[tuple[int, str]]:
    """``accelerator.clip_grad_norm_`` straight inside ``accumulate``, under no test: for every micro-batch."""
    for node in body:
        if isinstance(node, (ir.If, ir.Function, ir.Class)):
            continue
        parts = [part for expression in expressions(node) for part in walk(expression)]
        methods = [part for part in parts if isinstance(part, ir.Call) and isinstance(part.func, ir.Attr)]
        for call in methods if accumulating else ():
            if _is_accelerator_clip(call, where, origins):
                yield call.at, "clipping on every micro-batch unscales twice; test accelerator.sync_gradients first"
        opens = isinstance(node, ir.With) and any(method(call) == "accumulate" for call in methods)
        for inner in bodies(node):
            yield from _unguarded_clips(inner, where, origins, accumulating or opens)


def _is_accelerator_clip(call: ir.Call, where: Where, origins: Origins) -> bool:
    if not isinstance(call.func, ir.Attr) or call.func.name not in ("clip_grad_norm_", "clip_grad_value_"):
        return False
    return origins.constructors(call.func.base, where, ACCELERATOR) is not None
