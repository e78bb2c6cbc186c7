"""AMP109: what a GradScaler keeps for itself, which is not there when the scaler is disabled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_audit.model import Confidence
from amp_audit.rulebook import Detector, Rule
from amp_audit.static import ir
from amp_audit.static.facts import is_disabled
from amp_audit.static.origins import Origins, Where
from amp_audit.static.project import Project
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.sites import inside
from amp_audit.static.traverse import bodies, children, expressions

_ABSENT = frozenset(
    (
        "_scale",
        "_growth_tracker",
        "_init_scale",
        "_growth_factor",
        "_backoff_factor",
        "_growth_interval",
        "_init_growth_tracker",
        "_per_optimizer_states",
        "get_growth_factor",
        "get_backoff_factor",
        "get_growth_interval",
    )
)
"""Attributes that a disabled scaler lacks, and the methods that read them."""

_PRIVATE = frozenset(
    (
        "_check_inf_per_device",
        "_found_inf_per_device",
        "_unscale_grads_",
        "_maybe_opt_step",
    )
)
"""Further methods that are not for callers; ``_found_inf_per_device`` is all zeros of what was never recorded."""

_GUARD_WORDS = ("is_enabled", "enabled", "amp", "fp16", "float16", "half", "precision", "scaler", "dtype", "hasattr")


def read(rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins) -> Iterator[RawFinding]:
    """Reads of a scaler's internals that no test guards."""
    if not module.words & (_ABSENT | _PRIVATE):
        return
    for attribute, where in _unguarded(module.body, Where(module)):
        made = origins.constructors(attribute.base, where)
        if not made:
            continue
        switches = [call for call, _ in made if any(arg.keyword == "enabled" for arg in call.args)]
        if not switches and attribute.name not in _PRIVATE | {"_scale", "_per_optimizer_states"}:
            continue
        dies = bool(switches) and attribute.name in _ABSENT
        what = "it is not there when the scaler is disabled" if dies else "it may change with any version of torch"
        at = (made[0][1].module.path, made[0][0].at)
        step = RawStep(*at, "the scaler is built here" + (", off when `enabled` says so" if switches else ""))
        certain = any(is_disabled(call) for call in switches)
        yield RawFinding(
            rule,
            module.path,
            attribute.at,
            f"{attribute.name} is internal to GradScaler: {what}",
            Confidence.HIGH if certain or not dies else Confidence.MEDIUM,
            related=(step,),
        )


def _unguarded(body: Sequence[ir.Stmt], where: Where) -> Iterator[tuple[ir.Attr, Where]]:
    """The internal attributes read in a body outside any test that speaks of mixed precision, and any ``try``."""
    for node in body:
        if isinstance(node, ir.Try) and node.handlers:
            continue
        if isinstance(node, ir.If) and _guards(node.test):
            if _ends(node.body):
                return
            continue
        for expression in expressions(node):
            yield from ((found, where) for found in _reads(expression))
        if isinstance(node, (ir.Function, ir.Class)):
            yield from _unguarded(node.body, inside(where, node))
        for inner in bodies(node):
            yield from _unguarded(inner, where)


def _ends(body: Sequence[ir.Stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ir.Return, ir.Raise, ir.Continue, ir.Break))


def _reads(expr: ir.Expr) -> Iterator[ir.Attr]:
    stack = [expr]
    while stack:
        part = stack.pop()
        if isinstance(part, ir.IfExp) and _guards(part.test):
            continue
        if isinstance(part, ir.BoolOp) and _guards(part.left):
            continue
        if isinstance(part, ir.Attr) and part.name in _ABSENT | _PRIVATE:
            yield part
        stack.extend(children(part))


def _guards(test: ir.Expr) -> bool:
    """Whether a test has a word of mixed precision: the flag that made the scaler, or the scaler itself."""
    stack = [test]
    while stack:
        part = stack.pop()
        word = part.id if isinstance(part, ir.Name) else part.name if isinstance(part, ir.Attr) else ""
        if isinstance(part, ir.Const) and isinstance(part.value, str):
            word = part.value
        if any(guard in word.lower() for guard in _GUARD_WORDS):
            return True
        stack.extend(children(part))
    return False
