"""Models, optimizers and library calls: what is cast, what is trained, what is built."""

from __future__ import annotations

import abc
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import reduce

from amp_audit.records import replace
from amp_audit.static.dtypes import surface
from amp_audit.static.dtypes.arguments import (
    Named,
    autocast,
    cast_target,
    dtype_of,
    finfo,
    is_device,
    layers_in,
    math_result,
    new_tensor,
    params_in,
    told_dtype,
    torch_dtype,
)
from amp_audit.static.dtypes.arrays import made_by_numpy
from amp_audit.static.dtypes.freezing import Freezing
from amp_audit.static.dtypes.holding import MODEL_KINDS, layers_held, models_held, models_in
from amp_audit.static.dtypes.ops import DEFAULT, Operations
from amp_audit.static.dtypes.record import Cast, Place, Training
from amp_audit.static.dtypes.values import (
    ANY,
    FLOAT32,
    HALVES,
    NOTHING,
    NUMBER,
    REST,
    UNASKED,
    UNKNOWN,
    Const,
    DType,
    Dtypes,
    Either,
    Items,
    Layer,
    Many,
    Object,
    Opaque,
    Optimizer,
    Params,
    Table,
    Tensor,
    Value,
    as_tensor,
    by_name,
    join,
    options,
)
from amp_audit.static.source.conditions import NO_FACTS, Facts, exclude
from amp_audit.static.source.names import BORN_IN_BFLOAT16, loads_model

_LIKE_ADAMW = dict.fromkeys(("transformers.AdamW", "transformers.optimization.AdamW"), 1e-6)
"""Optimizers of other libraries that update the parameters as they are, with the ``eps`` that each has by itself."""

KEEPS_MASTER_WEIGHTS = (
    "deepspeed",
    "accelerate",
    "torch.distributed.fsdp",
    "torch.distributed._composable",
    "fairscale",
)
_TRANSPARENT = frozenset(
    {
        *("torch.compile", "torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel"),
        *("torch.nn.parallel.DataParallel", "torch.nn.SyncBatchNorm.convert_sync_batchnorm", "torch.jit.script"),
        *("torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm", "torch.nn.utils.parametrizations.weight_norm"),
        *("torch.nn.utils.parametrizations.spectral_norm", "torch.autograd.Variable"),
    }
)
_MODEL_SELF = frozenset(
    {"cuda", "cpu", "xpu", "to", "train", "eval", "requires_grad_", "compile", "share_memory", "apply", "to_empty"}
)
_EPS = {
    **dict.fromkeys(("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop"), 1e-8),
    "Adagrad": 1e-10,
    "Adadelta": 1e-6,
}
"""The optimizers of torch that divide by a state to which they add eps, and its default."""
_SETS_DEFAULT = frozenset({"torch.set_default_dtype", "torch.set_default_tensor_type"})
_SIZES: Mapping[str, tuple[str, ...]] = {
    "Linear": ("in_features", "out_features"),
    "Conv1d": ("in_channels", "out_channels"),
    "Conv2d": ("in_channels", "out_channels"),
    "Embedding": ("num_embeddings", "embedding_dim"),
}
"""The sizes of layers that become dimensions of a matrix product."""
_NUMPY_GENERATORS = frozenset({"default_rng", "RandomState", "Generator"})
_HALF_PROOF = re.compile(r"t5|t0|ul2", re.IGNORECASE)
"""Those whose loader keeps the overflowing weights in float32, which autocast undoes."""
_VECTORS = surface.REDUCTIONS | surface.LOSSES
"""Ops that give a vector where they do not give a number."""
_TRAINED_WHOLE = ("torch.", "torchvision.", "timm.")
"""Libraries whose models have all their parameters trained as they come."""
_FOREACH = "torch._foreach_"
GATHER = "gather"
"""What DataParallel does last: the numbers of its devices become a vector."""
_AVERAGES = {
    "torch.optim.swa_utils.AveragedModel": "update_parameters",
    **{f"timm.utils.{place}ModelEma{kind}": "update" for place in ("", "model_ema.") for kind in ("", "V2", "V3")},
}
"""Classes that keep an average of a model's weights in a copy of the model, and the methods that move it on."""
_MODEL = re.compile(r"(\w+_)?(model|net|network|unet)", re.IGNORECASE)
"""What the model is called that a program trains or tests: no encoder or teacher, which others may have cast."""
_TELLING = frozenset({"parameters", "named_parameters", "train", "eval", "zero_grad"})
"""Methods by whose calls a model is known, whatever made it."""


class Models(Operations):
    """What methods and library functions do to tensors, models and optimizers. ``models`` are known to be models."""

    freezing: Freezing

    def __init__(self) -> None:
        super().__init__()
        self.models: set[Hashable] = set()
        self.idle_scalers: set[Hashable] = set()  # built with enabled=False
        self.born_in_bfloat16: dict[Hashable, tuple[str, Place, bool]] = {}  # -> name, where loaded, by default
        self.buffers: dict[Hashable, dict[str, Tensor]] = {}
        self.optimizer_facts: dict[Hashable, Facts] = {}  # under what optimizers are made
        self.scaler_facts: dict[Hashable, Facts] = {}  # what is known where a scaler is there and enabled
        self.eps: dict[Hashable, float | None] = {}  # of optimizers that add one to a low-precision denominator
        self.around_low: set[Hashable] = set()  # made by a library around a model that is low (adapters)
        self.made_here: set[Hashable] = set()  # layers of torch and models of the project
        self.untold: set[Hashable] = set()  # models handed to code, or cast in a way, that cannot be read
        self.fused: set[Hashable] = set()  # optimizers that unscale their gradients themselves
        self.gathered: set[Hashable] = set()  # models of DataParallel, which returns a vector of their numbers

    def called_out_of_sight(self, base: Opaque, text: str, args: Sequence[Value], named: Named, at: int) -> Opaque:
        """The result of code that cannot be read, ``base`` or a method of it. What a model gives in a live region
        is taken to be in its dtype, as the output of a linear layer or a convolution is.
        """
        if self.libraries.get(base.id) in surface.TRANSFORMERS:
            self.into_transformer(args[:2], at)
        if _MODEL.fullmatch(base.text) and text == base.text and base.id not in self.libraries:
            self.models.add(base.id)
        if base.id in self.models or base.id not in self.libraries:
            own = base.id in self.models and not self.is_partly_low(base.id) and "loss" not in text.lower()
            self.foreign_call("model" if own else "call", args, named, at)
        self.untold.update(model for value in (*args, *named.values()) for model in models_in(value))
        live = self.live
        if base.id in self.models:
            self.note_training()
        if live is None and text == base.text and loads_model(self.libraries.get(base.id, "")):
            return Opaque((self.path, at), text, dtypes=self.weight_dtypes(base), origin="loaded")
        if live is None and text == base.text and self._is_cast(base) and _is_low(args[0] if args else None):
            return Opaque((self.path, at), text, dtypes=self.weight_dtypes(base), origin="loaded", assumed=True)
        if base.id in self.born_in_bfloat16 and live is not None:
            self.notice_pretrained(*self.born_in_bfloat16[base.id], live.dtypes)
        if live is None or base.id not in self.models or "loss" in text.lower():
            return Opaque((self.path, at), text)
        return Opaque((self.path, at), text, dtypes=live.dtypes, origin="model")

    def method(self, base: Value, name: str, args: Sequence[Value], named: Named, at: int) -> Value:
        """The result of ``base.name(...)`` for what is no object of the project."""
        if isinstance(base, Either):
            return reduce(join, (self.method(one, name, args, named, at) for one in base.options))
        if isinstance(base, Const):
            return NUMBER if base.number is not None else NOTHING
        if isinstance(base, Table):
            return self._of_table(base, name, args)
        if isinstance(base, Params) and name in ("items", "values"):
            return Many(Items((NOTHING, base)) if name == "items" else base)
        if isinstance(base, (Items, Many, Params)) and name in (
            "append",
            "extend",
            "insert",
            "items",
            "values",
            "keys",
        ):
            return NOTHING
        if isinstance(base, Optimizer):
            if name == "step":
                self._trained(base)
            if name == "load_state_dict":
                self.record.restored.setdefault(_place(base.id), (self.path, at))
            return NOTHING
        if name == "get_scale" and self._scales(base) and not self.is_skip_guard(at):
            self.synchronised(NOTHING, at)
        if name == "scale" and args and self._scales(base):
            self._scaled(args[0], at)
        if name in ("step", "unscale_") and args and isinstance(args[0], Optimizer):
            if self._scales(base) and (name == "unscale_" or args[0].id not in self.fused):
                facts = self.facts | (
                    self.scaler_facts.get(base.id, NO_FACTS) if isinstance(base, Opaque) else NO_FACTS
                )
                self.record.scaled.setdefault(args[0].id, set()).add(facts)
            self._trained(args[0])
            return NOTHING
        if name == "backward":
            self.note_training()
            if self.loops:
                self.loops[-1].steps = True
            self._trained(None)
            return NOTHING
        if isinstance(base, Opaque) and self.libraries.get(base.id, "").startswith("numpy.random."):
            return self._numpy(name, args, named, at)
        if isinstance(base, Opaque) and self.libraries.get(base.id, "").startswith(KEEPS_MASTER_WEIGHTS):
            self._managed(args, named)
        if isinstance(base, MODEL_KINDS):
            found = self._of_model(base, name, args, named, at)
            if found is not None:
                return found
        return self._of_tensor(base, name, args, named, at)

    def note_training(self) -> None:
        """The innermost loop runs a model."""
        if self.loops:
            self.loops[-1].trains = True

    def _scaled(self, loss: Value, at: int) -> None:
        tensor = self.tensor_of(loss)
        if tensor is not None and tensor.low and not tensor.scalar and _is_vector(tensor):
            self.notice("scale_vector", tensor, at)

    def _scales(self, base: Value) -> bool:
        """Whether a thing that steps optimizers is torch's GradScaler, or is called like one and may be one."""
        if not isinstance(base, Opaque) or base.id in self.idle_scalers:
            return False
        library = self.libraries.get(base.id)
        if library:
            return library.startswith("torch.") and library.rpartition(".")[2] == "GradScaler"
        return "scaler" in base.text.lower()

    def _of_table(self, base: Table, name: str, args: Sequence[Value]) -> Value:
        values = [value for _, value in base.items]
        if name == "get" and args and isinstance(args[0], Const):
            return base.get(args[0].value) or NOTHING
        if name == "values" and values:
            return Items(tuple(values))
        if name == "items" and values:
            names = (NOTHING if key == REST else Const.of(key) for key, _ in base.items)
            return Items(tuple(map(Items, zip(names, values))))
        return NOTHING

    def _of_model(
        self, base: Layer | Object | Opaque, name: str, args: Sequence[Value], named: Named, at: int
    ) -> Value | None:
        """What a model does on ``name``; None for a name that speaks of a tensor."""
        if name in _TELLING:
            self.models.add(base.id)
        if name in ("parameters", "buffers", "state_dict", "named_parameters", "named_buffers"):
            maker = self.libraries.get(base.id, "")
            fresh = not isinstance(base, Opaque) or maker.startswith(_TRAINED_WHOLE) or loads_model(maker)
            if name.startswith("named_"):
                return Many(
                    Items((NOTHING, Params(frozenset({base.id}), partly=True, fresh=fresh, choices=(UNASKED,))))
                )
            return Params(frozenset({base.id}), fresh=fresh)
        if name == "requires_grad_":
            if not (args and isinstance(args[0], Const) and args[0].value is True):
                self.record.frozen.add(base.id)
            return base
        if name == _AVERAGES.get(self.libraries.get(base.id, "")):
            self.notice("average", self.tensor_of(Params(frozenset({base.id}))) or Tensor(), at)
        target = cast_target(name, args, named)
        if name == "apply" or (name in ("to", "type") and (target is None or UNKNOWN in target.dtypes)):
            self._doubt(base, args, named)
        if target is not None:
            return self._cast(base, target, at)
        if name in _MODEL_SELF:
            return base
        if name in ("children", "modules"):
            return Many(Opaque((base.id, "[]")))
        if isinstance(base, (Layer, Object)):
            return NOTHING
        if name == "type_as" or surface.effect_of(name) is not None:
            return None
        return self.called_out_of_sight(base, name, args, named, at)

    def _doubt(self, base: Layer | Object | Opaque, args: Sequence[Value], named: Named) -> None:
        """Note that a model may have changed its dtype, unless it only goes to another device."""
        given = [option for value in (*args, *named.values()) for option in options(value)]
        plain = (Const, DType)
        if not all(isinstance(one, plain) or (isinstance(one, Opaque) and is_device(one.text)) for one in given):
            self.untold.add(base.id)

    def is_as_built(self, model: Hashable) -> bool:
        if model not in self.made_here or DEFAULT in self.casts or self.in_module():
            return False
        around = self.heap.around(model)
        return around.isdisjoint(self.untold) and around.isdisjoint(self.casts)

    @abc.abstractmethod
    def in_setup(self) -> bool:
        """Whether a model is being made, of which what comes from NumPy is a constant."""

    @abc.abstractmethod
    def in_module(self) -> bool:
        """Whether the code at hand is a model's own."""

    @abc.abstractmethod
    def of_unknown(self) -> bool:
        """Whether nothing is known of who casts the model at hand."""

    def _cast(self, base: Layer | Object | Opaque, target: DType, at: int) -> Value:
        if not base.id or (isinstance(base, Opaque) and base.origin == "model"):
            lowered = base.text if isinstance(base, Opaque) and base.dtypes & HALVES else ""
            return Tensor(target.dtypes, lowered, target.assumed, origin="cast")
        low = target.dtypes & HALVES
        if not low and isinstance(base.id, tuple) and len(base.id) == 2 and base.id[1] == "[]":
            self.record.unsettled.add(base.id[0])
        for key in [key for key in self.casts if key != base.id and self.inside(key, base.id)]:
            if not low:
                del self.casts[key]
        if low:
            name = base.text if isinstance(base, Opaque) else ""
            cast = Cast((self.path, at), target.dtypes, base.id, name, assumed=target.assumed, under=self.facts)
            self.casts[base.id] = frozenset({cast})
            if base.id in self.born_in_bfloat16 and base.id not in self.record.managed:
                self.notice_pretrained(*self.born_in_bfloat16[base.id], target.dtypes)
            self._cast_buffers(base.id, target, at)
            for optimizer, params in self.optimizers.items():
                apart = exclude(self.facts, self.optimizer_facts.get(optimizer, NO_FACTS))
                if not apart and not params.partly and any(self.inside(base.id, owner) for owner in params.of):
                    eps = self.eps.get(optimizer)
                    self.pending[Training(cast, _place(optimizer), eps)] = None
        else:
            self.casts.pop(base.id, None)
            self.pending = {one: None for one in self.pending if not self.inside(one.cast.of, base.id)}
        if not isinstance(base, Opaque):
            return base
        fitted = target.borrowed or self.fitting > 0
        return Opaque(base.id, base.text, dtypes=target.dtypes, origin="cast", assumed=target.assumed, fitted=fitted)

    def _cast_buffers(self, model: Hashable, target: DType, at: int) -> None:
        """Note the tables of positions that are cast along with a model."""
        for owner, buffers in self.buffers.items():
            if self.inside(owner, model):
                for name, tensor in buffers.items():
                    if tensor.counted and tensor.dtypes == FLOAT32:
                        self.notice("cast_table", Tensor(target.dtypes, assumed=target.assumed), at, name)

    def layers(self, whole: Hashable) -> Iterator[Layer]:
        """The layers of a model, as far as its code shows them."""
        todo, seen = [whole], {whole}
        while todo:
            for value in self.heap.of(todo.pop()).values():
                yield from layers_held(value)
                for child in models_held(value):
                    if child not in seen:
                        seen.add(child)
                        todo.append(child)

    def notice_pretrained(self, name: str, place: Place, assumed: bool, dtypes: Dtypes) -> None:
        """Note that a model trained in bfloat16 is run in another dtype; the note stands where it is loaded."""
        path, self.path = self.path, place[0]
        self.notice("pretrained", Tensor(dtypes, assumed=assumed), place[1], name)
        self.path = path

    def _is_cast(self, model: Opaque) -> bool:
        """Whether the code casts a model out of sight, as a whole and for good, to one low-precision dtype."""
        dtypes = {frozenset(cast.dtypes) for cast in self.casts.get(model.id, ())}
        return len(dtypes) == 1 and dtypes <= {frozenset({each}) for each in HALVES} and model.id not in self.untold

    def is_partly_low(self, model: Hashable) -> bool:
        """Whether some of a model's parameters were cast, so that it wants some of its inputs cast, too."""
        return model in self.casts or model in self.around_low or any(self.inside(key, model) for key in self.casts)

    def inside(self, part: Hashable, whole: Hashable) -> bool:
        """Whether one model is another, or a part of it."""
        return whole in self.heap.around(part)

    def _trained(self, optimizer: Optimizer | None) -> None:
        for training in [*self.pending]:
            if optimizer is None or _place(optimizer.id) == training.optimizer:
                self.record.trainings[training] = None
                del self.pending[training]

    def external(self, dotted: str, args: Sequence[Value], named: Named, at: int) -> Value:
        """The result of calling a name of a library."""
        root, _, last = dotted.rpartition(".")
        if last == "autocast" and root.startswith("torch"):
            return autocast(root, args, named)
        if dotted in _AVERAGES:
            self.libraries[self.path, at] = dotted
            return self._copied(args or [*named.values()], at)
        if dotted in _LIKE_ADAMW or (
            dotted.startswith("torch.optim.") and last[:1].isupper() and "lr_scheduler" not in dotted
        ):
            return self._optimizer(dotted, args, named, at)
        if dotted.startswith("torch.nn.") and last in surface.LAYERS:
            self._measure(last, args, named, at)
            self.made_here.add((self.path, at))
            return self._born(Layer((self.path, at), surface.LAYERS[last]), named, at, f"this {last}")
        container = self._container(dotted, args, named, at)
        if container is not None:
            return container
        if dotted in _SETS_DEFAULT and args:
            self._set_default(args[0], at)
            return NOTHING
        if dotted in _TRANSPARENT and args:
            self.models.update(models_in(args[0]))
            if last == "DataParallel" and root.startswith("torch."):
                self.gathered.update(models_in(args[0]))
            return args[0]
        if dotted.startswith(KEEPS_MASTER_WEIGHTS):
            self._managed(args, named)
        if root == "numpy" or root.startswith("numpy."):
            return self._numpy(last, args, named, at)
        if last in ("finfo", "iinfo"):
            return finfo(args, named)
        if dotted == "copy.deepcopy":
            return self._copied(args, at)
        return self._function(dotted, last, args, named, at)

    def _measure(self, kind: str, args: Sequence[Value], named: Named, at: int) -> None:
        """Note a layer some size of which is large and no multiple of eight."""
        given = {**dict(zip(_SIZES.get(kind, ()), args)), **named}
        for name in _SIZES.get(kind, ()):
            size = given.get(name)
            if isinstance(size, Const) and isinstance(size.value, int) and size.value > 64 and size.value % 8:
                self.notice("odd_size", Tensor(HALVES), at, f"{name} = {size.value}")

    def _copied(self, args: Sequence[Value], at: int) -> Value:
        """A deep copy: another model, in the same dtype."""
        copied = [*options(args[0])] if args else []
        models = [one for one in copied if isinstance(one, MODEL_KINDS)]
        if not models or len(models) < len(copied):
            return args[0] if args else NOTHING
        copy = Opaque((self.path, at))
        own = frozenset(cast for model in models for cast in self.casts.get(model.id, ()))
        if own:
            self.casts[copy.id] = frozenset(replace(cast, of=copy.id) for cast in own)
        return copy

    def _numpy(self, name: str, args: Sequence[Value], named: Named, at: int) -> Value:
        """An array of NumPy, whose floats are float64 unless it is told otherwise; or a tensor made one."""
        if name in ("asarray", "array", "ascontiguousarray") and args and isinstance(args[0], Tensor):
            return self.apply("numpy", args[:1], {}, at)
        if name in _NUMPY_GENERATORS:
            self.libraries[self.path, at] = f"numpy.random.{name}"
            return Opaque((self.path, at), name)
        return made_by_numpy(name, args, named)

    def _loaded(self, given: Value, named: Named, at: int) -> None:
        """``from_pretrained(name)`` of a model that was trained in bfloat16."""
        default = isinstance(given, Opaque)
        name = self.option_default(given.text) if isinstance(given, Opaque) else getattr(given, "value", None)
        if not isinstance(name, str) or not BORN_IN_BFLOAT16.search(name):
            return
        name = f"{name}, the default," if default else name
        self.born_in_bfloat16[self.path, at] = (name, (self.path, at), default)
        told = told_dtype(named) or told_dtype({"dtype": named["torch_dtype"]} if "torch_dtype" in named else {})
        if told is not None and not _HALF_PROOF.search(name):
            self.notice_pretrained(name, (self.path, at), default, told.dtypes)

    @abc.abstractmethod
    def is_skip_guard(self, at: int) -> bool:
        """Whether what ``get_scale`` returns here only tells that the step was skipped, which it waited for itself."""

    @abc.abstractmethod
    def option_default(self, name: str) -> str | None:
        """The text that an option of the command line of this name is where nobody says otherwise."""

    def _managed(self, args: Sequence[Value], named: Named) -> None:
        for value in (*args, *named.values()):
            self.record.managed.update(models_in(value))

    def _function(self, dotted: str, last: str, args: Sequence[Value], named: Named, at: int) -> Value:
        if dotted.startswith("math."):
            return math_result(last, args)
        if dotted.startswith(_FOREACH) and args and isinstance(args[0], Params):
            return self.method(args[0], dotted.removeprefix(_FOREACH), args[1:], named, at)
        op = surface.op_of(dotted)
        if op in ("tensor", "as_tensor", "from_numpy", "scalar_tensor"):
            made = new_tensor(args, named)
            constant = op == "from_numpy" and self.in_setup()
            return replace(made, table=True) if constant and isinstance(made, Tensor) else made
        if op is not None and surface.effect_of(op) is not None:
            return self.apply(op, args, named, at)
        for option in (value for value in args for value in options(value)):
            told = told_dtype(named)
            if told is not None and isinstance(option, MODEL_KINDS) and not told.dtypes & HALVES:
                self._cast(option, told, at)
        self.libraries[self.path, at] = dotted
        if not dotted.startswith(("torch.", "builtins.")):
            self.untold.update(model for value in (*args, *named.values()) for model in models_in(value))
        if any(self.is_partly_low(model) for value in args for model in models_in(value)):
            self.around_low.add((self.path, at))
        first = args[0] if args else NOTHING
        if loads_model(dotted):
            self._loaded(first, named, at)
        if last == "GradScaler" and _is(named.get("enabled"), False):
            self.idle_scalers.add((self.path, at))
        if "Output" in last and last[:1].isupper() and named:
            return Table(tuple(named.items()))  # transformers' records of what a model returns
        return self._born(Opaque((self.path, at), last), named, at)

    def _set_default(self, value: Value, at: int) -> None:
        """``torch.set_default_dtype(value)``: what is built from here on has that dtype."""
        dtype = torch_dtype(value.value) if isinstance(value, Const) and isinstance(value.value, str) else None
        told = dtype or dtype_of(value)
        if told.dtypes & HALVES:
            cast = Cast((self.path, at), told.dtypes, DEFAULT, default=True)
            self.casts[DEFAULT] = frozenset({cast})
        else:
            self.casts.pop(DEFAULT, None)

    def restore_default(self, before: Mapping[Hashable, frozenset[Cast]]) -> None:
        """Make the default dtype what it was."""
        self.casts.pop(DEFAULT, None)
        if DEFAULT in before:
            self.casts[DEFAULT] = before[DEFAULT]

    def _born(self, model: Layer | Opaque, named: Named, at: int, name: str = "") -> Value:
        """A model as its constructor or ``from_pretrained`` makes it, in the dtype it is told."""
        told = told_dtype(named) or told_dtype({"dtype": named["torch_dtype"]} if "torch_dtype" in named else {})
        if told is not None and told.dtypes & HALVES:
            facts = self.facts
            cast = Cast((self.path, at), told.dtypes, model.id, name, assumed=told.assumed, built=True, under=facts)
            self.casts[model.id] = frozenset({cast})
        elif told is None and DEFAULT in self.casts:
            self.casts[model.id] = frozenset(replace(cast, of=model.id) for cast in self.casts[DEFAULT])
        return model

    def _container(self, dotted: str, args: Sequence[Value], named: Named, at: int) -> Value | None:
        if dotted == "torch.nn.Sequential":
            parts = tuple(layers_in(args))
            self.heap.keep((self.path, at), "<parts>", Items(parts))
            self.made_here.add((self.path, at))
            return Layer((self.path, at), "sequential", parts)
        if dotted == "torch.nn.ModuleList":
            return args[0] if args and isinstance(args[0], (Items, Many)) else Many(NOTHING) if args else Items(())
        if dotted == "torch.nn.ModuleDict":
            return args[0] if args and isinstance(args[0], Table) else Opaque((self.path, at))
        if dotted in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"):
            return self._parameter(args, named)
        if dotted == "collections.OrderedDict":
            return by_name(args[0]) if args else Table(())
        if dotted == "itertools.chain" and args:
            return reduce(join, args)
        return None

    def own_parameter(self, model: Object | Opaque, name: str, value: Value, at: int) -> None:
        """Note that a model being made has a parameter of its own in low precision."""
        low = isinstance(value, Tensor) and value.origin == "weights" and value.dtypes <= HALVES
        if low and isinstance(value, Tensor) and isinstance(model, Object) and self.in_setup():
            cast = Cast((self.path, at), value.dtypes, (model.id, name), f"the parameter {name}", built=True)
            self.casts[model.id, name] = frozenset({cast})

    def _parameter(self, args: Sequence[Value], named: Named) -> Value:
        own = as_tensor(args[0]) if args else None
        dtypes = own.dtypes if own is not None and own.dtypes != ANY else FLOAT32
        frozen = bool(dtypes & HALVES) and _is(named.get("requires_grad"), False)
        return Tensor(dtypes, origin="" if frozen else "weights")

    def _optimizer(self, dotted: str, args: Sequence[Value], named: Named, at: int) -> Value:
        optimizer = Optimizer((self.path, at))
        given = args[0] if args else named.get("params", NOTHING)
        params = params_in(given)
        if params is None or self.passed_by:
            return optimizer
        params = replace(params, partly=not self.freezing.is_whole(params))
        self.optimizers[optimizer.id] = params
        known = self.optimizer_facts.get(optimizer.id, self.facts)
        self.optimizer_facts[optimizer.id] = self.facts & known
        self.models.update(params.of)
        if _is(named.get("fused"), True):
            self.fused.add(optimizer.id)
        else:
            self.eps[optimizer.id] = _eps(dotted, named)
        if params.partly:
            return optimizer
        for key, casts in self.casts.items():
            if any(self.inside(key, owner) for owner in params.of):
                for cast in sorted(casts, key=lambda one: one.place):
                    if exclude(cast.under, self.facts):
                        continue
                    self.record.trainings[Training(cast, (self.path, at), eps=self.eps.get(optimizer.id))] = None
        return optimizer


def _is_low(value: Value | None) -> bool:
    tensor = as_tensor(value) if value is not None else None
    return tensor is not None and tensor.dtypes <= HALVES


def _is(value: Value | None, wanted: object) -> bool:
    return isinstance(value, Const) and value.value is wanted


def _eps(dotted: str, named: Named) -> float | None:
    """The eps of an optimizer; None if it has none or it cannot be told."""
    given, kind = named.get("eps"), dotted.rpartition(".")[2]
    if given is None:
        return _LIKE_ADAMW.get(dotted, _EPS.get(kind))
    return given.number if isinstance(given, Const) and kind in _EPS else None


def _is_vector(tensor: Tensor) -> bool:
    """Whether what is not known to be a number has dimensions by the op that made it, or by the layer behind it."""
    squeezed = tensor.last in ("squeeze", "view", "reshape") and tensor.by in surface.NEVER_A_NUMBER
    return squeezed or tensor.last in surface.NEVER_A_NUMBER or tensor.last in (*_VECTORS, GATHER)


def _place(optimizer: Hashable) -> Place:
    assert isinstance(optimizer, tuple)
    return optimizer
