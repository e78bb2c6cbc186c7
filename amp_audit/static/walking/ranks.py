"""What reaches beyond one thread or one rank: work handed to threads, communication hooks, iterations left out."""

from __future__ import annotations

import re

from amp_audit.events import Event, Kind
from amp_audit.static.source import ir
from amp_audit.static.source.conditions import exclude, facts_of, last_bindings
from amp_audit.static.source.names import is_called_model
from amp_audit.static.source.traverse import names_in, statements, walk
from amp_audit.static.walking.byhand import FINITE, ByHand
from amp_audit.static.walking.lineage import REPLICATED, REPLICATED_UNDER, own_body
from amp_audit.static.walking.values import (
    Func,
    Instance,
    Items,
    Literal,
    Method,
    Partial,
    Symbol,
    Value,
    inside,
    key_of,
)
from amp_audit.static.walking.world import World

POOL = re.compile(r"ThreadPool|(^|_)(thread_?)?(pool|executor)$|(^|\W)Thread$", re.IGNORECASE)
_AGREED = re.compile(r"reduce|gather|broadcast|sync|barrier|MAX|any_rank|world", re.IGNORECASE)


class Ranks(ByHand):
    """Turns such calls and statements into events."""

    def threaded(self, pool: str, name: str, args: list[Value], named: dict[str, Value], at: int, world: World) -> None:
        """Work that is handed to a thread, which starts with autocast off, whatever the region here says."""
        hands_over = name in ("submit", "map", "apply_async", "Thread") and bool(POOL.search(pool))
        if not hands_over:
            return
        values = inside(*args, *named.values())
        if any(self._runs_model(value, world) for value in values) or self._runs_given(name, args, named, world):
            self.walker.emit(world, Event(Kind.THREAD), at)

    def _runs_given(self, name: str, args: list[Value], named: dict[str, Value], world: World) -> bool:
        """Whether what is called a model is handed over to be run, or to a function that runs it."""
        of_thread = name == "Thread"
        work = named.get("target") if of_thread else args[0] if args else None
        if not isinstance(work, Func):
            return isinstance(work, Symbol) and _is_called_model(work)
        told = named.get("args")
        given = list(told.items) if isinstance(told, Items) else [] if of_thread else args[1:]
        words = work.function.words
        if "autocast" in words:
            return False
        called = self.walker.heat.calls(work.function)
        around = {**world.env, **work.env}
        if any(is_called_model(name) and isinstance(around.get(name), Symbol) for name in called):
            return True
        params = [param.name for param in work.function.params][work.bound is not None :]
        return any(
            name in called and (is_called_model(name) or (isinstance(value, Symbol) and _is_called_model(value)))
            for name, value in zip(params, given)
        )

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
        body = own_body(world)
        if not replicated or any(map(_AGREED.search, words)) or not _waits_for_backward(world):
            return
        if self._asks_the_others(test, body, world):
            return
        here = self.walker.heat.facts_at(body, test.at) | facts_of(test, True, lambda _: None, last_bindings(body))
        wrapped = [v.value for (_, key), v in world.heap.items() if key == REPLICATED_UNDER and isinstance(v, Literal)]
        if not all(isinstance(facts, frozenset) and exclude(here, facts) for facts in wrapped or [None]):
            self.walker.emit(world, Event(Kind.LEAVE_OUT), at)

    def _asks_the_others(self, test: ir.Expr, body: tuple[ir.Stmt, ...], world: World) -> bool:
        """Whether a test goes by what a function says that speaks with the other ranks."""
        names = set(names_in(test))
        assigned = (
            node.value
            for node in statements(body)
            if isinstance(node, ir.Assign) and any(isinstance(to, ir.Name) and to.id in names for to in node.targets)
        )
        callees = (part.func for expr in (test, *assigned) for part in walk(expr) if isinstance(part, ir.Call))
        found = (
            value
            for func in callees
            if isinstance(func, (ir.Name, ir.Attr))
            for value, _ in self.walker.eval(func, world)
        )
        return any(any(map(_AGREED.search, value.function.words)) for value in found if isinstance(value, Func))

    def returned_early(self, test: ir.Expr | None, at: int, world: World) -> None:
        """The same by ``return`` in a function that goes backward after the test, and is called round by round."""
        function = world.frame.function
        if test is None or function is None or "backward" not in function.words or not world.rounds:
            return
        if any(isinstance(node, ir.If) and node.test is test for node in statements(function.body)):
            self.left_out(test, at, world)


def _is_called_model(value: Symbol) -> bool:
    """Whether it is called a model, or comes from a list that is called one of models."""
    words = re.split(r"\W+", value.key)
    return any(map(is_called_model, (value.text.rpartition(".")[2], *words)))


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
