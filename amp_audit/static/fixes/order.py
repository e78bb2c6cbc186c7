"""Repairs of the order of a training step: AMP202, AMP203, AMP204, AMP205, AMP302, AMP803. None of them is safe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_audit.model import Edit, Fix
from amp_audit.static.fixes.draft import Draft, Space, Unfixable, fix
from amp_audit.static.raw import RawFinding
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, expressions, statements, walk
from amp_audit.static.spots.spaces import calls, method


def unscale_before(raw: RawFinding, draft: Draft) -> Fix:
    """AMP202: ``scaler.unscale_(optimizer)`` before the clip, for the scaler and optimizer that step after it."""
    space = draft.space(raw.at)
    pairs = {
        (draft.source(_base(call).at), draft.source(call.args[0].value.at))
        for call in _scaler_calls(space, "step", draft)
        if call.at > raw.at and call.args
    }
    if len(pairs) != 1:
        raise Unfixable("not known which optimizer is meant")
    ((scaler, optimizer),) = pairs
    code = f"{scaler}.unscale_({optimizer})"
    return fix(False, f"{code} first", draft.statement_before(draft.holder(raw.at), code))


def step_through_scaler(raw: RawFinding, draft: Draft) -> Fix:
    """AMP203: ``optimizer.step()`` -> ``scaler.step(optimizer)``, and an update where there is none."""
    call = _call(raw, draft)
    if call.args:
        raise Unfixable("a step with a closure")
    scaler = _scaler(draft.space(raw.at), draft)
    code = f"{scaler}.step({draft.source(_base(call).at)})"
    edits = [draft.replace(call.at, code)]
    if not _is_updated(scaler, draft):
        holder = draft.holder(raw.at)
        if not isinstance(holder, ir.Evaluate):
            raise Unfixable("the step's result is used")
        edits.append(draft.statement_after(holder, f"{scaler}.update()"))
    return fix(False, f"step through the scaler: {code}", *edits)


def scale_before_backward(raw: RawFinding, draft: Draft) -> Fix:
    """AMP204: ``loss.backward()`` -> ``scaler.scale(loss).backward()``."""
    if raw.facts.get("term"):
        raise Unfixable("the loss holds the scale already, and which terms lack it is not one place")
    if raw.facts.get("detached"):
        raise Unfixable("what the loss lacks is a graph")
    base = _base(_call(raw, draft))
    scaler = _scaler(draft.space(raw.at), draft)
    if draft.project.qualified(draft.module, base) is not None:
        raise Unfixable("a function of torch, not a method of the loss")
    edits = (draft.before(base.at, f"{scaler}.scale("), draft.after(base.at, ")"))
    return fix(False, "scale this loss as its siblings are", *edits)


def update_after(raw: RawFinding, draft: Draft) -> Fix:
    """AMP205: ``scaler.update()`` behind the last ``scaler.step`` of the iteration."""
    call = _call(raw, draft)
    scaler = draft.source(_base(call).at)
    space = draft.space(raw.at)
    steps = [each for each in _scaler_calls(space, "step", draft) if draft.source(_base(each).at) == scaler]
    last = draft.holder(max(each.at for each in steps)) if steps else draft.holder(raw.at)
    if _siblings(last, space.body) is not _siblings(draft.holder(raw.at), space.body):
        raise Unfixable("several steps on different paths")
    if not isinstance(last, (ir.Evaluate, ir.Assign)) or not _trains(_innermost_loop(last, space.body)):
        raise Unfixable("the step is not a statement of a training iteration")
    return fix(False, f"{scaler}.update() after the last step", draft.statement_after(last, f"{scaler}.update()"))


def _call(raw: RawFinding, draft: Draft) -> ir.Call:
    return draft.site(raw.at).call


def _base(call: ir.Call) -> ir.Expr:
    if not isinstance(call.func, ir.Attr):
        raise Unfixable("not a method")
    return call.func.base


def _scaler_calls(space: Space, name: str, draft: Draft) -> Iterator[ir.Call]:
    """The calls of a method in a body on what is a scaler: it comes from there, or losses are scaled by it."""
    found = [call for call in calls(space.body) if isinstance(call.func, ir.Attr)]
    scaling = {draft.source(_base(call).at) for call in found if method(call) == "scale"}
    for call in found:
        if method(call) == name:
            made = draft.origins.constructors(_base(call), space.where) is not None
            if made or draft.source(_base(call).at) in scaling:
                yield call


def _scaler(space: Space, draft: Draft) -> str:
    """The only scaler that is used in a body, as it is written there."""
    for name in ("scale", "step"):
        found = {draft.source(_base(call).at) for call in _scaler_calls(space, name, draft)}
        if len(found) == 1:
            return found.pop()
    raise Unfixable("not known which scaler is meant")


def _is_updated(scaler: str, draft: Draft) -> bool:
    """Whether anything in the file updates a scaler of this spelling."""
    return any(
        method(site.call) == "update" and draft.source(_base(site.call).at) == scaler for site in draft.sites.values()
    )


def _siblings(node: ir.Stmt, body: Sequence[ir.Stmt]) -> Sequence[ir.Stmt] | None:
    """The body that a statement stands in directly."""
    if any(each is node for each in body):
        return body
    for each in body:
        for inner in bodies(each):
            found = _siblings(node, inner)
            if found is not None:
                return found
    return None


def _innermost_loop(node: ir.Stmt, body: Sequence[ir.Stmt]) -> Sequence[ir.Stmt]:
    """The body of the innermost loop around a statement; the whole body where there is none."""
    for each in statements(body):
        if isinstance(each, (ir.For, ir.While)) and any(inner is node for inner in statements(each.body)):
            return _innermost_loop(node, each.body)
    return body


def _trains(body: Sequence[ir.Stmt]) -> bool:
    return any(method(call) == "backward" for call in calls(body))


# AMP302


def backward_after(raw: RawFinding, draft: Draft) -> Fix:
    """AMP302: from the backward on, what stands in the region moves behind it, one level out."""
    space = draft.space(raw.at)
    node = draft.holder(raw.at)
    siblings = _siblings(node, space.body)
    region = next(
        (each for each in statements(space.body) if isinstance(each, ir.With) and each.body is siblings), None
    )
    if region is None or siblings is None or siblings[0] is node or len(region.items) != 1:
        raise Unfixable("the backward is not a statement of the region itself, or all there is in it")
    tail = siblings[next(n for n, each in enumerate(siblings) if each is node) :]
    if any(isinstance(each, (ir.Return, ir.Function, ir.Class)) for each in statements(tail)):
        raise Unfixable("more than statements of a step")
    return fix(False, "backward outside the region", *_dedented(tail, region, draft))


def _dedented(tail: Sequence[ir.Stmt], region: ir.With, draft: Draft) -> Iterator[Edit]:
    """Edits that take one level of indentation from the lines of some statements."""
    first = draft.position(tail[0].at)
    inner = draft.lines[first.line - 1][: first.column - 1]
    outer_place = draft.position(region.at)
    outer = draft.lines[outer_place.line - 1][: outer_place.column - 1]
    if inner.strip() or outer.strip() or not inner.startswith(outer):
        raise Unfixable("statements that share a line")
    for line in range(first.line, _last_line(tail, draft) + 1):
        text = draft.lines[line - 1]
        if not text.strip():
            continue
        if not text.startswith(inner):
            raise Unfixable("a line with less indentation than its statement")
        yield draft.edit(line, len(outer) + 1, line, len(inner) + 1, "")


def _last_line(body: Sequence[ir.Stmt], draft: Draft) -> int:
    """The last line of some statements. Raises Unfixable where a text goes over several lines, which are its own."""
    last = 0
    for node in statements(body):
        last = max(last, draft.position(node.at).end_line)
        for expression in expressions(node):
            for part in walk(expression):
                if isinstance(part, ir.Text) or (isinstance(part, ir.Const) and isinstance(part.value, (str, bytes))):
                    place = draft.position(part.at)
                    if place.line != place.end_line:
                        raise Unfixable("a text over several lines")
            last = max(last, draft.position(expression.at).end_line)
    return last


# AMP803


def through_accelerator(raw: RawFinding, draft: Draft) -> Fix:
    """AMP803: backward and clip through the accelerator that prepared the model; a clip only where gradients sync."""
    accelerator = _accelerator(raw, draft)
    call = _call(raw, draft)
    name = method(call) or (call.func.id if isinstance(call.func, ir.Name) else "")
    if name == "backward":
        begin, (line, column) = draft.position(call.at), draft.open_parenthesis(call)
        code = f"{accelerator}.backward({draft.source(_base(call).at)}"
        comma = ", " if call.args else ""
        return fix(False, f"{code})", draft.edit(begin.line, begin.column, line, column, code + comma))
    if isinstance(call.func, ir.Attr) and draft.source(call.func.base.at) == accelerator:
        return _only_where_synced(accelerator, raw, draft)
    called = (draft.project.called(draft.module, call.func, draft.space(raw.at).where.scope) or "").rpartition(".")[2]
    if called not in ("clip_grad_norm_", "clip_grad_value_"):
        raise Unfixable("not a clip that an accelerator has")
    return fix(False, f"{accelerator}.{called}", draft.replace(call.func.at, f"{accelerator}.{called}"))


def _only_where_synced(accelerator: str, raw: RawFinding, draft: Draft) -> Fix:
    node = draft.holder(raw.at)
    place = draft.position(node.at)
    if not isinstance(node, ir.Evaluate) or place.line != place.end_line:
        raise Unfixable("not a statement of one line")
    code = f"if {accelerator}.sync_gradients:"
    return fix(False, code, draft.statement_before(node, code, then="    "))


def _accelerator(raw: RawFinding, draft: Draft) -> str:
    """How the accelerator is written where the finding stands; it must be the same thing there."""
    made = next((draft.statements.get(step.at) for step in raw.related if step.path == draft.module.path), None)
    call = made.value if isinstance(made, ir.Assign) else None
    if not isinstance(call, ir.Call):
        raise Unfixable("prepared in another file")
    base = _base(call)
    here, there = draft.space(raw.at), draft.space(call.at)
    is_shared = isinstance(base, ir.Attr) and here.where.cls is not None and here.where.cls == there.where.cls
    if here.body is not there.body and there.where.scope is not None and not is_shared:
        raise Unfixable("the accelerator is not in sight")
    return draft.source(base.at)
