"""What code does to parameters and their gradients by hand: reads, changes, hooks, weights written in place."""

from __future__ import annotations

import functools
import re

from amp_audit.events import Event, Kind
from amp_audit.state import blur
from amp_audit.static.source import ir
from amp_audit.static.source.names import MOST_NAMES
from amp_audit.static.walking.contexts import Contexts
from amp_audit.static.walking.lineage import FROZEN, known, owners_of, written
from amp_audit.static.walking.values import (
    GRADIENT,
    NONE,
    Func,
    Instance,
    Literal,
    Method,
    Parameters,
    Symbol,
    Tensor,
    Value,
    inside,
    is_gradient,
)
from amp_audit.static.walking.world import World

_MEASURES = frozenset({"norm", "pow", "square", "std", "var", "mean", "max", "min", "median", "item"})
"""Methods that give the size of a gradient."""

_REPORTS = frozenset({"add_histogram", "add_scalar", "log", "histogram", "print"})
_SAME = frozenset({"abs", "data", "detach", "float", "double", "cpu", "view", "reshape", "flatten", "contiguous"})
_PROPORTIONAL = frozenset({"mul_", "div_", "neg_", "copy_", "detach_", "requires_grad_", "true_divide_"})
"""Changes that commute with the loss scale: each element times a number, or what other ranks have of the same scale."""

_CLIPS = frozenset({"clamp_", "clip_", "clamp_min_", "clamp_max_"})
_SPOILS = _CLIPS | {"clamp", "clip", "clamp_min", "clamp_max", "nan_to_num", "randn_like", "normal_"}
_HARMLESS = frozenset({"requires_grad_", "detach_", "share_memory_"})
FINITE = re.compile(r"isfinite|isnan|isinf|is_finite|is_nan", re.IGNORECASE)
_NORM = re.compile(r"(^|[._])(vector_|matrix_|foreach_|total_)?norm$")


class ByHand(Contexts):
    """Turns what is done by hand into events."""

    def of_gradient(self, gradient: Value, name: str, node: ir.Call, args: list[Value], world: World) -> Value | None:
        """A method called on ``p.grad``; what it gives, where that is known."""
        owners = known(_owners(gradient))
        if name in _SAME:
            return gradient
        if name in _MEASURES:
            self.walker.emit(world, Event(Kind.GRAD_READ, owners=owners), node.at)
        elif name == "zero_":
            self.walker.emit(world, Event(Kind.ZERO_GRAD, owners=owners), node.at)
        elif name in _CLIPS:
            self.walker.emit(world, Event(Kind.CLIP, owners=owners), node.at)
        elif name.endswith("_"):
            proportional = name in _PROPORTIONAL and not any(map(is_measure, args))
            self.walker.emit(world, Event(Kind.GRAD_WRITE, owners=owners, proportional=proportional), node.at)
        if name in _MEASURES:
            return MEASURE
        return GRADIENT if name == "clone" or gradient is GRADIENT else None

    def foreach(self, name: str, node: ir.Call, args: list[Value], world: World) -> Value | None:
        """``torch._foreach_mul_(grads, x)`` and its like: what the method does to each of the gradients."""
        method = name.removeprefix("torch._foreach_")
        if method != name:
            written(args, world)
        given = gradient_in(args[0]) if args and method != name else None
        return None if given is None else self.of_gradient(given, method, node, args[1:], world)

    def reads(self, name: str, values: list[Value], at: int, world: World) -> bool:
        """A function that measures or reports what it is given: a gradient, perhaps. Whether it gives its size."""
        reports = name.rpartition(".")[2] in _REPORTS and not self.walker.asked(FINITE)  # NaN is NaN with any scale
        measures = reports or _is_norm(name)
        given = [item for item in inside(*values) if is_gradient(item)] if measures else []
        if given:
            owners = frozenset().union(*map(_owners, given)) if all(map(_owners, given)) else frozenset()
            self.walker.emit(world, Event(Kind.GRAD_READ, owners=known(owners)), at)
        return bool(given) and not reports

    def reads_loss(self, value: Value, at: int, world: World) -> None:
        """A tensor is turned into a number: the scaled loss, perhaps."""
        if isinstance(value, Tensor) and value.scaled is not None and not value.taken and not value.plain:
            self.walker.emit(world, Event(Kind.LOSS_READ, scaler=value.scaled), at)

    def hooked(self, base: Value, hook: Value | None, at: int, world: World) -> None:
        """``register_hook`` and its kin: the hook sees the gradient as backward makes it."""
        spoils = isinstance(hook, Func) and not hook.function.words.isdisjoint(_SPOILS)
        owners = known(_owners(base))
        self.walker.emit(world, Event(Kind.HOOK, owners=owners, proportional=False if spoils else None), at)

    def changed(self, target: ir.Expr, op: str, made: Value, world: World) -> bool:
        """``p.grad += x`` and its like, ``g *= c`` for a gradient that has a name; False when it is something else.
        ``made`` is what the operator gives, a measure if a gradient is multiplied by one.
        """
        clips = op in ("*", "/") and is_measure(made)
        direct = target.name in ("grad", "data") if isinstance(target, ir.Attr) else clips
        for base, _ in self.walker.eval(target, world)[:1] if direct else ():
            if is_gradient(base):
                proportional = op in ("*", "/") and not clips
                event = Event(Kind.GRAD_WRITE, owners=known(_owners(base)), proportional=proportional)
                self.walker.emit(world, event, target.at)
                return True
        return False

    def set_attribute(self, base: Value, target: ir.Attr, value: Value, world: World) -> None:
        if target.name == "grad" and isinstance(base, Parameters) and value == NONE and (base.part or base.within):
            world.state = blur(world.state, base.owners | base.within)
        elif target.name == "grad" and isinstance(base, Parameters):
            kind = Kind.ZERO_GRAD if value == NONE and not _picks(world) else Kind.GRAD_WRITE
            self.walker.emit(world, Event(kind, owners=known(base.owners), proportional=value == NONE), target.at)
        elif target.name == "data" and is_gradient(base):
            self.walker.emit(world, Event(Kind.GRAD_WRITE, owners=known(_owners(base))), target.at)
        elif target.name == "data" and isinstance(base, Parameters):
            self.weights_written(base, target.at, world)
        elif target.name == "requires_grad" and isinstance(base, Parameters):
            self.freeze(base, value, world)
        super().set_attribute(base, target, value, world)

    def freeze(self, weights: Parameters, needs_gradient: Value, world: World) -> None:
        """Remember of models that none of their parameters requires a gradient."""
        whole = not weights.part and not self.walker.chooses() and not self.walker.heat.unfreezes
        if whole and needs_gradient == Literal.of(False):
            for owner in weights.owners:
                world.put(owner, FROZEN, Literal.of(True))

    def of_weights(self, weights: Value, name: str, at: int, world: World) -> Value | None:
        """A method called on parameters or their ``.data``: what it gives, if it changes them in place."""
        if not name.endswith("_") or name in _HARMLESS:
            return None
        self.weights_written(weights, at, world)
        return weights

    def weights_written(self, base: Value, at: int, world: World) -> None:
        """Weights changed in place. Of nobody knows whose, nothing can be said."""
        owners = known(_owners(base))
        if owners:
            self.walker.emit(world, Event(Kind.WEIGHT_WRITE, owners=owners), at)


MEASURE = Tensor(doubt=True, cut=True)
"""The size of gradients, which may carry the scale."""


@functools.lru_cache(maxsize=MOST_NAMES)
def _is_norm(name: str) -> bool:
    return _NORM.search(name) is not None


def _picks(world: World) -> bool:
    """Whether something was decided in this round of the innermost loop: then it stands for some parameters only."""
    return any("requires_grad" not in key for key in world.decided_in_round())


def is_measure(value: Value) -> bool:
    """Whether it is the size of gradients that may carry the scale, or a number made of it, as one to clip by."""
    return isinstance(value, Tensor) and value.doubt and value.cut


def gradient_in(value: Value) -> Value | None:
    """A gradient, or one of those that a list holds."""
    return next((item for item in inside(value) if is_gradient(item)), None)


def is_weights(value: Value) -> bool:
    """Whether it is the parameters of somebody, or their ``.data``."""
    if isinstance(value, Method):
        return value.name == "data" and is_weights(value.base)
    return isinstance(value, Parameters)


def _owners(value: Value) -> frozenset[object]:
    if isinstance(value, Method):
        return _owners(value.base)
    if isinstance(value, Instance) and value.model:  # of ``model.head.weight.grad``
        return frozenset({value.id})
    return owners_of(value) if isinstance(value, (Parameters, Symbol, Tensor)) else frozenset()
