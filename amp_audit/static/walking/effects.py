"""What calls on scalers, optimizers, models and torch's functions do: the events they make and the values they give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amp_audit.static.binding.project import ClassRef, External
from amp_audit.static.source import ir
from amp_audit.static.walking.ducks import SCALER_NAME
from amp_audit.static.walking.library import SCALERS, Library
from amp_audit.static.walking.values import (
    NONE,
    Literal,
    Method,
    NoGrad,
    Region,
    Scaler,
    Symbol,
    Tensor,
    Value,
)
from amp_audit.static.walking.world import World

if TYPE_CHECKING:
    from amp_audit.static.walking.evaluate import Results


class Effects(Library):
    """Turns the calls that are not followed into events and values, on behalf of a walker."""

    def call(self, callee: Value, node: ir.Call, args: list[Value], named: dict[str, Value], world: World) -> Results:
        if isinstance(callee, External):
            return self._external(callee.dotted, node, args, named, world)
        if isinstance(callee, Method):
            return self._method(callee, node, args, named, world)
        if isinstance(callee, Symbol):
            return self._symbol(callee, node, args, named, world)
        if isinstance(callee, (Region, NoGrad)):
            return [(args[0] if args else NONE, world)]
        if isinstance(callee, Scaler):
            return [(Tensor(doubt=True), world)]
        return [(self.result(callee, node, args, named, world), world)]

    def special_class(
        self, ref: ClassRef, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results | None:
        """Project classes that are what their library base is: optimizers, schedulers, plain sub-classed scalers."""
        project = self.walker.project
        if project.is_subclass(ref, "torch.optim.Optimizer") and not self._steps_through_scaler(ref):
            return [(self._new_optimizer(node, args, named, world, closure=False), world)]
        if any(project.is_subclass(ref, name) for name in SCALERS):
            return self._new_scaler(node, named.get("enabled", Literal.of(True)), world)
        if project.is_subclass(ref, "torch.autograd.Function"):
            return [(self.result(ref, node, args, named, world), world)]
        return None

    def _steps_through_scaler(self, ref: ClassRef) -> bool:
        """Whether a class is an optimizer by name only and hands its steps to a scaler, as Accelerate's does."""
        step = self.walker.project.methods(ref).get("step")
        return step is not None and any(map(SCALER_NAME.search, step[1].words))
