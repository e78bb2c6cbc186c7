"""Calls: which are followed into the project's functions and classes, with which arguments."""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Iterable, Mapping, Set

from amp_audit.events import Event, Kind
from amp_audit.hazards import Watch
from amp_audit.records import replace
from amp_audit.state import forget
from amp_audit.static.binding import project
from amp_audit.static.source import ir
from amp_audit.static.source.names import is_scheduler
from amp_audit.static.source.traverse import last_word
from amp_audit.static.walking.ducks import is_average
from amp_audit.static.walking.effects import Effects
from amp_audit.static.walking.evaluate import Evaluator, Results
from amp_audit.static.walking.evaluate import named as called
from amp_audit.static.walking.flow import Flow
from amp_audit.static.walking.hot import Heat
from amp_audit.static.walking.unknowns import fresh, fresh_at
from amp_audit.static.walking.values import (
    NONE,
    Func,
    Instance,
    Items,
    Literal,
    Method,
    Partial,
    Region,
    Super,
    Symbol,
    Table,
    Tensor,
    Value,
    inside,
    is_gradient,
    label,
    short,
    tag,
)
from amp_audit.static.walking.world import Frame, Place, World, merge

MAX_DEPTH = 10
MAX_ASIDE = 2
"""How far away a helper's helper may run a model."""
MAX_HANDED = 60
"""How many statements a function may have that is followed for what it is handed."""
MAX_VISITS, MAX_REPEATED = 8, 600
"""How many entries walk through a function of another file, or how many statements of it they walk in all, whichever is
more; for further ones what it does is unknown."""


class Caller(Evaluator):
    """Follows calls. ``followed`` are the functions that were walked, by path and ordinal; ``entered`` says by how many
    paths each. Of those of other files ``came`` says how often the walk came to them, ``limits`` how many entries may
    walk through them. ``thrifty``: there is little fuel, so that helpers are not followed for the models that they run.
    """

    def __init__(
        self, code: project.Project, watch: Watch[Place], heat: Heat, path: str, visits: Counter[tuple[str, int]]
    ) -> None:
        """``path`` is the file of the entry; ``visits`` counts, for the whole project, entries by function."""
        super().__init__(code, watch, heat)
        self.effects = Effects(self)
        self.followed: set[tuple[str, int]] = set()
        self.entered: Counter[tuple[str, int]] = Counter()
        self.functions: dict[tuple[str, int], ir.Function] = {}
        self.came: Counter[tuple[str, int]] = Counter()
        self.thrifty = False
        self.limits: dict[tuple[str, int], int] = {}
        self._path = path
        self._visits = visits

    @abc.abstractmethod
    def block(self, body: Iterable[ir.Stmt], worlds: list[World]) -> Flow:
        """Walk statements from several worlds."""

    def evaluate_call(self, node: ir.Call, world: World) -> Results:
        if isinstance(node.func, ir.Name) and node.func.id == "super" and world.frame.cls is not None:
            return [(self._super(world), world)]
        results: Results = []
        callees = self.callee(node.func, world) if isinstance(node.func, ir.Attr) else self.eval(node.func, world)
        for callee, after in callees:
            for values, named, last in self.arguments(node.args, after):
                results += self.call(callee, node, values, named, last)
        return results

    def _super(self, world: World) -> Value:
        frame = world.frame
        first = frame.function.params[0].name if frame.function and frame.function.params else ""
        bound = frame.env.get(first, Symbol("self"))
        assert frame.cls is not None
        return Super(bound, frame.cls)

    def arguments(self, args: tuple[ir.Arg, ...], world: World) -> list[tuple[list[Value], dict[str, Value], World]]:
        found = []
        for values, after in self.each([arg.value for arg in args], world):
            positional: list[Value] = []
            named: dict[str, Value] = {}
            for arg, value in zip(args, values):
                if arg.keyword is None and not arg.star:
                    positional.append(value)
                elif arg.star == "*":
                    positional += value.items if isinstance(value, Items) else [Method(value, "*")]
                elif arg.star == "**":
                    pairs = value.items if isinstance(value, Table) else ()
                    named.update({str(key): item for key, item in pairs})
                    if not isinstance(value, Table) or value.open:
                        named.setdefault("**", value)
                elif arg.keyword is not None:
                    named[arg.keyword] = value
            found.append((positional, named, after))
        return found

    def call(self, callee: Value, node: ir.Call, args: list[Value], named: dict[str, Value], world: World) -> Results:
        if isinstance(callee, Func):
            return self.effects.given_back(callee, node, args, named, self._call_func(callee, node, args, named, world))
        if isinstance(callee, Partial):
            return self.call(callee.func, node, [*callee.args, *args], {**dict(callee.named), **named}, world)
        if isinstance(callee, project.ClassRef):
            return self._instantiate(callee, node, args, named, world)
        if isinstance(callee, Instance):
            return self._call_instance(callee, node, args, named, world)
        results = self.effects.call(callee, node, args, named, world)
        return self.effects.given_back(callee, node, args, named, results)

    def _call_func(
        self, func: Func, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        self._named_for(func, node, bool(args or named), world)
        others = self.heat.dispatched(func.function)
        if others:  # functools.singledispatch: which of them runs, the type of the first argument says
            results: Results = []
            for other in (func, *(replace(func, function=each) for each in others)):
                results += self._call_one(other, node, args, named, world.fork())
            return _merge_results(results)
        return self._call_one(func, node, args, named, world)

    def _call_one(self, func: Func, node: ir.Call, args: list[Value], named: dict[str, Value], world: World) -> Results:
        helps = self._helps(func.function, world) or self._runs_handed(func, [*args, *named.values()], world)
        runs = not helps and not self.thrifty and self._runs_a_model(func, args, named, world)
        if not (helps or runs) or func.function.is_generator:
            return [(self.effects.result(func, node, args, named, world), world)]
        if _is_too_deep(func.function, world):
            return [(fresh(node, world), world)]
        if not self._may_visit(func):
            world.state = forget(world.state)
            return [(self.effects.result(func, node, args, named, world), world)]
        results = self.follow(func, node.at, args, named, world)
        if helps:
            return results
        return [
            (value if _holds_tensor(value) else self.effects.result(func, node, args, named, after), after)
            for value, after in results
        ]

    def _helps(self, function: ir.Function, world: World) -> bool:
        """Whether a call of a function is followed whatever it is given: for its events, or for what it settles."""
        return self.heat.followed(function) or world.deciding.settles(function)

    def _runs_handed(self, func: Func, args: list[Value], world: World) -> bool:
        """Whether a function may call, or keep, one that it is handed and that can make an event: as an argument, by
        its name, by the function around it, as a decorator's, or by its object; or is handed gradients.
        """
        words = func.function.words
        if self.heat.size(func.function) > MAX_HANDED:
            return False
        given = inside(*args)
        own = func.bound if isinstance(func.bound, Instance) else None
        if any(map(is_gradient, given)):
            return True
        held = [func.env[name] for name in words & func.env.keys()] if func.env else []
        if own is not None:
            held += [value for name in words if (value := world.heap.get((own.id, name))) is not None]
        found = (*given, *inside(*held))
        if any(isinstance(item, Func) and self.heat.function(item.function) for item in found):
            return True
        if "getattr" not in words or own is None:
            return False
        names = [str(item.value) for item in given if isinstance(item, Literal)]
        classes = {item.cls for item in (own, *found) if isinstance(item, Instance) and item.cls is not None}
        named = (self.project.methods(cls).get(name) for cls in classes for name in names)
        return any(method is not None and self.heat.function(method[1]) for method in named)

    def _runs_a_model(
        self, func: Func, args: list[Value], named: dict[str, Value], world: World, depth: int = 0
    ) -> bool:
        """Whether a helper calls a model: one that it is given, or that its module or its object has; or has another
        method of its object do so.
        """
        names = self.heat.runs(func.function)
        if not names:
            return False
        params = [param.name for param in func.function.params]
        given = {**dict(zip(params, args if func.bound is None else [func.bound, *args])), **named}
        for name, attribute in names:
            value = given.get(name) or func.env.get(name) or world.globals.get((func.module.path, name))
            if attribute and isinstance(value, Instance) and not value.model:
                if depth < MAX_ASIDE and self._method_runs_a_model(value, attribute, world, depth + 1):
                    return True
                held = world.heap.get((value.id, attribute))
                value, attribute = held or Symbol("", f"{name}.{attribute}"), ""
            if attribute in ("", "forward") and self._is_a_model(value, world):
                return True
        return False

    def _method_runs_a_model(self, instance: Instance, name: str, world: World, depth: int) -> bool:
        found = self.project.methods(instance.cls).get(name) if instance.cls is not None else None
        if found is None:
            return False
        owner, method = found
        return self._runs_a_model(Func(owner.module, method, instance, {}, owner), [], {}, world, depth)

    def _is_a_model(self, value: Value | None, world: World) -> bool:
        if isinstance(value, Symbol):
            return self.effects.is_model(value, world)
        return isinstance(value, Instance) and value.model

    def _named_for(self, func: Func, node: ir.Call, given: bool, world: World) -> None:
        """The event that a method is, by the names of its class and its own, whatever it does."""
        if func.function.name == "step" and func.cls is not None and is_scheduler(func.cls.cls.name):
            self.emit(world, Event(Kind.SCHEDULER_STEP, given=given), node.at)
        if func.cls is not None and is_average(func.cls.cls.name, func.function.name):
            self.emit(world, Event(Kind.AVERAGE), node.at)

    def _may_visit(self, func: Func) -> bool:
        key = (func.module.path, func.function.at)
        if key in self.followed or func.module.path == self._path:
            return True
        self._visits[key] += 1
        self.came[key] += 1
        self.limits[key] = max(MAX_VISITS, MAX_REPEATED // self.heat.size(func.function))
        return self._visits[key] <= self.limits[key]

    def would_repeat(self) -> bool:
        """Whether the same walk would go through the same functions of other files once more."""
        return as_then(self.limits, self.followed, self._visits)

    def follow(self, func: Func, at: int, args: list[Value], named: dict[str, Value], world: World) -> Results:
        """Walk the body of a function with these arguments, unless it is running already."""
        function = func.function
        if _is_too_deep(function, world):
            return [(fresh_at(at, world), world)]
        place = (func.module.path, function.at)
        self.followed.add(place)
        self.entered[place] += 1
        self.functions[place] = function
        env = dict(_live_env(func, world))
        self._bind_parameters(func, env, args, named, world)
        world.frames.append(Frame(func.module, function, env, func.cls, calls=(*world.frame.calls, at)))
        entered = self._decorators_enter(function, world)
        stamp = world.stamp
        depth, phases, left = len(world.frames), world.state.phases, world.left
        flow = self.block(function.body, [world])
        results: Results = [*flow.returned, *((NONE, each) for each in flow.fall)]
        for _, each in results:
            if each.state.phases == phases:  # what it returned from leaves the scaler as it was; the caller goes on
                each.left = left
            self._decorators_leave(entered, function.at, each)
            each.back_to(depth - 1)
            each.stamp = stamp
        return _merge_results(results)

    def _bind_parameters(
        self, func: Func, env: dict[str, Value], args: list[Value], named: dict[str, Value], world: World
    ) -> None:
        positional = list(args) if func.bound is None else [func.bound, *args]
        spread = any(isinstance(value, Method) and value.name == "*" for value in positional) or "**" in named
        rest = dict(named)
        for param in func.function.params:
            if param.kind == "args":
                env[param.name] = Items(tuple(positional))
                positional = []
            elif param.kind == "kwargs":
                env[param.name] = Table(tuple(rest.items()))
            elif param.kind == "positional" and positional and _is_surely_one(positional[0]):
                env[param.name] = called(positional.pop(0), param.name)
            elif param.name in rest:
                env[param.name] = called(rest.pop(param.name), param.name)
            elif param.default is not None and not spread:
                env[param.name] = self._default(func, param.default, world)
            else:
                env[param.name] = parameter(func, param.name)
            given = env[param.name]
            if param.annotation is not None and isinstance(given, Symbol):
                self.declared.note(given, func.module, param.annotation)

    def _default(self, func: Func, default: ir.Expr, world: World) -> Value:
        """A default is evaluated once, when the function is defined."""
        if isinstance(default, ir.Const):
            return Literal.of(default.value)
        key = (func.module.path, f"={default.at}")
        if key not in world.globals:
            world.put_global(*key, self.once(func.module, default, world))
        return world.globals[key]

    def _decorators_enter(self, function: ir.Function, world: World) -> list[Value]:
        """Autocast and no_grad as decorators are regions around the body."""
        entered: list[Value] = []
        for decorator in function.decorators:
            if self.heat.decorator(decorator):
                for value, _ in self.eval(decorator, world)[:1]:
                    context = self.effects.as_context(value)
                    if context is not None:
                        self.effects.enter(context, decorator.at, world)
                        entered.append(context)
        return entered

    def _decorators_leave(self, entered: list[Value], at: int, world: World) -> None:
        for value in reversed(entered):
            depth = len(world.state.regions) - isinstance(value, Region)
            self.effects.leave(value, at, world, max(0, depth))

    def _instantiate(
        self, ref: project.ClassRef, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        special = self.effects.special_class(ref, node, args, named, world)
        if special is not None:
            return special
        identity = world.identity(node.at)
        instance = Instance(identity, ref, self.project.is_subclass(ref, "torch.nn.Module"))
        return [(instance, after) for after in self.initialise(instance, node.at, args, named, world)]

    def initialise(
        self, instance: Instance, at: int, args: list[Value], named: dict[str, Value], world: World
    ) -> list[World]:
        """Run ``__init__`` on a new instance, or fill the fields of a dataclass."""
        assert instance.cls is not None
        methods = self.project.methods(instance.cls)
        method = methods.get("__init__")
        if method is None:
            self._fill_fields(instance, args, named, world)
            method, args, named = methods.get("__post_init__"), [], {}
        if method is None:
            return [world]
        func = Func(method[0].module, method[1], instance, {}, method[0])
        by_name = not instance.model  # a model that looks its layers up by name calls nobody back
        matters = any(self._helps(each, world) or (by_name and "getattr" in each.words) for _, each in methods.values())
        if not matters:
            return [world]
        return [after for _, after in self.follow(func, at, args, named, world)]

    def _fill_fields(self, instance: Instance, args: list[Value], named: dict[str, Value], world: World) -> None:
        """The fields of a dataclass or named tuple; those that an unknown ``**`` may set are unknown."""
        assert instance.cls is not None
        names = [name for statement in instance.cls.cls.body for name in _field(statement)]
        for name, value in zip(names, args):
            world.put(instance.id, name, value)
        for name in names[len(args) :]:
            if name in named:
                world.put(instance.id, name, named[name])
            elif "**" in named:
                world.put(instance.id, name, Symbol(short(f"{label(instance.id)}.{name}"), name))
        for name in names:
            given = world.heap.get((instance.id, name))
            if isinstance(given, Symbol):
                self.declared.note_field(given, instance.cls, name)

    def _call_instance(
        self, instance: Instance, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        methods = self.project.methods(instance.cls) if instance.cls is not None else {}
        name = "forward" if instance.model and "__call__" not in methods else "__call__"
        method = methods.get(name)
        if instance.model:
            self.effects.forward(instance, node.at, world, last_word(node.func))
        func = Func(method[0].module, method[1], instance, {}, method[0]) if method is not None else None
        if func is not None and self._goes_into(func, [*args, *named.values()], world):
            results = self.follow(func, node.at, args, named, world)
            if not instance.model:
                return results
            return [(self.effects.output(instance, v, args, named, after), after) for v, after in results]
        if instance.model:
            return [(self.effects.output(instance, None, args, named, world), world)]
        return [(self.effects.result(instance, node, args, named, world), world)]

    def _goes_into(self, func: Func, args: list[Value], world: World) -> bool:
        """Whether a call of an object goes through the code of its class."""
        matters = self.heat.function(func.function) or self._runs_handed(func, args, world)
        return matters and not _is_too_deep(func.function, world)


def _is_too_deep(function: ir.Function, world: World) -> bool:
    """Whether a call of a function is a recursion, or deeper than calls are followed."""
    return len(world.frames) > MAX_DEPTH or any(frame.function is function for frame in world.frames)


def _is_surely_one(value: Value) -> bool:
    """Whether an argument is surely one: a spread list may be several, or none."""
    return not isinstance(value, Method) or is_gradient(value)


def _holds_tensor(value: Value) -> bool:
    """Whether it could be told what a helper computes."""
    return any(isinstance(item, Tensor) for item in inside(value))


def as_then(
    limits: Mapping[tuple[str, int], int], followed: Set[tuple[str, int]], visits: Mapping[tuple[str, int], int]
) -> bool:
    """Whether a walk that came to functions with these ``limits`` and went through some would go through them now."""
    return all((visits.get(key, 0) < limit) is (key in followed) for key, limit in limits.items())


def _field(statement: ir.Stmt) -> list[str]:
    if isinstance(statement, ir.Declare) and isinstance(statement.target, ir.Name):
        return [statement.target.id]
    if isinstance(statement, ir.Assign):
        return [target.id for target in statement.targets if isinstance(target, ir.Name)]
    return []


def parameter(func: Func, name: str) -> Symbol:
    """What an argument is when nobody who passes it is known."""
    return Symbol(f"{tag(func.module.path)}:{func.function.qualname}({name})", name, param=True)


def _merge_results(results: Results) -> Results:
    """One world for each distinct (value, state)."""
    if len(results) < 2:
        return results
    groups: dict[Value, list[World]] = {}
    for value, world in results:
        groups.setdefault(value, []).append(world)
    return [(value, world) for value, worlds in groups.items() for world in merge(worlds)]


def _live_env(func: Func, world: World) -> dict[str, Value]:
    """The frame a nested function was defined in, as it is now when it is still running."""
    for frame in reversed(world.frames):
        if frame.function is not None and f"{frame.function.qualname}.<locals>." in f"{func.function.qualname}.":
            return frame.env
        if func.function.name == "<lambda>" and frame.env is func.env:
            return frame.env
    return func.env
