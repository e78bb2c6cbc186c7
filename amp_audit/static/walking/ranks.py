"""What reaches beyond one thread or one rank: work handed to threads, communication hooks, iterations left out."""

from __future__ import annotations

import re

from amp_audit.events import Event, Kind
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import names_in
from amp_audit.static.walking.byhand import FINITE, ByHand
from amp_audit.static.walking.lineage import REPLICATED
from amp_audit.static.walking.values import Func, Instance, Literal, Method, Partial, Symbol, Value, inside, key_of
from amp_audit.static.walking.world import World

POOL = re.compile(r"ThreadPool|(^|_)(thread_?)?(pool|executor)$|(^|\W)Thread$", re.IGNORECASE)
_AGREED = re.compile(r"reduce|gather|broadcast|sync|barrier|MAX|any_rank|world", re.IGNORECASE)


class Ranks(ByHand):
    """Turns such calls and statements into events."""

    def threaded(self, pool: str, name: str, args: list[Value], named: dict[str, Value], at: int, world: World) -> None:
        """Work that is handed to a thread, which starts with autocast off, whatever the region here says."""
        hands_over = name in ("submit", "map", "apply_async", "Thread") and bool(POOL.search(pool))
        values = [item for value in (*args, *named.values()) for item in inside(value)]
        if hands_over and any(self._runs_model(value, world) for value in values):
            self.walker.emit(world, Event(Kind.THREAD), at)

    def _runs_model(self, value: Value, world: World) -> bool:
        if isinstance(value, Partial):
            return self._runs_model(value.func, world)
        if isinstance(value, Func):
            words = value.function.words
            bound = [*value.env.items(), *world.env.items()]
            known: list[Value] = [held for name, held in bound if name in words and not isinstance(held, Func)]
            if isinstance(value.bound, Instance):  # a method runs what its object holds
                own = [world.heap.get((value.bound.id, name)) for name in words]
                known += [part for each in own if each is not None for part in inside(each)]
            return "autocast" not in words and any(self._is_some_model(each, world) for each in known)
        return self._is_some_model(value, world)

    def _is_some_model(self, value: Value, world: World) -> bool:
        if isinstance(value, Method):
            return value.name == "forward" and self._is_some_model(value.base, world)
        return (isinstance(value, Instance) and value.model) or (
            isinstance(value, Symbol) and self.is_model(value, world)
        )

    def comm_hook(self, node: ir.Call, args: list[Value], world: World) -> None:
        """``register_comm_hook(state, hook)``: gradients are sent in the dtype that the hook compresses them to.

        A variable that holds the hook was chosen, by a setting that somebody set on purpose.
        """
        for arg, value in zip(node.args, args):
            if "fp16_compress" in key_of(value) and not self._is_variable(arg.value, world):
                self.walker.emit(world, Event(Kind.HOOK, dtype="float16"), node.at)

    def _is_variable(self, expr: ir.Expr, world: World) -> bool:
        if not isinstance(expr, ir.Name):
            return False
        return expr.id in world.env or (world.frame.module.path, expr.id) in world.globals

    def left_out(self, test: ir.Expr | None, at: int, world: World) -> None:
        """``continue`` between forward and backward because this rank's loss is not finite, under DDP."""
        if test is None or not any(map(FINITE.search, names_in(test))):
            return
        function = world.frame.function
        words = function.words if function is not None else world.frame.module.words
        replicated = any(key == REPLICATED and value == Literal.of(True) for (_, key), value in world.heap.items())
        if replicated and not any(map(_AGREED.search, words)) and _waits_for_backward(world):
            self.walker.emit(world, Event(Kind.LEAVE_OUT), at)


def _waits_for_backward(world: World) -> bool:
    """Whether a model has run in this iteration, and no backward since."""
    step, start = world.trail, world.rounds[-1] if world.rounds else None
    while step is not None and step is not start:
        if step.event.kind in (Kind.BACKWARD, Kind.ITERATION_END):
            return False
        if step.event.kind is Kind.FORWARD:
            return True
        step = step.previous
    return False
