"""Contexts and attributes: regions that are entered and left, gradients that are written, what calls give."""

from __future__ import annotations

import functools
import re
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from amp_audit.events import Event, Kind
from amp_audit.records import replace
from amp_audit.state import LOW_PRECISION, blur, forget, get, live_region, region_dtype
from amp_audit.static.binding.project import ClassRef, External, ModuleRef
from amp_audit.static.source import ir
from amp_audit.static.source.names import MOST_NAMES, is_settings
from amp_audit.static.source.traverse import last_word
from amp_audit.static.walking.boundaries import accumulates
from amp_audit.static.walking.ducks import OPTIMIZER_NAME, SCALER_NAME, builds
from amp_audit.static.walking.exchanges import Exchanges
from amp_audit.static.walking.hot import dotted
from amp_audit.static.walking.kinship import note_made
from amp_audit.static.walking.lineage import (
    FROZEN,
    LOWERED,
    UNCACHED,
    UNSEEN,
    computed_in,
    dtype_of,
    thaw,
    together,
    with_children,
)
from amp_audit.static.walking.values import (
    GRADIENT,
    Func,
    Instance,
    Literal,
    Method,
    NoGrad,
    Optimizer,
    Parameters,
    Region,
    Scale,
    Scaler,
    Symbol,
    Tensor,
    Value,
    inside,
    is_volatile,
    key_of,
    of_round,
    short,
)
from amp_audit.static.walking.world import World

if TYPE_CHECKING:
    pass

INFERENCE = "torch.inference_mode"
NO_GRAD_NAMES = frozenset({"torch.no_grad", INFERENCE, "torch.autograd.grad_mode.no_grad"})
_LOSS = re.compile(r"loss|criterion|(^|_)crit(_|$)", re.IGNORECASE)
_LOSS_OF_TORCH = re.compile(r"^torch\.nn\.\w*Loss\(")
_OF_TEXTS = frozenset(
    {
        *("startswith", "endswith", "lower", "upper", "casefold", "strip", "lstrip", "rstrip", "replace", "isdigit"),
        *("split", "rsplit", "partition", "rpartition", "removeprefix", "removesuffix", "title", "capitalize"),
    }
)
"""Methods of texts, which give the same whenever they are called."""
_LOSS_SCALE = re.compile(
    r"^_?((loss|grad|cur|current|dynamic|static|fp16|amp)_?scale|scale_?(loss|grad)s?)$", re.IGNORECASE
)
_CLEARS = re.compile(r"(^|_)(zero|clear|reset|empty|flush|wipe|forget|none)(_|$)|zero_?grad", re.IGNORECASE)
_REFERENCE = re.compile(r"(^|_)(ref|reference)(_|$)", re.IGNORECASE)
_SEEN = ("torch.", "builtins.")
_NORMS = frozenset({"norm", "vector_norm", "square", "pow"})
_FACTS_OF_TENSORS = frozenset({"shape", "device", "dtype", "ndim", "requires_grad", "is_cuda"})


class Contexts(Exchanges):
    """What surrounds the calls: contexts, attributes, forwards and their outputs."""

    def as_context(self, value: Value) -> Value | None:
        """A region or no_grad used as a decorator; ``@torch.no_grad`` without a call means the same as with one."""
        if isinstance(value, External) and value.dotted in NO_GRAD_NAMES:
            return NoGrad(value.dotted == INFERENCE)
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
            world.inference += value.inference
        elif _veils(value):
            world.veiled += 1
        if isinstance(value, Symbol):
            return Symbol(short(f"{value.key} entered"), value.text, True, True)
        return value

    def leave(self, value: Value, at: int, world: World, depth: int) -> None:
        """Leave a context; regions entered inside it (ExitStack) end with it."""
        if isinstance(value, NoGrad):
            world.no_grad = max(0, world.no_grad - 1)
            world.inference = max(0, world.inference - value.inference)
        elif _veils(value):
            world.veiled = max(0, world.veiled - 1)
        while len(world.state.regions) > depth:
            region = world.state.regions[-1]
            self.walker.emit(world, Event(Kind.REGION_EXIT, region=region.id), at)

    def discard(self, node: ir.Expr, value: Value, world: World) -> None:
        """An expression statement whose value is dropped: a scaled loss, or a backward not called."""
        if isinstance(node, ir.Call) and isinstance(value, Tensor) and value.scaled is not None:
            self.walker.emit(world, Event(Kind.DROP, scaler=value.scaled), node.at)
        elif isinstance(value, Method) and value.name == "backward":
            self.walker.emit(world, Event(Kind.BACKWARD, scaled=None), node.at)

    # Attributes

    def get_attribute(self, base: Value, name: str, world: World) -> Value:
        if isinstance(base, Tensor) and name == "grad":
            return GRADIENT
        if isinstance(base, Tensor) and name == "requires_grad" and (base.owners or base.ran):
            return Literal.of(True)
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
        if isinstance(base, Instance):
            world.put(base.id, target.name, _texted(value, target))
        elif isinstance(base, Symbol):
            world.put(base.key, target.name, _texted(value, target))
        elif isinstance(base, ModuleRef) and base.module is not None:
            world.put_global(base.module.path, target.name, value)

    def descale(self, made: Value, given: tuple[Value, Value], scale: Scale, at: int, world: World) -> Value:
        """What is left of something scaled that was divided by the scale, or of something that may be."""
        doubt = not any(isinstance(value, Tensor) and value.scaled == scale.scaler for value in given)
        self.walker.emit(world, Event(Kind.DESCALE, scaler=scale.scaler, read=scale.read, given=doubt), at)
        return replace(made, scaled=None, doubt=False, plain=False, taken="") if isinstance(made, Tensor) else made

    def result(self, callee: Value, node: ir.Call, args: list[Value], named: dict[str, Value], world: World) -> Value:
        """What a call that is not followed gives: a tensor when it is fed tensors or runs under autocast."""
        values = (*args, *named.values())
        given = inside(*values)
        name = last_word(node.func)
        if _perhaps_clears(name):
            self._blur_trained(name, given, world)
        if given:
            self._hand_out(callee, given, world)
        fed = [item for item in given if isinstance(item, Tensor)]
        if fed:
            made = _told_of(fed) if world.no_grad else together(fed, region_dtype(world.state))
            compares = len(values) > 1 and not isinstance(callee, Tensor)  # a loss is made here, of what was computed
            known_divisors = made.divided - UNSEEN if compares else made.divided
            ran = made.ran | self._ran_unseen(callee, given, world)
            taken = made.taken and _still_taken(callee, made.taken, node)
            doubt = made.doubt or _may_scale(callee)
            carried = None if doubt else made.scaled
            divided = known_divisors | _perhaps_divided(callee, node)
            return replace(made, divided=divided, ran=ran, taken=taken, doubt=doubt, scaled=carried)
        live = region_dtype(world.state)
        if live is not None and not world.no_grad and isinstance(callee, Func):
            models = [model for item in given if (model := self._as_model(item, world)) is not None]
            if models:  # what it is given to run, it runs
                return together([self._run(model, node.at, world) for model in models], live)
        volatile = any(map(is_volatile, values))
        apart = f" at {node.at}{world.stamp if world.stamp and values else ''}" if builds(callee, node) else ""
        key = short(f"{key_of(callee)}({','.join(map(key_of, values))}){apart}")
        note_made(key, callee, name, given, world)
        if world.stamp and is_settings(name):
            return Symbol(of_round(key, world.stamp))  # other ones in each round, which stay the same within it
        if isinstance(callee, (External, Func)) or volatile or not isinstance(callee, Symbol):
            return Symbol(key, "", volatile)
        return Symbol(key, "", callee.volatile or (bool(world.stamp) and name not in _OF_TEXTS))

    def _hand_out(self, callee: Value, given: list[Value], world: World) -> None:
        """What code that is not followed may do with what it is given."""
        if not isinstance(callee, (Func, ClassRef)):
            for item in given:
                if later := self._left_to_others(item, world):
                    self.walker.happened.allow(_LATER[name] for name in later if name in _LATER)
        if not _harmless(callee) and any(self._hands_on(item, world) for item in given):
            world.state = forget(world.state)
        if not (isinstance(callee, External) and callee.dotted.startswith("torch.")):
            thaw(world, [item.id for item in given if isinstance(item, Instance)])

    def _left_to_others(self, value: Value, world: World) -> Iterable[str]:
        """The methods of scalers and optimizers that code out of sight is handed to call later, or a function does."""
        if isinstance(value, Symbol):
            text, _, name = value.text.rpartition(".")
            if not text or name not in _LATER:
                return ()
            owner = replace(value, key=value.key.removesuffix(f".{name}"), text=text)
            return (name,) if self.is_scaler(owner, world) or self.is_optimizer(owner, world) else ()
        if isinstance(value, Func):
            called = self.walker.heat.methods_in(value.function)
            return [name for owner, name in called if SCALER_NAME.search(owner) or OPTIMIZER_NAME.search(owner)]
        return (value.name,) if isinstance(value, Method) and isinstance(value.base, (Scaler, Optimizer)) else ()

    def _blur_trained(self, name: str, given: list[Value], world: World) -> None:
        """Code out of sight is called what clears gradients: whose, it does not say."""
        if "grad" in name.lower() or any(self._is_trained(item, world) for item in given):
            self.walker.happened.allow(("zero_grad",))
            world.state = blur(world.state, (owner for owner, _ in world.state.owners))

    def _is_trained(self, value: Value, world: World) -> bool:
        if isinstance(value, Symbol):
            return self.is_optimizer(value, world) or self.is_model(value, world)
        return isinstance(value, (Optimizer, Instance, Parameters))

    def _as_model(self, value: Value, world: World) -> Instance | None:
        if isinstance(value, Instance):
            return value if value.model else None
        known = isinstance(value, Symbol) and self.is_model(value, world)
        return Instance(value.key, None, True) if known and isinstance(value, Symbol) else None

    def _run(self, model: Instance, at: int, world: World) -> Tensor:
        self.forward(model, at, world)
        made = self.output(model, None, [], {}, world)
        return made if isinstance(made, Tensor) else Tensor()

    def _hands_on(self, value: Value, world: World) -> bool:
        """Whether it is a scaler: code out of sight that is given one may step or update with it."""
        if isinstance(value, Scaler):
            return value.enabled
        return isinstance(value, Symbol) and self.is_scaler(value, world)

    def output(
        self, model: Instance, given: Value | None, args: list[Value], named: dict[str, Value], world: World
    ) -> Value:
        """What calling a model gives: tensors that lead back to its parameters and to those of its inputs."""
        fed = [item for item in inside(*args, *named.values()) if isinstance(item, Tensor)]
        if world.no_grad:
            return Tensor()
        parts = with_children(model.id, world)
        own = frozenset(part for part in parts if world.heap.get((part, FROZEN)) != Literal.of(True))
        unseen = any(isinstance(item, (Symbol, Tensor)) for item in (*args, *named.values()))
        if unseen and _is_loss(model) and not any(item.owners for item in fed):
            own = frozenset()  # it leads back to what its inputs come from, and that is not seen
        inner = given.dtype if isinstance(given, Tensor) else None
        words = model.cls.cls.words if model.cls is not None else frozenset[str]()
        told = [item.text for item in (*args, *named.values()) if isinstance(item, Symbol)]
        divided = UNSEEN if _accumulate(words) or any(map(accumulates, told)) else frozenset[Hashable]()
        lowered = dtype_of(world.heap.get((model.id, LOWERED))) if region_dtype(world.state) is None else None
        ran = self._runs(model, world)
        if ran == {"outside"} and inner in LOW_PRECISION:
            ran = frozenset({"unknown"})  # what it returns comes from a region of its own
        made = Tensor(own, lowered or computed_in(world) or inner, divided=divided, ran=ran)
        return together([*fed, made], made.dtype)

    def _runs(self, model: Instance, world: World) -> frozenset[str]:
        """Where a model runs. What is called a loss has no weights to cast, so where it runs says nothing."""
        if _is_loss(model):
            return frozenset()
        if world.veiled or self.walker.heat.models_cast:
            return frozenset({"unknown"})
        if not world.state.regions:
            return frozenset({"outside"})
        return frozenset({"inside" if live_region(world.state) else "off"})

    def _ran_unseen(self, callee: Value, given: list[Value], world: World) -> frozenset[str]:
        """Code that is not followed may run a model where it is called, unless it is, or is called, a loss and given
        none.
        """
        if isinstance(callee, (External, Tensor)) or not world.state.regions:
            return frozenset()
        if isinstance(callee, Instance) and callee.model:
            return frozenset()
        if any(
            isinstance(item, Instance) or (isinstance(item, Symbol) and self.is_model(item, world)) for item in given
        ):
            return frozenset({"unknown"})
        if isinstance(callee, Instance) or _LOSS_OF_TORCH.search(key_of(callee)):
            return frozenset()
        name = callee.text if isinstance(callee, Symbol) else key_of(callee)
        return frozenset() if _LOSS.search(name.rpartition(".")[2]) else frozenset({"unknown"})

    def forward(self, model: Instance, at: int, world: World, name: str = "") -> None:
        """A model is called, by this name: weights are cast, or nothing but its output is wanted."""
        if world.no_grad:
            ran, reference = place_of(self._runs(model, world)), bool(_REFERENCE.search(name))
            kept = not any(world.heap.get((model.id, what)) == Literal.of(True) for what in (FROZEN, UNCACHED))
            event = Event(Kind.EVALUATE, owners=(model.id,), ran=ran, reference=reference, frozen=not kept)
            self.walker.emit(world, event, at)
        elif world.heap.get((model.id, UNCACHED)) != Literal.of(True):
            self.walker.emit(world, Event(Kind.FORWARD, owners=(model.id,)), at)


_LATER = {"update": "update", "unscale_": "unscale", "step": "step.scaler", "zero_grad": "zero_grad"}


@functools.lru_cache(maxsize=MOST_NAMES)
def _perhaps_clears(name: str) -> bool:
    return _CLEARS.search(name) is not None


def _told_of(fed: list[Tensor]) -> Tensor:
    """What is computed without gradients: all that may last is the scale of what the gradients themselves gave."""
    doubt = any(tensor.doubt and tensor.cut for tensor in fed)
    return Tensor(doubt=doubt, cut=doubt)


def _is_loss(model: Instance) -> bool:
    return model.cls is not None and _LOSS.search(model.cls.cls.name) is not None


def place_of(ran: frozenset[str]) -> str | None:
    """Where models ran, if all of them ran in the same place and it is known."""
    where = next(iter(ran)) if len(ran) == 1 else None
    return where if where in ("inside", "outside", "off") else None


def _veils(value: Value) -> bool:
    """Whether a context may be a region that nobody sees."""
    if isinstance(value, External):
        return not value.dotted.startswith(("contextlib.", "torch."))
    return isinstance(value, (Symbol, Instance, Method))


def _still_taken(callee: Value, kind: str, node: ir.Call) -> str:
    """What a call makes of gradients that carry the scale: code that is not followed may take it off."""
    if not isinstance(callee, Tensor) and not (isinstance(callee, External) and callee.dotted.startswith(_SEEN)):
        return ""
    return "penalty" if last_word(node.func) in _NORMS else kind


def _may_scale(callee: Value) -> bool:
    """Whether code of the project that is not followed speaks of a loss scale that it keeps by hand."""
    if isinstance(callee, Instance):
        own = callee.cls.cls.body if callee.cls is not None and not callee.model else ()
        return any(isinstance(node, ir.Function) and node.name == "__call__" and _speak(node.words) for node in own)
    return isinstance(callee, Func) and _speak(callee.function.words)


@functools.lru_cache(maxsize=MOST_NAMES)
def _speak(words: frozenset[str]) -> bool:
    return any(map(_LOSS_SCALE.search, words))


@functools.lru_cache(maxsize=MOST_NAMES)
def _accumulate(words: frozenset[str]) -> bool:
    return any(map(accumulates, words))


def _perhaps_divided(callee: Value, node: ir.Call) -> frozenset[Hashable]:
    """Whether code that is not followed may divide a loss by the number of micro-batches, or sums over the batch."""
    if any(accumulates(arg.keyword or last_word(arg.value)) for arg in node.args):
        return UNSEEN
    if isinstance(callee, Func):
        return UNSEEN if _accumulate(callee.function.words) else frozenset()
    return frozenset({"sum"} if "'sum'" in key_of(callee) else ())


def _harmless(callee: Value) -> bool:
    """Whether code that is given a scaler does nothing with it: builtins, torch's own, what the project shows."""
    if isinstance(callee, External):
        return callee.dotted.startswith(("builtins.", "torch."))
    return isinstance(callee, (Func, ClassRef))


def _texted(value: Value, target: ir.Attr) -> Value:
    if not isinstance(value, Symbol):
        return value
    return replace(value, text=dotted(target))
