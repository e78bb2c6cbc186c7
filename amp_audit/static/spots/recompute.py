"""AMP707: hand-written activation checkpoints, whose backward runs the forward again without its autocast state."""

from __future__ import annotations

from collections.abc import Iterator

from amp_audit.model import Confidence
from amp_audit.rulebook import Detector, Rule
from amp_audit.static.binding.origins import Origins
from amp_audit.static.binding.programs import Programs
from amp_audit.static.binding.project import ClassRef, Project
from amp_audit.static.raw import RawFinding
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import last_word, parts, statements, walk
from amp_audit.static.spots.functions import FUNCTION

_RESTORES = frozenset({"autocast", "custom_bwd", "is_autocast_enabled", "get_autocast_dtype", "get_autocast_gpu_dtype"})
_TRAINS = frozenset({"backward", "GradScaler", "training_step", "manual_backward", "optimizer"})
_NO_GRAPH = frozenset({"no_grad", "inference_mode", "set_grad_enabled"})


def without_autocast(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """Calls of what forward kept, under ``enable_grad`` in backward, in programs that may train under autocast."""
    if "enable_grad" not in module.words or module.words.isdisjoint({"Function"}):
        return
    trained = {path: None for path, other in project.modules.items() if _may_train(other)}
    if not trained or module.path not in Programs(project).around(trained):
        return
    for node in statements(module.body, into=True):
        if not isinstance(node, ir.Class) or node.words & _RESTORES:
            continue
        if not project.is_subclass(ClassRef(module, node), FUNCTION):
            continue
        backward = next((each for each in node.body if isinstance(each, ir.Function) and each.name == "backward"), None)
        call = _run_again(backward) if backward is not None and not _restored(backward) else None
        if call is not None:
            yield RawFinding(rule, module.path, call.at, detector.message, Confidence.MEDIUM, detector.severity)


def _may_train(module: ir.Module) -> bool:
    """Whether a module may enter autocast to train: a script that samples in it alone has no backward."""
    words = module.words
    return "autocast" in words and (not words.isdisjoint(_TRAINS) or words.isdisjoint(_NO_GRAPH))


def _restored(backward: ir.Function) -> bool:
    """Whether a decorator (custom_bwd) gives backward the state that forward had."""
    names = (walked for decorator in backward.decorators for walked in walk(decorator))
    return any(isinstance(node, (ir.Name, ir.Attr)) and last_word(node) in _RESTORES for node in names)


def _run_again(backward: ir.Function) -> ir.Call | None:
    """The call of a function that forward has kept on ``ctx``, where backward turns gradients on for it."""
    if "enable_grad" not in backward.words or not backward.params:
        return None
    ctx = backward.params[0].name
    calls = (part for part in parts(backward.body, into=True) if isinstance(part, ir.Call))
    return next((call for call in calls if isinstance(call.func, ir.Attr) and _is(call.func.base, ctx)), None)


def _is(node: ir.Expr, name: str) -> bool:
    return isinstance(node, ir.Name) and node.id == name
