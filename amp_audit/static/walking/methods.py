"""Methods of scalers, optimizers, models and tensors, and of unknown things that are used like them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from amp_audit.events import Event, Kind, Via
from amp_audit.records import replace
from amp_audit.state import LOW_PRECISION, blur, get, region_dtype
from amp_audit.static.binding.project import External
from amp_audit.static.source import ir
from amp_audit.static.source.names import is_scheduler
from amp_audit.static.source.traverse import last_word
from amp_audit.static.walking.algebra import combine, descaled, subscript
from amp_audit.static.walking.byhand import is_measure, is_weights
from amp_audit.static.walking.choices import chosen, is_choice
from amp_audit.static.walking.contexts import place_of
from amp_audit.static.walking.ducks import OWNING, SCALER_NAME, is_average, is_averaged_model, tail, tail_of
from amp_audit.static.walking.lineage import (
    FROZEN,
    UNCACHED,
    UNSEEN,
    are_sharded,
    argument,
    dtype_of,
    known,
    scaled,
    thaw,
    together,
    with_children,
    written,
)
from amp_audit.static.walking.ranks import Ranks
from amp_audit.static.walking.values import (
    NONE,
    Condition,
    Func,
    Instance,
    Items,
    Literal,
    Method,
    NoGrad,
    Optimizer,
    Parameters,
    Region,
    Scale,
    Scaler,
    Scheduler,
    StateDict,
    Symbol,
    Table,
    Tensor,
    Value,
    inside,
    is_gradient,
    key_of,
    label,
    short,
)
from amp_audit.static.walking.world import World

if TYPE_CHECKING:
    from amp_audit.static.walking.evaluate import Results

_PARSERS_END = frozenset({"error", "exit"})
_HOOKS = frozenset({"register_hook", "register_post_accumulate_grad_hook"})
_CONSTANTS = ("torch.ones", "torch.tensor", "torch.as_tensor", "torch.full")
_OF_SCALERS = frozenset({"scale", "unscale_", "step", "update", "is_enabled", "state_dict", "get_scale"})
_PENALTIES = frozenset({"norm", "pow", "square", "abs", "sum", "mean"})
"""What a term of the loss is made of that is computed from the weights themselves."""
_OPERATORS = {"div": "/", "div_": "/", "true_divide": "/", "mul": "*", "mul_": "*"}
SAME = frozenset({"to", "cuda", "cpu", "train", "eval", "requires_grad_", "half", "float", "bfloat16", "double", "xpu"})


def _model_around(part: Value) -> Instance | None:
    """The model whose part ``model.head`` is, where nothing shows what that part is."""
    while isinstance(part, Method):
        part = part.base
    return part if isinstance(part, Instance) and part.model else None


class Methods(Ranks):
    """Turns method calls into events and values."""

    def _method(
        self, method: Method, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        base, name = method.base, method.name
        if isinstance(base, Scaler):
            return self._scaler(base, name, node, args, named, world)
        if isinstance(base, Optimizer):
            return self._optimizer(base.id, name, node, args, named, world)
        if isinstance(base, Scheduler):
            if name == "step":
                self.walker.emit(world, Event(Kind.SCHEDULER_STEP, given=bool(args or named)), node.at)
            return [(self._state_dict(name, "scheduler") or NONE, world)]
        if isinstance(base, Instance):
            return self._model(base.id, base, name, node, args, named, world)
        if isinstance(base, Tensor) and not is_gradient(base):
            return self._tensor(base, name, node, args, named, world)
        if isinstance(base, (Region, NoGrad)):
            return self._context(base, name, node, world)
        if is_gradient(base):
            made = self.of_gradient(base, name, node, args, world)
            return [(made or self.result(method, node, args, named, world), world)]
        if name in OWNING and (model := _model_around(base)) is not None:
            return [(Parameters(part=True, within=frozenset({model.id}), named=name == "named_parameters"), world)]
        if name in _HOOKS and (isinstance(base, Parameters) or _model_around(base) is not None):
            self.hooked(base, args[0] if args else None, node.at, world)
        elif name == "requires_grad_" and isinstance(base, Parameters):
            self.freeze(base, argument(args, named, "requires_grad", 0) or Literal.of(True), world)
            return [(base, world)]
        elif isinstance(base, Parameters) and name in _PENALTIES:
            return [(Tensor(base.owners), world)]
        elif is_weights(base):
            kept = self.of_weights(base, name, node.at, world)
            return [(kept or self.result(method, node, args, named, world), world)]
        if isinstance(base, Items) and name in ("append", "extend") and args and isinstance(node.func, ir.Attr):
            more = args[:1] if name == "append" else args[0].items if isinstance(args[0], Items) else args[:1]
            more = [replace(item, part=True) if isinstance(item, Parameters) else item for item in more]
            self.walker.bind(_kept_as(node.func.base), Items((*base.items, *more)), world)
            return [(NONE, world)]
        if isinstance(base, Table) and name == "get" and args and is_choice(base, args[0]):
            picked, rest = chosen(base, args[0], world)
            return picked + [(args[1] if len(args) > 1 else NONE, each) for each in rest]
        if isinstance(base, Table):
            return [(table_method(base, name, args) or self.result(method, node, args, named, world), world)]
        return [(self.result(method, node, args, named, world), world)]

    def _context(self, base: Value, name: str, node: ir.Call, world: World) -> Results:
        if name == "__enter__":
            return [(self.enter(base, node.at, world), world)]
        if name == "__exit__":
            depth = len(world.state.regions) - isinstance(base, Region)
            self.leave(base, node.at, world, max(0, depth))
        return [(NONE, world)]

    def _scaler(
        self, scaler: Scaler, name: str, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        first = args[0] if args else next(iter(named.values()), NONE)
        if name == "scale":
            return [(self._scale(scaler.id, scaler.enabled, first, node, world), world)]
        if name == "is_enabled":
            return [(Literal.of(scaler.enabled), world)]
        if name == "step":
            return self._scaler_step(scaler.id, scaler.enabled, scaler.sharded, first, node, args, named, world)
        if name == "state_dict":
            return [(StateDict("scaler"), world)]
        if name == "get_scale" and scaler.enabled:
            return [(self._read_scale(scaler.id, node, world), world)]
        if scaler.enabled and name in ("unscale_", "update"):
            self._scaler_event(scaler.id, name, first, node, world)
        elif name == "load_state_dict":
            self.walker.emit(world, Event(Kind.LOAD, scaler=scaler.id, contents=frozenset({"scaler"})), node.at)
        elif name in ("backward", "__call__"):  # no such method: the scaled loss was meant
            self.walker.emit(world, Event(Kind.BACKWARD, scaled=None), node.at)
        return [(Symbol(short(f"{label(scaler.id)}.{name}()"), "", True), world)]

    def _scale(self, scaler: Hashable, enabled: bool, value: Value, node: ir.Call, world: World) -> Value:
        if not enabled:
            return value
        again = any(isinstance(item, Tensor) and item.taken == "penalty" for item in inside(value))
        self.walker.emit(world, Event(Kind.SCALE, scaler=scaler, scaled=again), node.at)
        if isinstance(value, Items):
            return Items(tuple(scaled(item, scaler) for item in value.items))
        return scaled(value, scaler)

    def _read_scale(self, scaler: Hashable, node: ir.Call, world: World) -> Scale:
        place = (world.frame.module.path, node.at)
        self.walker.emit(world, Event(Kind.SCALE_READ, scaler=scaler, read=place), node.at)
        return Scale(scaler, place)

    def _scaler_event(self, scaler: Hashable, name: str, target: Value, node: ir.Call, world: World) -> None:
        if name == "update":
            self.walker.emit(world, Event(Kind.UPDATE, scaler=scaler, given=bool(node.args)), node.at)
            return
        given = node.args[0].value if node.args else None
        absent = target == NONE and (given is None or isinstance(given, ir.Const))  # what __init__ left None may be set
        if isinstance(target, Parameters) or absent:  # no optimizer: the program dies here
            world.dead = True
            return
        optimizer = self._optimizer_id(target)
        self.walker.emit(world, Event(Kind.UNSCALE, scaler=scaler, optimizer=optimizer), node.at)

    def _scaler_step(
        self,
        scaler: Hashable,
        enabled: bool,
        knows: bool,
        target: Value,
        node: ir.Call,
        args: list[Value],
        named: dict[str, Value],
        world: World,
    ) -> Results:
        optimizer = self._optimizer_id(target)
        owners = get(world.state.links, optimizer) or ()
        sharded = enabled and not knows and are_sharded(owners, world)
        frozen = bool(owners) and not self.walker.heat.unfreezes
        frozen = frozen and all(world.heap.get((owner, FROZEN)) == Literal.of(True) for owner in owners)
        if isinstance(target, Instance) and target.cls is not None and not enabled:
            return self._follow_step(target, node, args[1:], named, world)
        closure = args[1] if len(args) > 1 else named.get("closure")
        event = Event(Kind.STEP, scaler=scaler, optimizer=optimizer, via=Via.SCALER, sharded=sharded, frozen=frozen)
        if not enabled:
            event = replace(event, scaler=None, via=Via.PLAIN)
        return self._step_with(closure, args[2:], event, node, world)

    def _follow_step(
        self, target: Instance, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        results: Results = []
        for callee, after in self.walker.attribute(target, "step", "", node.at, world):
            results += self.walker.call(callee, node, args, named, after)
        return results

    def _optimizer_id(self, value: Value) -> Hashable:
        if isinstance(value, Optimizer):
            return value.id
        if isinstance(value, Symbol):
            self.stepped.add(value.key)
        return key_of(value)

    def _optimizer(
        self,
        optimizer: Hashable,
        name: str,
        node: ir.Call,
        args: list[Value],
        named: dict[str, Value],
        world: World,
    ) -> Results:
        if name == "step":
            return self._plain_step(optimizer, node, args, named, world)
        if name == "zero_grad":
            self.walker.emit(world, Event(Kind.ZERO_GRAD, optimizer=optimizer), node.at)
        if name == "backward":  # DeepSpeed, apex and fairseq optimizers scale the loss themselves
            self.walker.emit(world, Event(Kind.BACKWARD, scaled=None), node.at)
        if name == "state_dict":
            return [(StateDict("optimizer"), world)]
        return [(Symbol(short(f"{label(optimizer)}.{name}()"), "", True), world)]

    def _plain_step(
        self, optimizer: Hashable, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        closure = args[0] if args else named.get("closure")
        return self._step_with(closure, args[1:], Event(Kind.STEP, optimizer=optimizer, via=Via.PLAIN), node, world)

    def _step_with(
        self, closure: Value | None, given: list[Value], event: Event, node: ir.Call, world: World
    ) -> Results:
        """A step, after the closure that computes its gradients, if there is one.

        torch calls it without arguments; what else a step is given, as in SAM's, is taken to be passed on to it.
        """
        worlds = [world]
        if isinstance(closure, Func):
            worlds = [after for _, after in self.walker.follow(closure, node.at, given, {}, world)]
        for after in worlds:
            self.walker.emit(after, event, node.at)
        return [(Symbol("stepped", "", True), after) for after in worlds]

    def _model(
        self,
        owner: Hashable,
        value: Value,
        name: str,
        node: ir.Call,
        args: list[Value],
        named: dict[str, Value],
        world: World,
    ) -> Results:
        if name == "register_comm_hook":
            self.comm_hook(node, [*args, *named.values()], world)
        if name in OWNING:
            return [(_weights(owner, value, name, world), world)]
        if name in SAME:
            self._changed(owner, name, args, named, world)
            return [(value, world)]
        if name == "zero_grad":
            self.walker.emit(world, Event(Kind.ZERO_GRAD, owners=(owner,)), node.at)
            return [(NONE, world)]
        if name == "clip_grad_norm_":
            self.walker.emit(world, Event(Kind.CLIP, owners=(owner,)), node.at)
            return [(Symbol("norm", "", True), world)]
        if name == "load_state_dict":
            self.walker.emit(world, Event(Kind.WEIGHT_WRITE, owners=(owner,)), node.at)
        if name in ("manual_backward",) and args:  # Lightning scales the loss itself
            self.walker.emit(world, Event(Kind.BACKWARD, scaled=None), node.at)
        if name == "state_dict":
            return [(StateDict("model"), world)]
        if name in ("forward", "__call__") and isinstance(value, Instance):
            return self.walker.call(value, node, args, named, world)
        if name != "load_state_dict":
            thaw(world, [owner])  # what is not followed may train a part of it again
        return [(self.result(Method(value, name), node, args, named, world), world)]

    def _changed(self, owner: Hashable, name: str, args: list[Value], named: dict[str, Value], world: World) -> None:
        """Remember of a model whether it is frozen, and whether its weights are cached by autocast."""
        values = (*args, *named.values())
        if name == "requires_grad_":
            world.put(owner, FROZEN, Literal.of(args[:1] == [Literal.of(False)]))
        elif name in ("half", "bfloat16") or any(dtype_of(value) in LOW_PRECISION for value in values):
            world.put(owner, UNCACHED, Literal.of(True))
        elif name in ("float", "double") or any(dtype_of(value) == "float32" for value in values):
            world.put(owner, UNCACHED, Literal.of(False))

    def _tensor(
        self, tensor: Tensor, name: str, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        if name == "backward":
            return self._backward(tensor, node, world, _gradient(args, named))
        if name.endswith("_"):
            written([tensor], world)
        if name == "register_hook":
            self.hooked(tensor, args[0] if args else None, node.at, world)
        if name == "item" and is_measure(tensor):
            return [(tensor, world)]
        if name in ("detach", "item", "tolist", "numpy"):
            if name == "detach":
                return [(Tensor(scaled=tensor.scaled, doubt=tensor.doubt, cut=True), world)]
            self.reads_loss(tensor, node.at, world)
            return [(Symbol(f"tensor.{name}", "", True), world)]
        if name == "requires_grad_" and tensor.cut:
            return [(replace(tensor, leaf=True), world)]
        if name in _OPERATORS and args:
            made, scale = combine(_OPERATORS[name], tensor, args[0]), descaled(_OPERATORS[name], tensor, args[0])
            return [(self.descale(made, (tensor, args[0]), scale, node.at, world) if scale else made, world)]
        if name == "sum":  # over the batch: then the sum over micro-batches is the sum over a larger one
            return [(replace(tensor, divided=tensor.divided | {name}), world)]
        return [(self.result(tensor, node, [tensor, *args], named, world), world)]

    def _backward(self, loss: Value, node: ir.Call, world: World, gradient: Tensor | None = None) -> Results:
        """``loss.backward()``: scaled when the loss carries the scale, or the gradient it starts with; unknown when
        its origin is not seen.
        """
        losses = [item for item in inside(loss) if isinstance(item, Tensor)]
        if gradient is not None and (gradient.scaled is not None or gradient.doubt):
            losses = [replace(item, scaled=gradient.scaled, doubt=gradient.doubt) for item in losses or [Tensor()]]
        if losses:
            whole = together(losses, None)
            scaled = None if whole.doubt else whole.scaled is not None
            event = Event(
                Kind.BACKWARD,
                scaler=whole.scaled,
                owners=known(whole.owners),
                scaled=scaled,
                dtype=whole.dtype,
                divided=whole.divided,
                ran=place_of(whole.ran),
                detached=all(loss.leaf for loss in losses),
                sharded=are_sharded(whole.owners, world),
            )
        else:
            foreign = isinstance(loss, Symbol) and loss.param
            event = Event(Kind.BACKWARD, owners=(), scaled=None if foreign else False, divided=UNSEEN)
        self.walker.emit(world, event, node.at)
        if losses and whole.plain:  # the backward of a sum is that of each of its terms
            self.walker.emit(world, replace(event, scaler=None, scaled=False, term=True), node.at)
        return [(NONE, world)]

    def _symbol(
        self, callee: Symbol, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        """A call of, or of a method of, something unknown: known by how the code uses it."""
        if not isinstance(node.func, ir.Attr):
            return self._call_unknown(callee, node, args, named, world)
        base = self._base_of(callee, node.func)
        name = node.func.name
        if name == "backward" and self._is_loss(base, world):
            return self._backward(base, node, world, _gradient(args, named))
        if self.is_scaler(base, world) and name in _OF_SCALERS:
            return self._duck_scaler(base, name, node, args, named, world)
        if name in ("step", "zero_grad", "state_dict") and self.is_optimizer(base, world):
            if name == "step" and self.knows_scaler(base, "optimizer", world):
                self.walker.emit(world, Event(Kind.STEP, optimizer=base.key, via=Via.FRAMEWORK), node.at)
                return [(NONE, world)]
            return self._optimizer(base.key, name, node, args, named, world)
        self.threaded(f"{base.key} {base.text}", name, args, named, node.at, world)
        if name in _PARSERS_END and "pars" in tail(base).lower():
            return [(External("builtins.exit"), world)]
        if name == "register_comm_hook":
            self.comm_hook(node, [*args, *named.values()], world)
        if is_average(tail(base), name) or (name == "update_parameters" and is_averaged_model(base)):
            self.walker.emit(world, Event(Kind.AVERAGE), node.at)
            return [(NONE, world)]
        if name == "step" and is_scheduler(tail(base)):
            if not self.knows_scaler(base, "schedule", world):
                self.walker.emit(world, Event(Kind.SCHEDULER_STEP, given=bool(args or named)), node.at)
            return [(NONE, world)]
        whole = self.whole(base, world)
        if name in OWNING:
            weights = _weights(whole.key, whole, name, world)
            return [(weights if whole is base else replace(weights, part=True), world)]
        if name in SAME | {"zero_grad", "clip_grad_norm_"} and self.is_model(base, world):
            return self._model(base.key, base, name, node, args, named, world)
        if name == "load_state_dict" and self.is_model(base, world):
            self.walker.emit(world, Event(Kind.WEIGHT_WRITE, owners=(base.key,)), node.at)
        if name == "zero_grad" and whole is not base:
            world.state = blur(world.state, (whole.key,))
            return [(NONE, world)]
        if name == "get" and args and isinstance(args[0], Literal) and args[0].kind == "str":
            held = world.heap.get((base.key, f"[{args[0].value!r}]"))  # what ``base["name"]`` is
            return [(held if held is not None else subscript(base, args[0]), world)]
        if name == "step" and args and self._steps(args[0], world) and self.holds_scaler(base, world):
            optimizer = self._optimizer_id(args[0])
            self.walker.emit(world, Event(Kind.STEP, optimizer=optimizer, via=Via.FRAMEWORK), node.at)
            return [(NONE, world)]
        if name == "zero_grad":  # of whatever it is
            self.walker.emit(world, Event(Kind.ZERO_GRAD, owners=None), node.at)
        if name == "state_dict":
            return [(StateDict("scheduler" if is_scheduler(tail(base)) else "model"), world)]
        return self._call_unknown(callee, node, args, named, world)

    def _steps(self, value: Value, world: World) -> bool:
        """Whether what is handed to a ``step`` is an optimizer, and no batch."""
        return isinstance(value, Optimizer) or (isinstance(value, Symbol) and self.is_optimizer(value, world))

    def _base_of(self, callee: Symbol, func: ir.Attr) -> Symbol:
        text = callee.text.rpartition(".")[0] if callee.text else ""
        suffix = f".{func.name}"
        key = callee.key.removesuffix(suffix) if callee.key.endswith(suffix) else callee.key
        return Symbol(key, text, callee.volatile, callee.param, callee.giver)

    def _is_loss(self, base: Symbol, world: World) -> bool:
        """``engine.backward(loss)`` takes a loss and is a framework's; ``loss.backward()`` is the tensor's own."""
        used = self.methods_used(base, world)
        return not used & {"step", "zero_grad", "prepare", "parameters", "train"}

    def _duck_scaler(
        self, scaler: Symbol, name: str, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        switch = Condition(f"{scaler.key}.is_enabled()")
        if name == "is_enabled":
            return [(switch, world)]
        enabled = world.known(switch) is not False
        first = args[0] if args else next(iter(named.values()), NONE)
        if name == "scale":
            return [(self._scale(scaler.key, enabled, first, node, world), world)]
        if name == "state_dict":
            return [(StateDict("scaler"), world)]
        if name == "get_scale" and enabled:
            return [(self._read_scale(scaler.key, node, world), world)]
        if name == "step":
            if first == NONE:
                return [(NONE, world)]
            return self._scaler_step(scaler.key, enabled, True, first, node, args, named, world)
        if enabled:
            self._scaler_event(scaler.key, name, first, node, world)
        return [(NONE, world)]

    def _call_unknown(
        self, callee: Symbol, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        fed = any(isinstance(item, Tensor) for item in inside(*args, *named.values()))
        if self.is_model(callee, world):
            self.forward(Instance(callee.key, None, True), node.at, world, last_word(node.func))
        if self.is_model(callee, world) and not world.no_grad:
            return [(self.output(Instance(callee.key, None, True), None, args, named, world), world)]
        live = region_dtype(world.state)
        if live is not None and not fed and not world.no_grad and not isinstance(node.func, ir.Attr):
            return [(Tensor(frozenset(), live, divided=UNSEEN, ran=frozenset({"unknown"})), world)]
        self.reads(node.func.name if isinstance(node.func, ir.Attr) else "", [*args, *named.values()], node.at, world)
        return [(self.result(callee, node, args, named, world), world)]

    def _save(self, value: Value, node: ir.Call, world: World) -> None:
        self.pickled(value, node.at, world)
        found = {item.of for item in inside(value) if isinstance(item, StateDict)}
        if any(isinstance(item, Table) and item.open for item in inside(value)):
            found.add("unknown")
        if any(isinstance(item, (Symbol, Scaler)) and SCALER_NAME.search(tail_of(item)) for item in inside(value)):
            found.add("scaler")
        self.walker.emit(world, Event(Kind.SAVE, contents=frozenset(found)), node.at)

    def pickled(self, value: Value, at: int, world: World) -> None:
        """Something is pickled or copied: scalers themselves, perhaps, and not their state."""
        for scaler in {item.id for item in inside(value) if isinstance(item, Scaler) and item.enabled}:
            self.walker.emit(world, Event(Kind.PICKLE, scaler=scaler), at)

    def _state_dict(self, name: str, of: str) -> Value | None:
        return StateDict(of) if name == "state_dict" else None


def _kept_as(node: ir.Expr) -> ir.Expr:
    """Where a list is kept: ``held[name]`` for ``held.setdefault(name, [])``."""
    asked = node.func if isinstance(node, ir.Call) and len(node.args) == 2 else None
    if isinstance(node, ir.Call) and isinstance(asked, ir.Attr) and asked.name == "setdefault":
        return ir.Subscript(node.at, asked.base, node.args[0].value)
    return node


def _weights(owner: Hashable, model: Value, name: str, world: World) -> Parameters:
    """What a model's ``parameters()`` or one of its kin gives."""
    # What two calls with the same arguments give may be two models or one.
    perhaps = isinstance(model, Symbol) and not model.param
    return Parameters(frozenset(with_children(owner, world)), perhaps, named=name == "named_parameters")


def _gradient(args: list[Value], named: dict[str, Value]) -> Tensor | None:
    """The tensor that a backward is given to start with, instead of 1; one that is not seen may carry the scale."""
    given = named.get("gradient") or (args[0] if args else None)
    if isinstance(given, Symbol) and not given.key.startswith(_CONSTANTS):
        return Tensor(doubt=True)
    return given if isinstance(given, Tensor) else None


def table_method(table: Table, name: str, args: list[Value]) -> Value | None:
    if name in ("get", "setdefault") and args and isinstance(args[0], Literal):
        found = table.get(args[0].value)
        return found if found is not None else (args[1] if len(args) > 1 else NONE) if not table.open else None
    if name == "values":
        return Items(tuple(value for _, value in table.items))
    if name == "items":
        return Items(tuple(Items((Literal.of(key), value)) for key, value in table.items))
    if name == "copy":
        return table
    return None
