"""Expressions -> values, in worlds: names, attributes, operators, displays and what a loop runs over."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING

from amp_audit import events
from amp_audit.hazards import Happened, Hazard, Watch
from amp_audit.records import replace
from amp_audit.state import blur, forget
from amp_audit.static.binding import project
from amp_audit.static.source import ir
from amp_audit.static.source.names import SKIP, UNFIT, UNUSABLE
from amp_audit.static.walking.algebra import combine, comparison, descaled, display, merged, subscript, unary, with_item
from amp_audit.static.walking.boundaries import Boundaries
from amp_audit.static.walking.choices import chosen, is_choice
from amp_audit.static.walking.declared import Declared, decorator_name, is_property
from amp_audit.static.walking.granted import Granted
from amp_audit.static.walking.helpers import schedules_at
from amp_audit.static.walking.hot import Heat, dotted
from amp_audit.static.walking.kinship import concerned_in_part, is_wrapped
from amp_audit.static.walking.lineage import thaw
from amp_audit.static.walking.stages import asks_for_gradient, asks_for_scale, has_gradients, stage_test
from amp_audit.static.walking.unknowns import counter, fresh, named_after, setting, settle_remainder
from amp_audit.static.walking.unrolled import unrolled
from amp_audit.static.walking.values import (
    GRADIENT,
    NONE,
    Condition,
    Func,
    Instance,
    Items,
    Literal,
    Method,
    Parameters,
    Super,
    Symbol,
    Table,
    Tensor,
    Value,
    constant,
    extended,
    is_gradient,
    is_none,
    is_volatile,
    key_of,
    label,
    short,
    tag,
)
from amp_audit.static.walking.world import Frame, Place, World, split, truth_of

if TYPE_CHECKING:
    from amp_audit.static.walking.effects import Effects

Results = list[tuple[Value, World]]
MAX_UNROLL = 4


class Evaluator(abc.ABC):
    """Evaluates expressions. ``hazards`` and ``happened`` collect what was met on all paths.

    Evaluation returns pairs of a value and the world it holds in, because a call that is followed may fork.
    """

    effects: Effects

    def __init__(self, code: project.Project, watch: Watch[Place], heat: Heat) -> None:
        self.project = code
        self.watch = watch
        self.heat = heat
        self.hazards: list[Hazard[Place]] = []
        self._told: set[Hashable] = set()  # of the hazards: each is met on many paths
        self.happened = Happened()
        self.boundaries = Boundaries()
        self.unsteady = False  # whether a test that was decided since this was reset changes from round to round
        self.declared = Declared(code)
        self._loops: list[int] = []
        self._tests: list[ir.Expr] = []  # of the branches around
        self._guards = [0]  # for each loop around: how many tests of what changes stand between it and here
        self._outside = [0]  # for each loop around: how many tests stand around it
        self._yielding: list[Callable[[World], list[World]]] = []
        self.granted = Granted()
        self._handling = 0  # how many exception handlers stand around
        self._catching = 0  # how many statements stand around that have some

    @abc.abstractmethod
    def follow(self, func: Func, at: int, args: list[Value], named: dict[str, Value], world: World) -> Results:
        """Walk the body of a function with these arguments."""

    @abc.abstractmethod
    def evaluate_call(self, node: ir.Call, world: World) -> Results:
        """The value of a call, and what it does."""

    # Events

    def emit(self, world: World, event: events.Event, at: int, path: str | None = None) -> None:
        event = self._placed(event, world)
        place = (path or world.frame.module.path, at)
        if event.kind is events.Kind.SCHEDULER_STEP:
            place = schedules_at(world, at)
        world.state, world.trail, found = self.watch.take(world.state, event, place, world.trail, self._told)
        partly = concerned_in_part(world, event)
        if partly:
            world.state = blur(world.state, partly)
        self.happened.add(event)
        self.hazards += found
        world.dead = world.dead or world.trail.raises

    def _placed(self, event: events.Event, world: World) -> events.Event:
        """An event with what the tests and loops around it say."""
        if event.kind in (events.Kind.STEP, events.Kind.CLIP, events.Kind.ZERO_GRAD):
            clears = event.kind is events.Kind.ZERO_GRAD
            drops = clears and self.asked(UNUSABLE)
            left_out = drops or (clears and (self._handling > 0 or self.asked(UNFIT)))
            sometimes = self._guards[-1] > 0 or left_out
            reached = self.boundaries.reached(world)
            asks = clears and not reached and not sometimes
            missed = self.boundaries.surely_missed(world) if asks else event.missed
            event = replace(event, boundaries=reached, missed=missed, sometimes=sometimes, loops=tuple(self._loops))
            keeps = event.kind is events.Kind.STEP and any(self.heat.keeps(frame.function) for frame in world.frames)
            return replace(event, given=True) if drops or keeps else event
        if event.kind in (events.Kind.SCHEDULER_STEP, events.Kind.AVERAGE):
            sometimes = self.asked(SKIP) or asks_for_scale(self._tests, world)
            return replace(event, sometimes=sometimes, loops=tuple(self._loops))
        return event

    def asked(self, pattern: re.Pattern[str]) -> bool:
        """Whether a test around has a name that fits."""
        return any(self.heat.asks(test, pattern) for test in self._tests)

    # Names

    def bind(self, target: ir.Expr, value: Value, world: World) -> None:
        if isinstance(target, ir.Name):
            self._set_name(target.id, named(value, target.id), world)
        elif isinstance(target, ir.Attr):
            for base, _ in self.eval(target.base, world)[:1]:
                self.effects.set_attribute(base, target, value, world)
        elif isinstance(target, ir.Subscript):
            self._set_item(target, value, world)
        elif isinstance(target, ir.Starred):
            self.bind(target.value, Symbol(key_of(value), volatile=is_volatile(value)), world)
        elif isinstance(target, ir.Sequence):
            for number, part in enumerate(target.items):
                item = self._part(value, number, len(target.items))
                self.bind(part, item, world)

    def _part(self, value: Value, number: int, count: int) -> Value:
        if isinstance(value, Items) and len(value.items) == count:
            return value.items[number]
        return subscript(value, Literal.of(number))

    def chooses(self) -> bool:
        """Whether a test stands between the innermost loop around and here: not every round comes here."""
        return len(self._tests) > self._outside[-1]

    def _set_name(self, name: str, value: Value, world: World) -> None:
        frame = world.frame
        if frame.function is None or frame.shared.get(name) == "global":
            world.put_global(frame.module.path, name, value)
        else:
            frame.env[name] = value

    def _set_item(self, target: ir.Subscript, value: Value, world: World) -> None:
        for base, after in self.eval(target.base, world)[:1]:
            for index, _ in self.eval(target.index, after)[:1]:
                if isinstance(base, Table):
                    known = isinstance(index, Literal)
                    table = base.put(index.value, value) if isinstance(index, Literal) else replace(base, open=True)
                    if known or not base.open:
                        self.bind(target.base, table, world)
                elif isinstance(base, (Symbol, Instance)) and isinstance(index, Literal):
                    world.put(key_of(base), f"[{index.value!r}]", value)
                    thaw(world, [base.id] if isinstance(base, Instance) else [])  # another part in it

    def lookup(self, name: str, world: World) -> Value:
        frame = world.frame
        found = frame.env.get(name)
        if found is None:
            found = world.globals.get((frame.module.path, name))
        if found is not None:
            return found
        return self.bound(self.project.lookup(frame.module, name), world, name)

    def bound(self, binding: project.Binding, world: World, name: str = "") -> Value:
        """The value of a resolved name."""
        if isinstance(binding, (project.External, project.ClassRef, project.ModuleRef)):
            return binding
        if isinstance(binding, project.FunctionRef):
            return Func(binding.module, binding.function)
        if isinstance(binding, project.Alternatives):
            return self.bound(_prefer(binding), world, name)
        if isinstance(binding, project.ValueRef):
            return self._module_value(binding, world, name)
        return Symbol(f"{tag(world.frame.module.path)}:{name}", name)

    def _module_value(self, binding: project.ValueRef, world: World, name: str) -> Value:
        """A variable of a module whose own code has not been walked on this path."""
        key = (binding.module.path, f"={binding.expr.at}")
        if key not in world.globals:
            world.put_global(*key, Symbol(f"{tag(binding.module.path)}:{name}", name))
            value = self.once(binding.module, binding.expr, world)
            world.put_global(*key, setting(named(value, name), f"{tag(binding.module.path)}:{name}", name))
        return world.globals[key]

    def once(self, module: ir.Module, expr: ir.Expr, world: World) -> Value:
        """The value of an expression that is evaluated once, when its module is imported."""
        world.frames.append(Frame(module))
        stamp, world.stamp = world.stamp, ()
        results = self.eval(expr, world)
        world.stamp = stamp
        world.frames.pop()
        same = len(results) == 1 and results[0][1] is world
        return results[0][0] if same else Symbol(f"{tag(module.path)}:{expr.at}")

    # Expressions

    def eval(self, node: ir.Expr, world: World) -> Results:
        handler = _EXPRESSIONS.get(type(node))
        return handler(self, node, world) if handler else [(fresh(node, world), world)]

    def each(self, nodes: Iterable[ir.Expr], world: World) -> list[tuple[list[Value], World]]:
        """Evaluate several expressions one after the other."""
        first: list[Value] = []
        rest = iter(nodes)
        for node in rest:
            results = self.eval(node, world)
            if len(results) != 1:
                break
            value, world = results[0]
            first.append(value)
        else:  # most often
            return [(first, world)]
        paths = [([*first, value], after) for value, after in results]
        for node in rest:
            paths = [([*values, value], after) for values, each in paths for value, after in self.eval(node, each)]
        return paths

    def _const(self, node: ir.Const, world: World) -> Results:
        return [(constant(node.value), world)]

    def _name(self, node: ir.Name, world: World) -> Results:
        return [(self.lookup(node.id, world), world)]

    def _attr(self, node: ir.Attr, world: World) -> Results:
        """An attribute that is not called; one of a tensor or a model's output is a tensor as well."""
        results = self.callee(node, world)
        if any(is_none(value) for value, _ in results) and self._is_granted(node, world):
            return [(self._filled(node, after) if is_none(value) else value, after) for value, after in results]
        return [(_as_tensor(value), after) for value, after in results]

    def _is_granted(self, place: ir.Attr, world: World) -> bool:
        """Whether the function that runs takes for granted that something stands at a place."""
        frame = world.frame
        return frame.function is not None and dotted(place) in self.granted.of(frame.function, frame.module)

    def callee(self, node: ir.Attr, world: World) -> Results:
        results: Results = []
        for base, after in self.eval(node.base, world):
            if isinstance(node.base, ir.Attr) and is_none(base):
                base = self._filled(node.base, after)
            if isinstance(base, Symbol) and after.known(Condition(f"{base.key} is None", volatile=base.volatile)):
                continue  # None has no such attribute: nobody takes this path
            text = "" if isinstance(base, Symbol) and base.text else self.heat.dotted(node)
            results += self.attribute(base, node.name, text, node.at, after)
        return results

    def _filled(self, place: ir.Attr, world: World) -> Value:
        """What stands where ``__init__`` had put None, when the code uses it: something that is set out of sight."""
        text = dotted(place)
        value = Symbol(f"{tag(world.frame.module.path)}:{text or place.at}", text)
        world.decide(Condition(f"{value.key} is None"), False)
        world.decide(Condition(value.key), True)
        self.bind(place, value, world)
        return value

    def attribute(self, base: Value, name: str, text: str, at: int, world: World) -> Results:
        """``base.name``; properties of project classes are followed."""
        if isinstance(base, project.External):
            return [(self.bound(self.project.member(base, name), world, name), world)]
        if isinstance(base, project.ModuleRef):
            if base.module is not None and (base.module.path, name) in world.globals:
                return [(world.globals[(base.module.path, name)], world)]
            member = self.project.member(base, name)
            return [(self.bound(member, world, name), world)]
        if isinstance(base, (Instance, Super, project.ClassRef)):
            return self._member(base, name, text, at, world)
        if isinstance(base, Symbol):
            held = world.heap.get((base.key, name))
            if held is not None:
                return [(held, world)]
            if name == "module" and is_wrapped(base, world):
                return [(base, world)]
            if name == "grad" and (base.volatile or base.text.rpartition(".")[2] in ("weight", "bias")):
                return [(GRADIENT, world)]
            if name == "requires_grad" and not world.no_grad and "backward" in self.effects.methods_used(base, world):
                return [(Literal.of(True), world)]  # of a loss, whatever it was made by
            chosen = self.declared.dtype_property(base, name)
            if chosen is not None:
                return self.follow(chosen, at, [], {}, world)
            key, shown = extended(base.key, name), f"{base.text}.{name}" if base.text else text
            return [(Symbol(key, shown, base.volatile, base.param, base.giver), world)]
        return [(self.effects.get_attribute(base, name, world), world)]

    def _member(
        self, base: Instance | Super | project.ClassRef, name: str, text: str, at: int, world: World
    ) -> Results:
        bound = base.bound if isinstance(base, Super) else base
        if isinstance(base, Instance):
            held = world.heap.get((base.id, name))
            if held is not None:
                return [(held, world)]
        cls = base if isinstance(base, project.ClassRef) else base.cls
        found = self._class_member(cls, name, isinstance(base, Super)) if cls is not None else None
        if isinstance(found, project.FunctionRef) and cls is not None:
            owner = self._owner(cls, found)
            func = Func(found.module, found.function, None if _static(found.function) else bound, {}, owner)
            if isinstance(base, project.ClassRef) and not _classmethod(found.function):
                func = replace(func, bound=None)
            if is_property(found.function) and not isinstance(base, project.ClassRef):
                if not self.heat.function(found.function):
                    return [(Symbol(short(f"{key_of(bound)}.{name}"), text), world)]
                return self.follow(func, at, [], {}, world)
            return [(func, world)]
        if isinstance(found, project.ValueRef):
            return [(self._module_value(found, world, name), world)]
        if isinstance(found, (project.External, project.ClassRef)):
            return [(found, world)]
        if isinstance(base, Instance):
            if base.model and name == "module":
                return [(base, world)]
            if base.model:
                return [(Method(base, name), world)]
            field = Symbol(short(f"{label(base.id)}.{name}"), text)
            if base.cls is not None:
                self.declared.note_field(field, base.cls, name)
            return [(field, world)]
        return [(Method(base, name) if isinstance(base, Super) else Symbol(f"{text}#{at}", text), world)]

    def _class_member(self, cls: project.ClassRef, name: str, above: bool) -> project.Binding | None:
        if not above:
            found = self.project.member(cls, name)
            return None if isinstance(found, project.Unknown) else found
        for parent in self.project.bases(cls):
            found = self.project.member(parent, name)
            if isinstance(found, (project.FunctionRef, project.ValueRef)):
                return found
        return None

    def _owner(self, cls: project.ClassRef, found: project.FunctionRef) -> project.ClassRef:
        """The class in whose body a method stands (for ``super``)."""
        owned = self.project.methods(cls).get(found.function.name)
        return owned[0] if owned is not None and owned[1] is found.function else cls

    def _subscript_expr(self, node: ir.Subscript, world: World) -> Results:
        results: Results = []
        for base, after in self.eval(node.base, world):
            for index, last in self.eval(node.index, after):
                held = None
                if isinstance(base, Table) and is_choice(base, index):
                    results += chosen(base, index, last)[0]
                    continue
                if isinstance(base, (Symbol, Instance)) and isinstance(index, Literal):
                    held = last.heap.get((key_of(base), f"[{index.value!r}]"))
                results.append((held if held is not None else self._item(node, base, index, last), last))
        return results

    def _item(self, node: ir.Subscript, base: Value, index: Value, world: World) -> Value:
        """What a subscript gives; of a dict that is filled out of sight, which one it was is all that is known."""
        found = subscript(base, index)
        text = dotted(node.base)
        if not isinstance(base, Table) or not isinstance(found, Symbol) or not text or _is_put_in_sight(base, index):
            return found
        return replace(found, key=short(f"{tag(world.frame.module.path)}:{text}[{key_of(index)}]"), text=text)

    def _binary(self, node: ir.Binary, world: World) -> Results:
        results: Results = []
        for (left, right), after in self.each((node.left, node.right), world):
            value = combine(node.op, named_after(left, node.left), named_after(right, node.right))
            scale = descaled(node.op, left, right)
            if scale is not None:
                value = self.effects.descale(value, (left, right), scale, node.at, after)
            elif node.op == "%":
                settle_remainder(left, value, after)
                self.boundaries.remainder(node, right, value, after, tuple(self._loops))
            results.append((value, after))
        return results

    def _unary(self, node: ir.Unary, world: World) -> Results:
        return [(unary(node.op, value), after) for value, after in self.eval(node.operand, world)]

    def _compare(self, node: ir.Compare, world: World) -> Results:
        nodes = (node.left, *(right for _, right in node.rest))
        results: Results = []
        for values, after in self.each(nodes, world):
            if len(node.rest) == 1:
                left = GRADIENT if asks_for_gradient(node.left) and has_gradients(after) else values[0]
                stage = stage_test(node.rest[0][0], left, values[1], after)
                value = stage or comparison(node.rest[0][0], left, values[1])
                self.boundaries.compared(node, values, value, after, tuple(self._loops))
                results.append((value, after))
            else:
                text = " ".join(key_of(value) for value in values)
                results.append((Condition(short(f"chain {text}"), volatile=any(map(is_volatile, values))), after))
        return results

    def _boolop(self, node: ir.BoolOp, world: World) -> Results:
        """``a or b``: the first where it decides, else the second; an unknown first forks."""
        results: Results = []
        for left, after in self.eval(node.left, world):
            for true, side in split(after, left):
                if true is (node.op == "or"):
                    results.append((Literal.of(true) if isinstance(left, Condition) else left, side))
                else:
                    results += self.eval(node.right, side)
        return results

    def _ifexp(self, node: ir.IfExp, world: World) -> Results:
        results: Results = []
        for true, after in self.decide(node.test, world):
            results += self.eval(node.body if true else node.orelse, after)
        return results

    def _sequence(self, node: ir.Sequence, world: World) -> Results:
        return [(display(values), after) for values, after in self.each(node.items, world)]

    def _starred(self, node: ir.Starred, world: World) -> Results:
        return [(Method(value, "*"), after) for value, after in self.eval(node.value, world)]

    def _mapping(self, node: ir.Mapping, world: World) -> Results:
        results: Results = []
        nodes = [part for key, value in node.items for part in ((value,) if key is None else (key, value))]
        for values, after in self.each(nodes, world):
            table, rest = Table(), iter(values)
            for key, _ in node.items:
                table = merged(table, next(rest)) if key is None else with_item(table, next(rest), next(rest))
            results.append((table, after))
        return results

    def _lambda(self, node: ir.Lambda, world: World) -> Results:
        return [(Func(world.frame.module, node.function, None, world.env, world.frame.cls), world)]

    def _comprehension(self, node: ir.Comprehension, world: World) -> Results:
        apart = unrolled(self, node, world)
        if apart is not None:
            return apart
        paths, owners = [world], set()
        for target, iterable, _ in node.loops:
            paths = [after for each in paths for after in self._bind_element(target, iterable, each)]
        results: Results = []
        for each in paths:
            parts = (node.element,) if node.key is None else (node.key, node.element)
            for values, after in self.each(parts, each):
                element = values[-1]
                owners = set(element.owners) if isinstance(element, (Parameters, Tensor)) else set()
                if is_gradient(element):
                    results.append((element, after))
                elif isinstance(element, Parameters):
                    part = element.part or any(tests for _, _, tests in node.loops)
                    results.append((Parameters(frozenset(owners), part), after))
                elif isinstance(element, Tensor):
                    results.append((element, after))
                elif isinstance(element, Literal) and not any(tests for _, _, tests in node.loops):
                    results.append((Method(element, "each"), after))
                else:
                    results.append(
                        (Symbol(short(f"[{key_of(element)} {node.at}]"), volatile=is_volatile(element)), after)
                    )
        return results

    def _bind_element(self, target: ir.Expr, iterable: ir.Expr, world: World) -> list[World]:
        ends = []
        for value, after in self.eval(iterable, world):
            known = self.known_items(value)
            item = known[0] if known else self.element(value, 0, after)
            self.bind(target, item, after)
            ends.append(after)
        return ends

    def _text(self, node: ir.Text, world: World) -> Results:
        return [
            (Symbol(short(f"f{[key_of(v) for v in values]}"), volatile=any(map(is_volatile, values))), after)
            for values, after in self.each(node.parts, world)
        ]

    def _yield(self, node: ir.Yield, world: World) -> Results:
        results = [(NONE, world)] if node.value is None else self.eval(node.value, world)
        if not self._yielding:
            for _, after in results:
                if "backward" not in after.state.ever:  # whoever goes on with it trains
                    after.state = forget(after.state)
            return [(fresh(node, after), after) for _, after in results]
        resume = self._yielding.pop()
        ends: Results = [(NONE, end) for _, after in results for end in resume(after)]
        self._yielding.append(resume)
        return ends

    def _await(self, node: ir.Await, world: World) -> Results:
        return self.eval(node.value, world)

    def _walrus(self, node: ir.Walrus, world: World) -> Results:
        results = self.eval(node.value, world)
        for value, after in results:
            self.bind(node.target, value, after)
        return results

    # Conditions and iteration

    def decide(self, test: ir.Expr, world: World) -> list[tuple[bool, World]]:
        """Both sides of a condition; ``and`` / ``or`` / ``not`` are taken apart, so each part is remembered."""
        if isinstance(test, ir.Unary) and test.op == "not":
            return [(not true, after) for true, after in self.decide(test.operand, world)]
        if isinstance(test, ir.BoolOp):
            decided: list[tuple[bool, World]] = []
            for true, after in self.decide(test.left, world):
                short_cut = true is (test.op == "or")
                decided += [(true, after)] if short_cut else self.decide(test.right, after)
            return decided
        decided = []
        for value, after in self.eval(test, world):
            truth = truth_of(value)
            self.unsteady = self.unsteady or (isinstance(truth, Condition) and truth.volatile)
            decided += split(after, value)
        return decided

    def known_items(self, value: Value) -> list[Value] | None:
        """The items of a short display, through ``enumerate`` and ``zip`` as well."""
        if isinstance(value, Method) and value.name == "enumerate":
            items = self.known_items(value.base)
            return None if items is None else [Items((Literal.of(n), item)) for n, item in enumerate(items)]
        if isinstance(value, Method) and value.name == "zip" and isinstance(value.base, Items):
            columns = [self.known_items(column) for column in value.base.items]
            if any(column is None for column in columns):
                return None
            return [Items(row) for row in zip(*(column for column in columns if column is not None))]
        if not isinstance(value, Items) or not 0 < len(value.items) <= MAX_UNROLL:
            return None  # an empty list is there to be filled
        spread = any(isinstance(item, Method) and item.name == "*" for item in value.items)
        return None if spread else list(value.items)

    def element(self, value: Value, number: int, world: World) -> Value:
        """The item of an unknown iterable in one round; the same round of another loop over it gives the same."""
        if isinstance(value, Parameters) and value.named:
            name = Symbol(short(f"{key_of(value)}[{number}].name"), volatile=True)
            return Items((name, replace(value, named=False)))
        if isinstance(value, (Parameters, Tensor)) or is_gradient(value):
            return value
        if isinstance(value, Method) and value.name == "enumerate":
            return Items((counter(key_of(value), number, world), self.element(value.base, number, world)))
        if isinstance(value, Method) and value.name == "zip" and isinstance(value.base, Items):
            return Items(tuple(self.element(column, number, world) for column in value.base.items))
        if isinstance(value, Method) and value.name == "range":
            return counter(key_of(value), number, world)
        known = self.known_items(value)
        if known:  # beside others of unknown length: of the rounds that are walked, each has its own as far as they go
            return known[min(number, len(known) - 1)]
        param = isinstance(value, Symbol) and value.param
        return Symbol(short(f"{key_of(value)}[{number}]"), "", True, param)


def _prefer(binding: project.Alternatives) -> project.Binding:
    """Of several bindings of one name (import fallbacks, version gates): torch's, else the first."""
    for option in binding.options:
        if isinstance(option, project.External) and option.dotted.startswith("torch."):
            return option
    return binding.options[0]


def named(value: Value, name: str) -> Value:
    """A symbol takes the name it is bound to, by which the code that follows calls it."""
    if not isinstance(value, Symbol) or value.text == name:
        return value
    return Symbol(value.key, name, value.volatile, value.param, value.giver)


def _is_put_in_sight(table: Table, index: Value) -> bool:
    return isinstance(index, Literal) and table.get(index.value) is not None


def _as_tensor(value: Value) -> Value:
    if isinstance(value, Method) and isinstance(value.base, Tensor) and value.name != "backward":
        return value.base
    return value


def _static(function: ir.Function) -> bool:
    return any(decorator_name(d) == "staticmethod" for d in function.decorators)


def _classmethod(function: ir.Function) -> bool:
    return any(decorator_name(d) == "classmethod" for d in function.decorators)


_EXPRESSIONS: dict[type, Callable[..., Results]] = {
    ir.Call: lambda self, node, world: self.evaluate_call(node, world),
    ir.Const: Evaluator._const,
    ir.Name: Evaluator._name,
    ir.Attr: Evaluator._attr,
    ir.Subscript: Evaluator._subscript_expr,
    ir.Binary: Evaluator._binary,
    ir.Unary: Evaluator._unary,
    ir.Compare: Evaluator._compare,
    ir.BoolOp: Evaluator._boolop,
    ir.IfExp: Evaluator._ifexp,
    ir.Sequence: Evaluator._sequence,
    ir.Starred: Evaluator._starred,
    ir.Mapping: Evaluator._mapping,
    ir.Lambda: Evaluator._lambda,
    ir.Comprehension: Evaluator._comprehension,
    ir.Text: Evaluator._text,
    ir.Yield: Evaluator._yield,
    ir.Await: Evaluator._await,
    ir.Walrus: Evaluator._walrus,
}
