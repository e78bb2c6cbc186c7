"""Repairs that change in which dtype something is computed: AMP315, AMP401, AMP407, AMP501."""

from __future__ import annotations

from amp_audit.model import Edit, Fix
from amp_audit.static.fixes.draft import Draft, Unfixable, fix
from amp_audit.static.raw import RawFinding
from amp_audit.static.source import ir
from amp_audit.static.source.literals import number
from amp_audit.static.source.traverse import parts, statements
from amp_audit.static.spots.sites import Site

_SIGMOIDS = frozenset({"torch.sigmoid", "torch.nn.functional.sigmoid", "torch.special.expit"})
_LARGEST_HALF = 65504.0


# AMP315


def with_logits(raw: RawFinding, draft: Draft) -> Fix:
    """``bce(sigmoid(x), y)`` -> ``bce_with_logits(x, y)``, for the function and for a criterion used once."""
    site = draft.site(raw.at)
    if not site.call.args or site.call.args[0].star:
        raise Unfixable("no probabilities to look at")
    given = _probabilities(site, draft)
    bare = draft.replace(given.at, draft.source(_logits(given, site, draft).at))
    name = draft.project.called(draft.module, site.call.func, site.where.scope)
    if name == "torch.nn.functional.binary_cross_entropy" and isinstance(site.call.func, ir.Attr):
        renamed = _renamed(site.call.func, "binary_cross_entropy_with_logits", draft)
        return fix(False, "compute the loss from the logits", renamed, bare)
    return fix(False, "compute the loss from the logits", _criterion_with_logits(site, draft), bare)


def _probabilities(site: Site, draft: Draft) -> ir.Expr:
    """What the loss is given, or what the variable is assigned that it is given and that nothing else reads."""
    given = site.call.args[0].value
    if not isinstance(given, ir.Name):
        return given
    body = draft.space(site.call.at).body
    mentions = sum(isinstance(part, ir.Name) and part.id == given.id for part in parts(body, into=True))
    made = [
        node.value
        for node in statements(body)
        if isinstance(node, ir.Assign)
        and any(isinstance(target, ir.Name) and target.id == given.id for target in node.targets)
    ]
    if len(made) != 1 or mentions != 2:
        raise Unfixable("the probabilities have other uses")
    return made[0]


def _logits(probabilities: ir.Expr, site: Site, draft: Draft) -> ir.Expr:
    """What goes into the sigmoid. Raises Unfixable where it is elsewhere, in the model for one."""
    if isinstance(probabilities, ir.Call) and isinstance(probabilities.func, ir.Attr):
        func = probabilities.func
        if draft.project.called(draft.module, func, site.where.scope) in _SIGMOIDS and len(probabilities.args) == 1:
            return probabilities.args[0].value
        if func.name == "sigmoid" and not probabilities.args:
            return func.base
    raise Unfixable("the sigmoid is elsewhere")


def _renamed(func: ir.Attr, name: str, draft: Draft) -> Edit:
    place = draft.position(func.at)
    return draft.edit(place.end_line, place.end_column - len(func.name), place.end_line, place.end_column, name)


def _criterion_with_logits(site: Site, draft: Draft) -> Edit:
    made = draft.origins.constructors(site.call.func, site.where, ("torch.nn.BCELoss",))
    if made is None or len(made) != 1 or made[0][1].module is not draft.module:
        raise Unfixable("not known where the criterion is made")
    (call, _) = made[0]
    spelled = draft.source(site.call.func.at)
    uses = sum(draft.source(other.call.func.at) == spelled for other in draft.sites.values())
    if uses != 1 or not isinstance(call.func, ir.Attr):
        raise Unfixable("the criterion has other uses")
    return _renamed(call.func, "BCEWithLogitsLoss", draft)


# AMP401


def without_cast(raw: RawFinding, draft: Draft) -> Fix:
    """``model.half()`` goes; of ``model.to(device, torch.float16)`` the dtype goes."""
    site = draft.site(raw.at)
    call, holder = site.call, draft.holder(raw.at)
    if not isinstance(call.func, ir.Attr):
        raise Unfixable("not a method")
    told = "leave the weights in float32; autocast casts them"
    dtypes = [n for n, arg in enumerate(call.args) if draft.origins.kinds(arg.value, site.where)[0] == {"dtype"}]
    if len(call.args) > 1 and len(dtypes) == 1:
        return fix(False, told, draft.without_argument(call, dtypes[0]))
    if len(call.args) != len(dtypes):
        raise Unfixable("an argument that is no dtype")
    if _is_only_the_cast(holder, call, draft):
        return fix(False, told, draft.without_statement(holder))
    base, whole = draft.position(call.func.base.at), draft.position(call.at)
    if draft.lines[base.end_line - 1][base.end_column - 1 :].lstrip()[:1] == ")":
        raise Unfixable("in parentheses")
    return fix(False, told, draft.edit(base.end_line, base.end_column, whole.end_line, whole.end_column, ""))


def _is_only_the_cast(holder: ir.Stmt, call: ir.Call, draft: Draft) -> bool:
    """``model.half()``, or ``model = model.half()``."""
    if not isinstance(call.func, ir.Attr) or not _is_plain(call.func.base):
        return False
    if isinstance(holder, ir.Assign) and holder.value is call and len(holder.targets) == 1:
        return draft.source(holder.targets[0].at) == draft.source(call.func.base.at)
    return isinstance(holder, ir.Evaluate) and holder.value is call


# AMP407


def float_before_numpy(raw: RawFinding, draft: Draft) -> Fix:
    """``x.numpy()`` -> ``x.float().numpy()``, and the same for what turns a tensor into an array. It raised before."""
    call = draft.site(raw.at).call
    is_method = isinstance(call.func, ir.Attr) and call.func.name == "numpy"
    tensor = call.func.base if is_method and isinstance(call.func, ir.Attr) else None
    if tensor is None and call.args and call.args[0].keyword is None and not call.args[0].star:
        tensor = call.args[0].value
    if not isinstance(tensor, (ir.Name, ir.Attr, ir.Call, ir.Subscript)):
        raise Unfixable("no tensor to cast")
    return fix(True, "convert to float32 first", draft.after(tensor.at, ".float()"))


# AMP501


def largest_of_dtype(raw: RawFinding, draft: Draft) -> Fix:
    """``scores.masked_fill(mask, -1e9)`` -> ``scores.masked_fill(mask, torch.finfo(scores.dtype).min)``."""
    site = draft.site(raw.at)
    dtype, filled = _filled(site, draft)
    signs = {_sign(origin.expr) for origin in draft.origins.of(filled, site.where)}
    if len(signs) != 1 or None in signs or not draft.has_name("torch", site.where):
        raise Unfixable("not known in which direction it is meant")
    code = f"torch.finfo({dtype}).{signs.pop()}"
    return fix(False, f"fill with {code}", draft.replace(filled.at, code))


def _sign(expr: ir.Expr | None) -> str | None:
    """Which end of the range a constant stands for: the limits of another dtype, or a number beyond float16."""
    if isinstance(expr, ir.Attr) and expr.name in ("min", "max") and isinstance(expr.base, ir.Call):
        return expr.name
    value = number(expr)
    return None if value is None or abs(value) <= _LARGEST_HALF else "min" if value < 0 else "max"


def _filled(site: Site, draft: Draft) -> tuple[str, ir.Expr]:
    """The dtype of what is filled, as code, and what it is filled with."""
    call = site.call
    name = draft.project.called(draft.module, call.func, site.where.scope)
    values = [arg.value for arg in call.args if arg.keyword in (None, "value", "fill_value", "mask") and not arg.star]
    dtype = next((arg.value for arg in call.args if arg.keyword == "dtype"), None)
    if name == "torch.full" and len(values) == 2 and dtype is not None:
        return draft.source(dtype.at), values[1]
    if name == "torch.masked_fill" and len(values) == 3 and _is_plain(values[0]):
        return f"{draft.source(values[0].at)}.dtype", values[2]
    if isinstance(call.func, ir.Attr) and call.func.name in ("masked_fill", "masked_fill_") and len(values) == 2:
        by_name = next((arg.value for arg in call.args if arg.keyword == "value"), values[1])
        if _is_plain(call.func.base):
            return f"{draft.source(call.func.base.at)}.dtype", by_name
    raise Unfixable("no fill of a tensor that has a name")


def _is_plain(expr: ir.Expr) -> bool:
    return isinstance(expr, ir.Name) or (isinstance(expr, ir.Attr) and _is_plain(expr.base))
