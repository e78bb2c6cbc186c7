"""Functions and classes of libraries: what they build and what they do."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from amp_audit.events import Event, Kind
from amp_audit.policy import DEFAULT_DTYPES
from amp_audit.records import replace
from amp_audit.state import LOW_PRECISION
from amp_audit.static.binding.project import External
from amp_audit.static.source import ir
from amp_audit.static.source.names import loads_model
from amp_audit.static.source.traverse import names_in, statements, walk
from amp_audit.static.walking.byhand import MEASURE
from amp_audit.static.walking.choices import NAMED, chosen, is_choice
from amp_audit.static.walking.classes import is_instance
from amp_audit.static.walking.contexts import INFERENCE, NO_GRAD_NAMES
from amp_audit.static.walking.kinship import may_be_model
from amp_audit.static.walking.lineage import (
    FROZEN,
    LOWERED,
    REPLICATED,
    REPLICATED_UNDER,
    SHARDED,
    UNCACHED,
    are_sharded,
    argument,
    dtype_of,
    known,
    own_body,
    owners_of,
    together,
    with_children,
)
from amp_audit.static.walking.methods import Methods
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
    Partial,
    Region,
    Scaler,
    Scheduler,
    Symbol,
    Table,
    Tensor,
    Value,
    inside,
    is_volatile,
    key_of,
    short,
)
from amp_audit.static.walking.world import Place, World, split

if TYPE_CHECKING:
    from amp_audit.static.walking.evaluate import Results

_CHANGES = frozenset({"dataclasses.replace", "copy.replace"})
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
CLIPS = frozenset(
    {
        "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad_value_",
        "torch.nn.utils.clip_grad_norm",
        "torch.nn.utils.clip_grads_with_norm_",
        "timm.utils.dispatch_clip_grad",
        "timm.utils.clip_grad.dispatch_clip_grad",
        "timm.utils.adaptive_clip_grad",
    }
)
_FIELD = re.compile(
    r"(^|_)(pos|positions?|coords?|xyz|pts|points?|rays?|sdf|energy|energies|forces?|density|sigmas?|normals?)(_|$)",
    re.IGNORECASE,
)
"""Names of fields over space, and of the places they are asked at."""

SHARDING = frozenset(
    {
        "torch.distributed.fsdp.FullyShardedDataParallel",
        "fairscale.nn.FullyShardedDataParallel",
        "fairscale.nn.data_parallel.FullyShardedDataParallel",
    }
)
"""Wrappers under which gradients, and the inf checks on them, belong to one rank each."""

_ACCELERATED = re.compile(r"'(cuda|xpu|mps)(:\d+)?'|either\(.*'cpu'")
"""In a value's key, a device other than the CPU among what it may be, ``either(torch.device('cuda'),...)``, or one that
is chosen where the CPU is what is left. On all of these autocast's default is float16.
"""

_SCALER_WORDS = frozenset({"GradScaler", "NativeScaler", "ShardedGradScaler"})
_ASKED_DEVICE = re.compile(r"cuda\.is_available|'(cuda|cpu|mps|xpu)(:\d+)?'$")
"""The ends of conditions about devices."""

_SHARDS_IN_PLACE = frozenset({"torch.distributed.fsdp.fully_shard", "torch.distributed._composable.fsdp.fully_shard"})
_POLICIES = frozenset(
    f"torch.distributed.{place}.{name}"
    for place in ("fsdp", "fsdp.api", "fsdp.fully_sharded_data_parallel", "_composable.fsdp")
    for name in ("MixedPrecision", "MixedPrecisionPolicy")
)
REPLICATES = frozenset({"DistributedDataParallel", "DDP"})
WRAPPERS = re.compile(r"(^|\.)(DistributedDataParallel|DDP|DataParallel|compile|convert_sync_batchnorm)$")
_REMADE = frozenset({"torch.tensor", "torch.as_tensor", "torch.autograd.Variable", "torch.Tensor"})
_MADE_BY_NAME = {
    "torch.optim": "torch.optim.Optimizer",
    "torch.optim.lr_scheduler": "torch.optim.lr_scheduler.LRScheduler",
}
"""Packages of whose classes a setting names one, and what all of these are."""

TRACES = frozenset({"torch.jit.trace", "torch.jit.trace_module"})
CLOSURES = frozenset({"torch.optim.LBFGS", "torch.optim.lbfgs.LBFGS"})
PASSING = frozenset({"list", "tuple", "set", "iter", "reversed", "sorted", "filter"})
ENDS = frozenset({"sys.exit", "builtins.exit", "builtins.quit", "os._exit", "os.abort"})
_ENABLED_AT = {
    "torch.amp.GradScaler": 5,
    "torch.cuda.amp.GradScaler": 4,
    "torch.cpu.amp.GradScaler": 4,
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler": 5,
}
_CAPTURES = frozenset({"CUDAGraph", "make_graphed_callables", "capture_begin"})
"""Words of modules that capture CUDA graphs."""
_NO_LIMIT = 1e6
"""A norm of gradients above this is no use to anyone: whoever gives it as a limit asks for the norm."""
INFINITE = (Literal.of(math.inf), External("math.inf"), External("torch.inf"), External("numpy.inf"))


class Library(Methods):
    """Turns calls of library functions into events and values."""

    def _external(self, name: str, node: ir.Call, args: list[Value], named: dict[str, Value], world: World) -> Results:
        changed = self.foreach(name, node, args, world)
        if changed is not None:
            return [(changed, world)]
        if self.reads(name, [*args, *named.values()], node.at, world):
            return [(MEASURE, world)]
        if name in SCALERS:
            sharded = "Sharded" in name
            return self._new_scaler(node, argument(args, named, "enabled", _ENABLED_AT.get(name)), world, sharded)
        if name in AUTOCASTS:
            return self._new_region(name, node, args, named, world)
        if name in NO_GRAD_NAMES:
            if args and isinstance(args[0], Func):
                return [(args[0], world)]
            return [(NoGrad(name == INFERENCE), world)]
        if name == "torch.clear_autocast_cache":
            self.walker.emit(world, Event(Kind.CACHE_CLEAR), node.at)
            return [(NONE, world)]
        if name in ENDS:
            return [(External("builtins.exit"), world)]
        if name in CLIPS:
            parameters = args[0] if args else named.get("parameters", NONE)
            return self._clip(parameters, limit_of(args, named), "value" in name, node, world)
        if name.startswith("torch.optim.lr_scheduler."):
            return [(Scheduler((world.frame.module.path, node.at)), world)]
        if builds_optimizer(name):
            return [(self._new_optimizer(node, args, named, world, name in CLOSURES), world)]
        if name in ("torch.save", "accelerate.save") and (args or named):
            self._save(args[0] if args else named.get("obj", NONE), node, world)
            return [(NONE, world)]
        if name in _REMADE and named.get("requires_grad") == Literal.of(True) and args and is_volatile(args[0]):
            return [(Tensor(leaf=True), world)]
        if name in ("torch.autograd.backward",) and args:
            return self._backward(args[0], node, world)
        if name == "torch.autograd.grad":
            return [(self._autograd_grad(node, args, named, world), world)]
        return self._general(name, node, args, named, world)

    def _general(self, name: str, node: ir.Call, args: list[Value], named: dict[str, Value], world: World) -> Results:
        short_name = name.rpartition(".")[2]
        if name in SHARDING:
            return [(self._shard(args, named, world), world)]
        if name in _SHARDS_IN_PLACE and args:
            self._lower(args[0], named.get("mp_policy"), world)
            return [(args[0], world)]
        if name in _POLICIES:
            return [(Partial(External(name), tuple(args), tuple(named.items())), world)]
        if name in TRACES and args:
            return [(self._trace(args, named, node, world), world)]
        if name == "threading.Thread":
            self.threaded(name, short_name, args, named, node.at, world)
        if name in ("copy.deepcopy", "pickle.dump", "pickle.dumps") and args:
            self.pickled(args[0], node.at, world)
        if WRAPPERS.search(name):
            given = args[0] if args else named.get("module", named.get("model"))
            if isinstance(given, Instance) and short_name == "compile":  # its graph casts the weights by itself
                world.put(given.id, UNCACHED, Literal.of(True))
            if short_name in REPLICATES and isinstance(given, (Instance, Symbol)):
                key = given.id if isinstance(given, Instance) else given.key
                world.put(key, REPLICATED, Literal.of(True))
                world.put(key, REPLICATED_UNDER, Literal.of(self.walker.heat.facts_at(own_body(world), node.at)))
            if isinstance(given, (Instance, Symbol, Func, Method)):
                return [(given, world)]
        if name in ("copy.deepcopy", "copy.copy") and args and isinstance(args[0], Instance):
            return [(replace(args[0], id=(args[0].id, node.at)), world)]
        if name in ("copy.deepcopy", "copy.copy") and args and _is_settings(args[0], world):
            return [(args[0], world)]
        if name in _CHANGES and args and isinstance(args[0], (Instance, Symbol)):
            return [(_changed(args[0], named, node.at, world), world)]
        if name == "builtins.getattr" and len(args) == 2 and key_of(args[0]) == "torch" and is_choice(NAMED, args[1]):
            picked, rest = chosen(NAMED, args[1], world)
            return picked + [(Symbol(short(f"torch.{key_of(args[1])}")), each) for each in rest]
        if name.startswith("builtins.") or name in ("itertools.chain", "itertools.chain.from_iterable"):
            found = self._builtin(short_name, node, args, named, world)
            if found is not None:
                return [(found, world)]
        if name in ("builtins.map", "itertools.starmap") and len(args) > 1 and isinstance(args[0], Func):
            return self._mapped(args[0], args[1:], name == "itertools.starmap", node, world)
        if name == "functools.partial" and args:
            return [(Partial(args[0], tuple(args[1:]), tuple(named.items())), world)]
        if name == "dataclasses.asdict" and args and isinstance(args[0], Instance):
            fields = [(key, value) for (owner, key), value in world.heap.items() if owner == args[0].id]
            return [(Table(tuple(fields)), world)]
        if name == "contextlib.ExitStack.enter_context" and args:
            self.enter(args[0], node.at, world)
            return [(args[0], world)]
        if name in ("contextlib.nullcontext", "contextlib.suppress", "contextlib.ExitStack"):
            return [(External(name), world)]
        if builds_model(name):
            built = Instance(world.identity(node.at), None, True)
            parts = tuple(item for value in args for item in inside(value) if _is_part(item))
            if parts and any(_hands_on(argument.value) for argument in node.args):
                world.put(built.id, "[]", Items(parts))
            return [(built, world)]
        return [(self.result(External(name), node, args, named, world), world)]

    def _mapped(self, func: Func, over: list[Value], spread: bool, node: ir.Call, world: World) -> Results:
        """``map``: one call, for all items alike."""
        items = [self.walker.element(value, 0, world) for value in over]
        if spread:
            items = [part for item in items for part in (item.items if isinstance(item, Items) else (item,))]
        results = self.walker.call(func, node, items, {}, world)
        return [
            (value if isinstance(value, Tensor) else Symbol(short(f"map {key_of(value)}")), w) for value, w in results
        ]

    def _trace(self, args: list[Value], named: dict[str, Value], node: ir.Call, world: World) -> Value:
        """``torch.jit.trace``, which runs a model and, unless told otherwise, traces it once more to compare."""
        given = args[0]
        model = self._as_model(given, world)
        if model is None and isinstance(given, Symbol) and may_be_model(given, world):
            model = Instance(given.key, None, True)
        if model is None:
            return self.result(External("torch.jit.trace"), node, args, named, world)
        owners = with_children(model.id, world)
        frozen = all(world.heap.get((owner, FROZEN)) == Literal.of(True) for owner in owners)
        if not frozen and not world.inference and world.heap.get((model.id, UNCACHED)) != Literal.of(True):
            checked = named.get("check_trace", Literal.of(True)) == Literal.of(True)
            self.walker.emit(world, Event(Kind.JIT_TRACE, owners=known(owners), given=checked), node.at)
        return given

    def _shard(self, args: list[Value], named: dict[str, Value], world: World) -> Value:
        """FSDP around a model: the same model, whose parameters are shards from now on."""
        given = args[0] if args else named.get("module", NONE)
        strategy = key_of(named.get("sharding_strategy", NONE)).rpartition(".")[2]
        if isinstance(given, (Instance, Symbol)) and strategy != "NO_SHARD":
            world.put(given.id if isinstance(given, Instance) else given.key, SHARDED, Literal.of(True))
        self._lower(given, argument(args, named, "mixed_precision", 6), world)
        return given

    def _lower(self, model: Value, policy: Value | None, world: World) -> None:
        """FSDP's own mixed precision: the model runs in another dtype than that of its weights."""
        if isinstance(policy, Partial) and isinstance(policy.func, External) and policy.func.dotted in _POLICIES:
            dtype = argument(list(policy.args), dict(policy.named), "param_dtype", 0)
            if isinstance(model, (Instance, Symbol)) and dtype is not None and dtype_of(dtype) in LOW_PRECISION:
                world.put(model.id if isinstance(model, Instance) else model.key, LOWERED, dtype)

    def _builtin(
        self, name: str, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Value | None:
        last = args[-1] if args else None
        if name in PASSING and isinstance(last, (Parameters, Items, Method)):
            return replace(last, part=True) if name == "filter" and isinstance(last, Parameters) else last
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
        if name == "float" and args:
            self.reads_loss(args[0], node.at, world)
        if name in ("float", "int", "str", "len", "round") and args and not isinstance(args[0], Literal):
            return Symbol(short(f"{name}({key_of(args[0])})"), "", is_volatile(args[0]))
        if name == "isinstance" and len(args) == 2:
            known = is_instance(args[0], args[1], self.walker.project)
            if known is not None:
                return Literal.of(known)
            return Condition(short(f"isinstance {key_of(args[0])} {key_of(args[1])}"), volatile=is_volatile(args[0]))
        if name == "hasattr" and len(args) == 2 and isinstance(args[0], Symbol):
            return Condition(short(f"hasattr {key_of(args[0])} {key_of(args[1])}"))
        if name == "getattr" and len(args) >= 2 and isinstance(args[1], Literal):
            found = self.walker.attribute(args[0], str(args[1].value), "", node.at, world)
            return found[0][0] if len(found) == 1 else None
        if name == "getattr" and isinstance(args[0], External) and args[0].dotted in _MADE_BY_NAME:
            return External(_MADE_BY_NAME[args[0].dotted])
        if name == "bool" and len(args) == 1:
            return args[0]
        if name in ("any", "all") and isinstance(last, Method) and last.name == "each":
            return last.base
        return None

    def _new_scaler(self, node: ir.Call, enabled: Value | None, world: World, sharded: bool = False) -> Results:
        results: Results = []
        place, calls = _asked_for(node, world)
        dtype = "bfloat16" if _asks_for_bfloat16(node) else None
        if dtype is not None:  # wrong whatever the setting happens to be
            enabled = Condition(f"bfloat16 at {node.at}")
        for live, after in split(world, enabled if enabled is not None else Literal.of(True)):
            scaler = Scaler(after.identity(node.at), live, sharded=sharded)
            if live:
                event = Event(Kind.SCALER_NEW, scaler=scaler.id, site=(*place, calls), dtype=dtype)
                self.walker.emit(after, event, place[1], place[0])
            results.append((scaler, after))
        return results

    def _new_region(
        self, name: str, node: ir.Call, args: list[Value], named: dict[str, Value], world: World
    ) -> Results:
        """An autocast object. The CPU's default dtype counts only where the call itself says CPU: where a variable
        does, it is the fallback of a program that is written for another device.
        """
        device, given = AUTOCASTS[name], None
        if device is None:
            given = argument(args, named, "device_type", 0)
            device = str(given.value).partition(":")[0] if isinstance(given, Literal) else None
        enabled = argument(args, named, "enabled", 2 if AUTOCASTS[name] is None else 0)
        dtype = argument(args, named, "dtype", 1)
        cache = argument(args, named, "cache_enabled", 3 if AUTOCASTS[name] is None else 2)
        default = None if device == "cpu" and not _says_cpu(name, node) else DEFAULT_DTYPES.get(device or "")
        if default is None and device is None and self._is_unscaled_half(given, world):
            default = DEFAULT_DTYPES["cuda"]
        meant = dtype_of(enabled)  # the old class given a dtype first: it raises, and the dtype says what was meant
        word = dtype_of(dtype) if dtype not in (None, NONE) else meant or default
        captured = not _CAPTURES.isdisjoint(world.frame.module.words)  # what a graph captures must not be cached
        cached = captured or not (isinstance(cache, Literal) and cache.value is False)
        return [
            (Region(device, word, live, cached), after)
            for live, after in split(world, enabled if enabled is not None else Literal.of(True))
        ]

    def _is_unscaled_half(self, device: Value | None, world: World) -> bool:
        """Whether the default dtype on a device that the program finds out for itself is float16, unless it is the CPU;
        where some part of the program has a scaler, that may be for the same case alone, and nothing is said.
        """
        if not isinstance(device, Symbol) or _ACCELERATED.search(device.key) is None:
            return False
        elsewhere = any(value is not ("cuda" in key) for key, value in world.all_decided() if _ASKED_DEVICE.search(key))
        return not elsewhere and not any(
            _SCALER_WORDS & module.words for module in self.walker.project.modules.values()
        )

    def _new_optimizer(
        self, node: ir.Call, args: list[Value], named: dict[str, Value], world: World, closure: bool
    ) -> Optimizer:
        identity = world.identity(node.at)
        given = args[0] if args else named.get("params", NONE)
        owners = owners_of(given)
        groups = [item for item in inside(given) if isinstance(item, Parameters)]
        whole = bool(groups) and not any(group.part for group in groups)
        within = known(frozenset().union(*(group.within for group in groups))) or ()
        event = Event(Kind.OPTIMIZER_NEW, optimizer=identity, owners=known(owners), whole=whole, within=within)
        self.walker.emit(world, event, node.at)
        return Optimizer(identity, closure)

    def _autograd_grad(self, node: ir.Call, args: list[Value], named: dict[str, Value], world: World) -> Value:
        """Gradients as values. Those of a field by its coordinates are physics: normals, forces, velocities."""
        outputs = args[0] if args else named.get("outputs", NONE)
        given = [item for item in inside(outputs) if isinstance(item, Tensor)]
        whole = together(given, None) if given else Tensor(doubt=isinstance(outputs, Symbol) and outputs.param)
        scaled = None if whole.doubt else whole.scaled is not None
        if not any(_FIELD.search(name) for arg in node.args for name in names_in(arg.value)):
            event = Event(Kind.AUTOGRAD_GRAD, scaler=whole.scaled, scaled=scaled, dtype=whole.dtype)
            self.walker.emit(world, event, node.at)
        if scaled:
            whole = replace(whole, taken="gradients")
        return whole if given else self.result(External("torch.autograd.grad"), node, args, named, world)

    def _clip(self, parameters: Value, limit: Value | None, by_value: bool, node: ir.Call, world: World) -> Results:
        """Clipping; with a limit that no norm comes to it only measures."""
        number = limit.value if isinstance(limit, Literal) else None
        endless = limit in INFINITE or (isinstance(number, (int, float)) and number >= _NO_LIMIT)
        kind = Kind.GRAD_READ if endless else Kind.CLIP
        owners = known(owners_of(parameters))
        sharded = are_sharded(owners, world) and not by_value
        self.walker.emit(world, Event(kind, owners=owners, sharded=sharded), node.at)
        return [(MEASURE if endless else Symbol("norm", "", True), world)]


def _says_cpu(name: str, node: ir.Call) -> bool:
    written = (arg.value for arg in node.args if arg.keyword in (None, "device_type"))
    return AUTOCASTS[name] == "cpu" or isinstance(next(written, None), ir.Const)


def limit_of(args: list[Value], named: dict[str, Value]) -> Value | None:
    for name in ("max_norm", "clip_value", "value"):
        if name in named:
            return named[name]
    return args[1] if len(args) > 1 else None


def builds_optimizer(name: str) -> bool:
    if name.startswith("torch.optim."):
        return name.count(".") == 2 and name.rpartition(".")[2][:1].isupper()
    short_name = name.rpartition(".")[2]
    return (
        bool(re.search(r"(^|\.)(optim|optimizers|optimization)(\.|$)", name))
        and short_name[:1].isupper()
        and (bool(re.search(r"Adam|SGD|Lion|LAMB|Lamb|RMSprop|Adagrad|Adafactor", short_name)))
    )


def _is_settings(value: Value, world: World) -> bool:
    """Whether something is a dict of which items are known, none of them a model or what trains one."""
    if isinstance(value, Table):
        return all(isinstance(each, (Literal, Symbol, Condition, Items, Table, External)) for each in inside(value))
    return isinstance(value, Symbol) and any(key == value.key and name[:1] == "[" for key, name in world.heap)


def _is_part(value: Value) -> bool:
    """Whether it is a model, which another one that is built with it holds: ``nn.ModuleDict({"net": net})``."""
    return isinstance(value, Instance) and value.model


def _hands_on(node: ir.Expr) -> bool:
    """Whether something that has a name elsewhere goes into a container, and not only what is built in the call."""
    if isinstance(node, (ir.Sequence, ir.Mapping)):
        inner = node.items if isinstance(node, ir.Sequence) else [value for _, value in node.items]
        return any(map(_hands_on, inner))
    return isinstance(node, (ir.Name, ir.Attr, ir.Starred, ir.Comprehension))


def builds_model(name: str) -> bool:
    short_name = name.rpartition(".")[2]
    if name.startswith("torch.nn.") and not name.startswith(("torch.nn.functional", "torch.nn.utils", "torch.nn.init")):
        return short_name[:1].isupper() and not short_name.endswith(("Loss", "Parameter"))
    if name.startswith(("torchvision.models.", "timm.create_model", "segmentation_models_pytorch.")):
        return True
    return loads_model(name)


def _asked_for(node: ir.Call, world: World) -> tuple[Place, tuple[int, ...]]:
    """Where a scaler is asked for: the call itself, or that of the factory which returns it as its caller wants it; and
    by which calls the code got there: two calls of a function make two scalers, and none anew in each round.
    """
    place, calls = (world.frame.module.path, node.at), world.frame.calls
    for depth in range(len(world.frames) - 1, 0, -1):
        frame = world.frames[depth]
        if frame.function is None or not frame.calls or not _hands_out(frame.function, place[1]):
            break
        place, calls = (world.frames[depth - 1].module.path, frame.calls[-1]), frame.calls[:-1]
    return place, calls


def _hands_out(function: ir.Function, at: int) -> bool:
    """Whether a function returns what the call at ``at`` makes from its own parameters."""
    params = {param.name for param in function.params}
    for statement in statements(function.body):
        value = statement.value if isinstance(statement, ir.Return) else None
        if isinstance(value, ir.Call) and value.at == at:
            words = {part.id for arg in value.args for part in walk(arg.value) if isinstance(part, ir.Name)}
            return not params.isdisjoint(words)
    return False


def _asks_for_bfloat16(node: ir.Call) -> bool:
    """``enabled=(dtype == "bfloat16")``: on for the dtype that needs no scaling."""
    test = next((arg.value for arg in node.args if arg.keyword == "enabled"), None)
    if not isinstance(test, ir.Compare) or len(test.rest) != 1 or test.rest[0][0] != "==":
        return False
    wanted = test.rest[0][1]
    if isinstance(wanted, ir.Const):
        return wanted.value in ("bfloat16", "bf16")
    return isinstance(wanted, ir.Attr) and wanted.name == "bfloat16"


def _changed(source: Instance | Symbol, fields: Mapping[str, Value], at: int, world: World) -> Instance | Symbol:
    """``replace(config, fold=fold)``: a copy that says the rest as the original does, in every round that makes one."""
    copy: Instance | Symbol
    old: Hashable
    if isinstance(source, Instance):
        copy = replace(source, id=(source.id, at))
        old, new = source.id, copy.id
    else:
        copy = replace(source, key=short(f"{source.key} changed {at}"))
        old, new = source.key, copy.key
    kept = {name: value for (owner, name), value in world.heap.items() if owner == old}
    for name, value in {**kept, **fields}.items():
        world.put(new, name, value)
    return copy
