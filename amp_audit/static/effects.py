"""What calls on scalers, optimizers, models and torch's functions do: the events they make and the values they give."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from amp_audit.events import Event, Kind, Via
from amp_audit.protocol import LOW_PRECISION, get, region_dtype
from amp_audit.static import ir
from amp_audit.static.hot import dotted
from amp_audit.static.values import (
    NONE,
    Condition,
    External,
    Func,
    Instance,
    Items,
    Literal,
    Method,
    NoGrad,
    Optimizer,
    Package,
    Parameters,
    Partial,
    Region,
    Scaler,
    Scheduler,
    StateDict,
    Symbol,
    Table,
    Tensor,
    Type,
    Value,
    inside,
    is_volatile,
    key_of,
)
from amp_audit.static.world import World, short, split

if TYPE_CHECKING:
    from amp_audit.static.calls import Caller
    from amp_audit.static.evaluate import Results
    from amp_audit.static.project import ClassRef

SCALERS = frozenset(
    {
        "torch.amp.GradScaler",
        "torch.cuda.amp.GradScaler",
        "torch.cpu.amp.GradScaler",
        "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
        "torch.npu.amp.GradScaler",
        "torch_npu.npu.amp.GradScaler",
    }
)
AUTOCASTS = {"torch.amp.autocast": None, "torch.cuda.amp.autocast": "cuda", "torch.cpu.amp.autocast": "cpu"}
NO_GRAD_NAMES = frozenset({"torch.no_grad", "torch.inference_mode", "torch.autograd.grad_mode.no_grad"})
CLIPS = frozenset(
    {
        "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad_value_",
        "torch.nn.utils.clip_grad_norm",
        "timm.utils.dispatch_clip_grad",
        "timm.utils.clip_grad.dispatch_clip_grad",
        "timm.utils.adaptive_clip_grad",
    }
)
DTYPES = {
    "torch.float16": "float16",
    "torch.half": "float16",
    "torch.bfloat16": "bfloat16",
    "torch.float32": "float32",
    "torch.float": "float32",
}
DEFAULT_DTYPE = {"cuda": "float16", "xpu": "float16", "mps": "float16", "cpu": "bfloat16", "hpu": "bfloat16"}
WRAPPERS = re.compile(r"(^|\.)(DistributedDataParallel|DDP|DataParallel|compile|convert_sync_batchnorm)$")
_REMADE = frozenset({"torch.tensor", "torch.as_tensor", "torch.autograd.Variable", "torch.Tensor"})
_FACTS_OF_TENSORS = frozenset({"shape", "device", "dtype", "grad", "ndim", "requires_grad", "is_cuda"})
CLOSURES = frozenset({"torch.optim.LBFGS", "torch.optim.lbfgs.LBFGS"})
SAME = frozenset({"to", "cuda", "cpu", "train", "eval", "requires_grad_", "half", "float", "bfloat16", "double", "xpu"})
OWNING = frozenset({"parameters", "named_parameters", "buffers", "trainable_parameters"})
PASSING = frozenset({"list", "tuple", "set", "iter", "reversed", "sorted", "filter"})
ENDS = frozenset({"sys.exit", "builtins.exit", "builtins.quit", "os._exit", "os.abort"})
_OPTIMIZER_NAME = re.compile(r"optim|^opt$|^opt_|_opt$|^[dg]_opt|opt_[dg]$", re.IGNORECASE)
_SCALER_NAME = re.compile(r"scaler$|^scaler|grad_scaler", re.IGNORECASE)


class Effects:
    """Turns calls into events and values, on behalf of a walker."""

    def __init__(self, walker: Caller) -> None:
        self.walker = walker
        self.stepped: set[str] = set()  # keys of symbols that a scaler stepped: optimizers

    # Recognising unknown things by how the code uses them

    def methods_used(self, symbol: Symbol, world: World) -> frozenset[str]:
        return self.walker.ducks(world.frame.module).get(symbol.text, frozenset()) if symbol.text else frozenset()

    def is_scaler(self, symbol: Symbol, world: World) -> bool:
        used = self.methods_used(symbol, world)
        if "unscale_" in used or {"scale", "step"} <= used or {"scale", "update"} <= used:
            return True
        return bool(_SCALER_NAME.search(_tail(symbol))) and bool(used & {"scale", "step", "update"})

    def is_optimizer(self, symbol: Symbol, world: World) -> bool:
        used = self.methods_used(symbol, world)
        if self.is_model(symbol, world):
            return False
        named = bool(_OPTIMIZER_NAME.search(_tail(symbol)))
        return symbol.key in self.stepped or ("step" in used and "zero_grad" in used) or named

    def is_model(self, symbol: Symbol, world: World) -> bool:
        used = self.methods_used(symbol, world)
        return bool(used & (OWNING | {"train", "eval"})) and "unscale_" not in used

    # Contexts

    def as_context(self, value: Value) -> Value | None:
        """A region or no_grad used as a decorator; ``@torch.no_grad`` without a call means the same as with one."""
        if isinstance(value, External) and value.dotted in NO_GRAD_NAMES:
            return NoGrad()
        return value if isinstance(value, (Region, NoGrad)) else None

    def enter(self, value: Value, at: int, world: World) -> Value:
        """Enter a context; returns what ``as`` binds."""
        if isinstance(value, Region):
            identity = (world.frame.module.path, at, world.stamp)
            self.walker.emit(
                world,
                Event(
                    Kind.REGION_ENTER,
                    region=identity,
                    device=value.device,
                    dtype=value.dtype,
                    enabled=value.enabled,
                    cache=value.cache,
                ),
                at,
            )
        elif isinstance(value, NoGrad):
            world.no_grad += 1
        elif isinstance(value, Symbol):
            return Symbol(short(f"{value.key} entered"), value.text, True, True)
        return value

    def leave(self, value: Value, at: int, world: World, depth: int) -> None:
        """Leave a context; regions entered inside it (ExitStack) end with it."""
        if isinstance(value, NoGrad):
            world.no_grad = max(0, world.no_grad - 1)
        while len(world.state.regions) > depth:
            region = world.state.regions[-1]
            self.walker.emit(world, Event(Kind.REGION_EXIT, region=region.id), at)

    def discard(self, node: ir.Expr, value: Value, world: World) -> None:
        """An expression statement whose value is dropped: the author meant ``scaler.scale(loss)`` to be used."""
        if isinstance(node, ir.Call) and isinstance(value, Tensor) and value.scaled is not None and node.args:
            given = node.args[0].value
            if isinstance(given, ir.Name):
                self.walker.bind(given, replace(value, scaled=None, doubt=True), world)
        elif isinstance(value, Method) and value.name == "backward":
            self.walker.emit(world, Event(Kind.BACKWARD, scaled=None), node.at)

    # Attributes

    def get_attribute(self, base: Value, name: str, world: World) -> Value:
        if isinstance(base, Tensor) and name in _FACTS_OF_TENSORS:
            return Symbol(f"tensor.{name}", volatile=True)
        if isinstance(base, Tensor) and name == "data":
            return replace(base, owners=frozenset())
        if isinstance(base, Optimizer) and name == "param_groups":
            return Parameters(frozenset(get(world.state.links, base.id) or ()))
        if isinstance(base, Method) and base.name == "grad" and name in ("data", "grad"):
            return base
        return Method(base, name)

    def set_attribute(self, base: Value, target: ir.Attr, value: Value, world: World) -> None:
        if target.name in ("grad", "data") and isinstance(base, (Parameters, Method)):
            self._write_grad(base, value, target, world)
        if isinstance(base, Instance):
            world.heap[(base.id, target.name)] = _texted(value, target)
        elif isinstance(base, Symbol):
            world.heap[(base.key, target.name)] = _texted(value, target)
        elif isinstance(base, Package) and base.module is not None:
            world.globals[(base.module.path, target.name)] = value

    def _write_grad(self, base: Parameters | Method, value: Value, target: ir.Attr, world: World) -> None:
        if isinstance(base, Parameters) and target.name == "grad":
            kind = Kind.ZERO_GRAD if value == NONE else Kind.GRAD_WRITE
            self.walker.emit(world, Event(kind, owners=_known(base.owners)), target.at)
        elif isinstance(base, Method) and base.name == "grad":
            self.walker.emit(world, Event(Kind.GRAD_WRITE, owners=_known(owners_of(base.base))), target.at)

    # Calls

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

    def result(self, callee: Value, node: ir.Call, args: list[Value], named: dict[str, Value], world: World) -> Value:
        """What a call that is not followed gives: a tensor when it is fed tensors or runs under autocast."""
        fed = [item for value in (*args, *named.values()) for item in inside(value) if isinstance(item, Tensor)]
        if fed:
            return Tensor() if world.no_grad else _together(fed, region_dtype(world.state))
        values = (*args, *named.values())
        volatile = any(map(is_volatile, values))
        name = key_of(callee) if not isinstance(callee, Func) else f"{callee.module.path}:{callee.function.qualname}"
        key = short(f"{name}({','.join(map(key_of, values))})")
        if isinstance(callee, (External, Func)) or volatile or not isinstance(callee, Symbol):
            return Symbol(key, "", volatile)
        return Symbol(key, "", callee.volatile or volatile or bool(world.stamp))

    def output(
        self, model: Instance, given: Value | None, args: list[Value], named: dict[str, Value], world: World
    ) -> Value:
        """What calling a model gives: tensors that lead back to its parameters and to those of its inputs."""
        fed = [item for value in (*args, *named.values()) for item in inside(value) if isinstance(item, Tensor)]
        if world.no_grad:
            return Tensor()
        frozen = world.heap.get((model.id, _FROZEN)) == Literal.of(True)
        inner = given.dtype if isinstance(given, Tensor) else None
        made = Tensor(frozenset() if frozen else frozenset({model.id}), computed_in(world) or inner)
        return _together([*fed, made], made.dtype)

    def forward(self, owner: Hashable, at: int, world: World) -> None:
        if not world.no_grad and world.heap.get((owner, _UNCACHED)) != Literal.of(True):
            self.walker.emit(world, Event(Kind.FORWARD, owners=(owner,)), at)

    def special_class(
        self, ref: ClassRef, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results | None:
        """Project classes that are what their library base is: optimizers, schedulers, plain sub-classed scalers."""
        project = self.walker.project
        if project.is_subclass(ref, "torch.optim.Optimizer"):
            return [(self._new_optimizer(node, args, named, world, closure=False), world)]
        if any(project.is_subclass(ref, name) for name in SCALERS):
            return self._new_scaler(node, named.get("enabled", Literal.of(True)), world)
        if project.is_subclass(ref, "torch.autograd.Function"):
            return [(self.result(Type(ref), node, args, named, world), world)]
        return None

    # Library functions

    def _external(self, name: str, node: ir.Call, args: list[Value], named: dict[str, Value], world: World) -> Results:
        if name in SCALERS:
            return self._new_scaler(node, _argument(args, named, "enabled", _ENABLED_AT.get(name)), world)
        if name in AUTOCASTS:
            return self._new_region(name, args, named, world)
        if name in NO_GRAD_NAMES:
            if args and isinstance(args[0], Func):
                return [(args[0], world)]
            return [(NoGrad(), world)]
        if name in ENDS:
            return [(External("builtins.exit"), world)]
        if name in CLIPS:
            return self._clip(args[0] if args else named.get("parameters", NONE), _limit(args, named), node, world)
        if name.startswith("torch.optim.lr_scheduler."):
            return [(Scheduler((world.frame.module.path, node.at)), world)]
        if _builds_optimizer(name):
            return [(self._new_optimizer(node, args, named, world, name in CLOSURES), world)]
        if name in ("torch.save", "accelerate.save") and (args or named):
            self._save(args[0] if args else named.get("obj", NONE), node, world)
            return [(NONE, world)]
        if name in _REMADE and named.get("requires_grad") == Literal.of(True) and args and is_volatile(args[0]):
            return [(Tensor(leaf=True), world)]
        if name in ("torch.autograd.backward",) and args:
            return self._backward(args[0], node, world)
        if name == "torch.autograd.grad":
            self.walker.emit(world, Event(Kind.AUTOGRAD_GRAD), node.at)
            return [(self.result(External(name), node, args, named, world), world)]
        return self._general(name, node, args, named, world)

    def _general(self, name: str, node: ir.Call, args: list[Value], named: dict[str, Value], world: World) -> Results:
        short_name = name.rpartition(".")[2]
        if WRAPPERS.search(name):
            given = args[0] if args else named.get("module", named.get("model"))
            if isinstance(given, Instance) and short_name == "compile":  # its graph casts the weights by itself
                world.heap[(given.id, _UNCACHED)] = Literal.of(True)
            if isinstance(given, (Instance, Symbol, Func, Method)):
                return [(given, world)]
        if name in ("copy.deepcopy", "copy.copy") and args and isinstance(args[0], Instance):
            return [(replace(args[0], id=(args[0].id, node.at)), world)]
        if name.startswith("builtins.") or name in ("itertools.chain", "itertools.chain.from_iterable"):
            found = self._builtin(short_name, node, args, named, world)
            if found is not None:
                return [(found, world)]
        if name == "functools.partial" and args:
            return [(Partial(args[0], tuple(args[1:]), tuple(named.items())), world)]
        if name in ("contextlib.nullcontext", "contextlib.suppress", "contextlib.ExitStack"):
            return [(External(name), world)]
        if _builds_model(name):
            return [(Instance((world.frame.module.path, node.at, world.stamp), None, True), world)]
        return [(self.result(External(name), node, args, named, world), world)]

    def _builtin(
        self, name: str, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Value | None:
        last = args[-1] if args else None
        if name in PASSING and isinstance(last, (Parameters, Items, Method)):
            return last
        if name in ("chain", "from_iterable") and args:
            return Parameters(owners_of(Items(tuple(args))))
        if name in ("dict",) and not args:
            return Table(tuple(named.items()), "**" in named)
        if name == "enumerate" and args and (len(args) == 1 or args[1] == Literal.of(0)) and not named:
            return Method(args[0], "enumerate")
        if name == "range" and (len(args) == 1 or (args and args[0] == Literal.of(0))):
            return Method(args[-1], "range")
        if name == "zip" and args:
            return Method(Items(tuple(args)), "zip")
        if name == "float" and args and args[0] in (Literal.of("inf"), Literal.of("Inf")):
            return Literal.of(math.inf)
        if name in ("float", "int", "str", "len", "round") and args and not isinstance(args[0], Literal):
            return Symbol(short(f"{name}({key_of(args[0])})"), "", is_volatile(args[0]))
        if name == "isinstance" and len(args) == 2:
            return Condition(short(f"isinstance {key_of(args[0])} {key_of(args[1])}"), volatile=is_volatile(args[0]))
        if name == "hasattr" and len(args) == 2 and isinstance(args[0], Symbol):
            return Condition(short(f"hasattr {key_of(args[0])} {key_of(args[1])}"))
        if name == "getattr" and len(args) >= 2 and isinstance(args[1], Literal):
            found = self.walker.attribute(args[0], str(args[1].value), "", node.at, world)
            return found[0][0] if len(found) == 1 else None
        if name == "bool" and len(args) == 1:
            return args[0]
        return None

    # Building

    def _new_scaler(self, node: ir.Call, enabled: Value | None, world: World) -> Results:
        results: Results = []
        site = (world.frame.module.path, node.at)
        for live, after in split(world, enabled if enabled is not None else Literal.of(True)):
            scaler = Scaler((*site, after.stamp), live)
            if live:
                self.walker.emit(after, Event(Kind.SCALER_NEW, scaler=scaler.id, site=site), node.at)
            results.append((scaler, after))
        return results

    def _new_region(self, name: str, args: list[Value], named: dict[str, Value], world: World) -> Results:
        device = AUTOCASTS[name]
        if device is None:
            given = _argument(args, named, "device_type", 0)
            device = str(given.value).partition(":")[0] if isinstance(given, Literal) else None
        enabled = _argument(args, named, "enabled", 2 if AUTOCASTS[name] is None else 0)
        dtype = _argument(args, named, "dtype", 1)
        cache = _argument(args, named, "cache_enabled", 3 if AUTOCASTS[name] is None else 2)
        word = _dtype(dtype) if dtype not in (None, NONE) else DEFAULT_DTYPE.get(device or "")
        cached = not (isinstance(cache, Literal) and cache.value is False)
        return [
            (Region(device, word, live, cached), after)
            for live, after in split(world, enabled if enabled is not None else Literal.of(True))
        ]

    def _new_optimizer(
        self, node: ir.Call, args: list[Value], named: dict[str, Value], world: World, closure: bool
    ) -> Optimizer:
        identity = (world.frame.module.path, node.at, world.stamp)
        given = args[0] if args else named.get("params", NONE)
        owners = owners_of(given)
        self.walker.emit(world, Event(Kind.OPTIMIZER_NEW, optimizer=identity, owners=_known(owners)), node.at)
        return Optimizer(identity, closure)

    # Methods

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
                self.walker.emit(world, Event(Kind.SCHEDULER_STEP), node.at)
            return [(self._state_dict(name, "scheduler") or NONE, world)]
        if isinstance(base, Instance):
            return self._model(base.id, base, name, node, args, named, world)
        if isinstance(base, Tensor):
            return self._tensor(base, name, node, args, named, world)
        if isinstance(base, (Region, NoGrad)):
            return self._context(base, name, node, world)
        if isinstance(base, Method) and base.name == "grad" and name.endswith("_"):
            kind = Kind.ZERO_GRAD if name == "zero_" else Kind.GRAD_WRITE
            self.walker.emit(world, Event(kind, owners=_known(owners_of(base.base))), node.at)
        if isinstance(base, Items) and name in ("append", "extend") and args and isinstance(node.func, ir.Attr):
            more = args[:1] if name == "append" else args[0].items if isinstance(args[0], Items) else args[:1]
            self.walker.bind(node.func.base, Items((*base.items, *more)), world)
            return [(NONE, world)]
        if isinstance(base, Table):
            return [(_table_method(base, name, args) or self.result(method, node, args, named, world), world)]
        if isinstance(base, External) and name == "enter_context" and args:
            self.enter(args[0], node.at, world)
            return [(args[0], world)]
        return [(self.result(method, node, args, named, world), world)]

    def _context(self, base: Value, name: str, node: ir.Call, world: World) -> Results:
        if name == "__enter__":
            return [(self.enter(base, node.at, world), world)]
        if name == "__exit__":
            self.leave(base, node.at, world, max(0, len(world.state.regions) - 1))
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
            return self._scaler_step(scaler.id, scaler.enabled, first, node, args, named, world)
        if name == "state_dict":
            return [(StateDict("scaler"), world)]
        if scaler.enabled and name in ("unscale_", "update"):
            self._scaler_event(scaler.id, name, first, node, world)
        elif name == "load_state_dict":
            self.walker.emit(world, Event(Kind.LOAD, scaler=scaler.id, contents=frozenset({"scaler"})), node.at)
        elif name in ("backward", "__call__"):  # no such method: the scaled loss was meant
            self.walker.emit(world, Event(Kind.BACKWARD, scaled=None), node.at)
        return [(Symbol(short(f"{scaler.id!r}.{name}()"), "", True), world)]

    def _scale(self, scaler: Hashable, enabled: bool, value: Value, node: ir.Call, world: World) -> Value:
        if not enabled:
            return value
        self.walker.emit(world, Event(Kind.SCALE, scaler=scaler), node.at)
        if isinstance(value, Items):
            return Items(tuple(_scaled(item, scaler) for item in value.items))
        return _scaled(value, scaler)

    def _scaler_event(self, scaler: Hashable, name: str, target: Value, node: ir.Call, world: World) -> None:
        if name == "update":
            self.walker.emit(world, Event(Kind.UPDATE, scaler=scaler, given=bool(node.args)), node.at)
            return
        if isinstance(target, Parameters):  # not an optimizer: the program dies here
            world.dead = True
            return
        optimizer = self._optimizer_id(target)
        self.walker.emit(world, Event(Kind.UNSCALE, scaler=scaler, optimizer=optimizer), node.at)

    def _scaler_step(
        self,
        scaler: Hashable,
        enabled: bool,
        target: Value,
        node: ir.Call,
        args: list[Value],
        named: dict[str, Value],
        world: World,
    ) -> Results:
        optimizer = self._optimizer_id(target)
        if isinstance(target, Instance) and target.cls is not None and not enabled:
            return self._follow_step(target, node, args[1:], named, world)
        closure = args[1] if len(args) > 1 else named.get("closure")
        event = Event(Kind.STEP, scaler=scaler, optimizer=optimizer, via=Via.SCALER)
        if not enabled:
            event = replace(event, scaler=None, via=Via.PLAIN)
        return self._step_with(closure, event, node, world)

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
        return [(Symbol(short(f"{optimizer!r}.{name}()"), "", True), world)]

    def _plain_step(
        self, optimizer: Hashable, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        closure = args[0] if args else named.get("closure")
        return self._step_with(closure, Event(Kind.STEP, optimizer=optimizer, via=Via.PLAIN), node, world)

    def _step_with(self, closure: Value | None, event: Event, node: ir.Call, world: World) -> Results:
        """A step, after the closure that computes its gradients, if there is one."""
        worlds = [world]
        if isinstance(closure, Func):
            worlds = [after for _, after in self.walker.follow(closure, node.at, [], {}, world)]
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
        if name in OWNING:
            return [(Parameters(frozenset(_with_children(owner, world))), world)]
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
        return [(self.result(Method(value, name), node, args, named, world), world)]

    def _changed(self, owner: Hashable, name: str, args: list[Value], named: dict[str, Value], world: World) -> None:
        """Remember of a model whether it is frozen, and whether its weights are cached by autocast."""
        values = (*args, *named.values())
        if name == "requires_grad_":
            world.heap[(owner, _FROZEN)] = Literal.of(args[:1] == [Literal.of(False)])
        elif name in ("half", "bfloat16") or any(_dtype(value) in LOW_PRECISION for value in values):
            world.heap[(owner, _UNCACHED)] = Literal.of(True)
        elif name in ("float", "double") or any(_dtype(value) == "float32" for value in values):
            world.heap[(owner, _UNCACHED)] = Literal.of(False)

    def _tensor(
        self, tensor: Tensor, name: str, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        if name == "backward":
            return self._backward(tensor, node, world)
        if name in ("detach", "item", "tolist", "numpy"):
            if name == "detach":
                return [(Tensor(), world)]
            return [(Symbol(f"tensor.{name}", "", True), world)]
        return [(self.result(tensor, node, [tensor, *args], named, world), world)]

    def _backward(self, loss: Value, node: ir.Call, world: World) -> Results:
        """``loss.backward()``: scaled when the loss carries the scale; unknown when its origin is not seen."""
        losses = [item for item in inside(loss) if isinstance(item, Tensor)]
        if losses:
            whole = _together(losses, None)
            scaled = None if whole.doubt else whole.scaled is not None
            event = Event(
                Kind.BACKWARD,
                scaler=whole.scaled,
                owners=_known(whole.owners),
                scaled=scaled,
                dtype=whole.dtype,
                detached=all(loss.leaf for loss in losses),
            )
        else:
            foreign = isinstance(loss, Symbol) and loss.param
            event = Event(Kind.BACKWARD, owners=(), scaled=None if foreign else False)
        self.walker.emit(world, event, node.at)
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
            return self._backward(base, node, world)
        if self.is_scaler(base, world) and name in ("scale", "unscale_", "step", "update", "is_enabled", "state_dict"):
            return self._duck_scaler(base, name, node, args, named, world)
        if name in ("step", "zero_grad", "state_dict") and self.is_optimizer(base, world):
            return self._optimizer(base.key, name, node, args, named, world)
        if name in OWNING or (name in SAME | {"zero_grad", "clip_grad_norm_"} and self.is_model(base, world)):
            return self._model(base.key, base, name, node, args, named, world)
        if name == "state_dict":
            return [(StateDict("scheduler" if "sched" in _tail(base).lower() else "model"), world)]
        return self._call_unknown(callee, node, args, named, world)

    def _base_of(self, callee: Symbol, func: ir.Attr) -> Symbol:
        text = callee.text.rpartition(".")[0] if callee.text else ""
        suffix = f".{func.name}"
        key = callee.key.removesuffix(suffix) if callee.key.endswith(suffix) else callee.key
        return replace(callee, key=key, text=text)

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
        if name == "step":
            if first == NONE:
                return [(NONE, world)]
            return self._scaler_step(scaler.key, enabled, first, node, args, named, world)
        if enabled:
            self._scaler_event(scaler.key, name, first, node, world)
        return [(NONE, world)]

    def _call_unknown(
        self, callee: Symbol, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        fed = any(isinstance(item, Tensor) for value in (*args, *named.values()) for item in inside(value))
        if self.is_model(callee, world) and not world.no_grad:
            self.forward(callee.key, node.at, world)
            return [(self.output(Instance(callee.key, None, True), None, args, named, world), world)]
        live = region_dtype(world.state)
        if live is not None and not fed and not world.no_grad and not isinstance(node.func, ir.Attr):
            return [(Tensor(frozenset(), live), world)]
        return [(self.result(callee, node, args, named, world), world)]

    # Shared

    def _clip(self, parameters: Value, limit: Value | None, node: ir.Call, world: World) -> Results:
        """Clipping; with an infinite limit it only measures the norm."""
        endless = limit in _INFINITE
        kind = Kind.GRAD_READ if endless else Kind.CLIP
        self.walker.emit(world, Event(kind, owners=_known(owners_of(parameters))), node.at)
        return [(Symbol("norm", "", True), world)]

    def _save(self, value: Value, node: ir.Call, world: World) -> None:
        found = {item.of for item in inside(value) if isinstance(item, StateDict)}
        if any(isinstance(item, Table) and item.open for item in inside(value)):
            found.add("unknown")
        if any(isinstance(item, (Symbol, Scaler)) and _SCALER_NAME.search(_tail_of(item)) for item in inside(value)):
            found.add("scaler")
        self.walker.emit(world, Event(Kind.SAVE, contents=frozenset(found)), node.at)

    def _state_dict(self, name: str, of: str) -> Value | None:
        return StateDict(of) if name == "state_dict" else None


_FROZEN, _UNCACHED = "#frozen", "#uncached"


def computed_in(world: World) -> str | None:
    """The dtype of the region in force; float32 where a region is there but off."""
    regions = world.state.regions
    return region_dtype(world.state) or ("float32" if regions and regions[-1].enabled is False else None)


def _with_children(owner: Hashable, world: World) -> set[Hashable]:
    """A model and the models that it holds as attributes, as far as they were seen."""
    found, waiting = set(), [owner]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            held = [value for (holder, _), value in world.heap.items() if holder == each]
            waiting += [v.id for value in held for v in inside(value) if isinstance(v, Instance) and v.model]
    return found


def owners_of(value: Value) -> frozenset[Hashable]:
    """Whose parameters a value holds: a model's, a list of groups, a comprehension over them. Empty: unknown."""
    found: set[Hashable] = set()
    for item in inside(value):
        if isinstance(item, Parameters):
            if not item.owners:
                return frozenset()
            found |= item.owners
        elif isinstance(item, Instance) and item.model:
            found.add(item.id)
    return frozenset(found)


_INFINITE = (Literal.of(math.inf), External("math.inf"), External("torch.inf"), External("numpy.inf"))


def _limit(args: list[Value], named: dict[str, Value]) -> Value | None:
    for name in ("max_norm", "clip_value", "value"):
        if name in named:
            return named[name]
    return args[1] if len(args) > 1 else None


def _known(owners: Iterable[Hashable]) -> tuple[Hashable, ...] | None:
    return tuple(sorted(owners, key=repr)) or None


def _together(tensors: list[Tensor], dtype: str | None) -> Tensor:
    owners: frozenset[Hashable] = frozenset().union(*(t.owners for t in tensors))
    scaled = {t.scaled for t in tensors}
    dtypes = {t.dtype for t in tensors if t.dtype}
    doubt = any(t.doubt for t in tensors) or len(scaled) > 1
    word = dtype or (dtypes.pop() if len(dtypes) == 1 else None)
    return Tensor(owners, word, None if doubt else scaled.pop(), doubt, all(t.leaf for t in tensors))


def _scaled(value: Value, scaler: Hashable) -> Value:
    if isinstance(value, Tensor):
        return replace(value, scaled=scaler, doubt=False)
    return Tensor(scaled=scaler)


def _argument(args: list[Value], named: dict[str, Value], name: str, index: int | None) -> Value | None:
    if name in named:
        return named[name]
    if index is not None and index < len(args) and not any(isinstance(a, Method) for a in args[: index + 1]):
        return args[index]
    return None


_ENABLED_AT = {
    "torch.amp.GradScaler": 5,
    "torch.cuda.amp.GradScaler": 4,
    "torch.cpu.amp.GradScaler": 4,
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler": 5,
}


def _dtype(value: Value | None) -> str | None:
    return DTYPES.get(value.dotted) if isinstance(value, External) else None


def _builds_optimizer(name: str) -> bool:
    if name.startswith("torch.optim."):
        return name.count(".") == 2 and name.rpartition(".")[2][:1].isupper()
    short_name = name.rpartition(".")[2]
    return (
        bool(re.search(r"(^|\.)(optim|optimizers|optimization)(\.|$)", name))
        and short_name[:1].isupper()
        and (bool(re.search(r"Adam|SGD|Lion|LAMB|Lamb|RMSprop|Adagrad|Adafactor", short_name)))
    )


def _builds_model(name: str) -> bool:
    short_name = name.rpartition(".")[2]
    if name.startswith("torch.nn.") and not name.startswith(("torch.nn.functional", "torch.nn.utils", "torch.nn.init")):
        return short_name[:1].isupper() and not short_name.endswith(("Loss", "Parameter"))
    if name.startswith(("torchvision.models.", "timm.create_model", "segmentation_models_pytorch.")):
        return True
    return short_name == "from_pretrained" and "Tokenizer" not in name and "Processor" not in name


def _table_method(table: Table, name: str, args: list[Value]) -> Value | None:
    if name == "get" and args and isinstance(args[0], Literal):
        found = table.get(args[0].value)
        return found if found is not None else (args[1] if len(args) > 1 else NONE) if not table.open else None
    if name == "values":
        return Items(tuple(value for _, value in table.items))
    if name == "items":
        return Items(tuple(Items((Literal.of(key), value)) for key, value in table.items))
    if name == "copy":
        return table
    return None


def _texted(value: Value, target: ir.Attr) -> Value:
    if not isinstance(value, Symbol):
        return value
    return replace(value, text=dotted(target))


def _tail(symbol: Symbol) -> str:
    return symbol.text.rpartition(".")[2] if symbol.text else ""


def _tail_of(value: Value) -> str:
    return _tail(value) if isinstance(value, Symbol) else "scaler"
