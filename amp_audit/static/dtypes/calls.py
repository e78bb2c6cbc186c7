"""Calls: of functions and classes of the project, of layers, of builtins."""

from __future__ import annotations

import abc
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

from amp_audit.records import replace
from amp_audit.static.binding import project
from amp_audit.static.dtypes import averages, surface
from amp_audit.static.dtypes.arguments import Named, dtype_of
from amp_audit.static.dtypes.evaluate import OPTIONS, Evaluation, has_decorator, region_of
from amp_audit.static.dtypes.frames import Frame
from amp_audit.static.dtypes.freezing import tests_of
from amp_audit.static.dtypes.meanings import subject
from amp_audit.static.dtypes.models import GATHER
from amp_audit.static.dtypes.record import Cast
from amp_audit.static.dtypes.values import (
    HALVES,
    NOTHING,
    NUMBER,
    Const,
    DType,
    Either,
    Func,
    Items,
    Layer,
    Many,
    Method,
    Object,
    Opaque,
    Params,
    Region,
    Super,
    Table,
    Tensor,
    Value,
    by_name,
    element,
    extended,
    is_none,
    join,
    options,
)
from amp_audit.static.source import ir
from amp_audit.static.source.conditions import NO_FACTS, Facts
from amp_audit.static.source.traverse import dotted_text

_MAX_DEPTH = 12
_LOADER = "torch.utils.data.DataLoader"
_PASSES_ON = frozenset({"tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm"})
"""What is iterated over as what it is given."""
_KEEPS_FACTS = re.compile(r"autocast|scaler|optim|^(scale|unscale_|amp|half|bfloat16|parameters)$", re.IGNORECASE)
"""Words of functions for which is kept under what they run: they enter regions, scale, cast or make optimizers."""
_NO_REGION = Region("cuda", frozenset({"float16"}), enabled=False)


@dataclass(slots=True)
class _Outcome:
    """What a call came to: its result, the models that it cast, and how many statements were walked for it, those of
    the remembered calls in it left out. ``under``: the facts under which it was met; ``emptied``: the attributes that
    it sets to 0.
    """

    result: Value
    casts: dict[Hashable, frozenset[Cast]]
    own: int
    under: set[Facts]
    emptied: tuple[Hashable, ...] = ()


class Calls(Evaluation):
    """Follows calls. ``visited`` are the functions that were run in a live region, ``cast_by_hand`` those of models
    that were cast to low precision.
    """

    def __init__(self, code: project.Project) -> None:
        super().__init__(code)
        self.memo: dict[Hashable, _Outcome] = {}
        self.fuel = 0
        self.remembered = 0  # statements of functions that will not be walked again for what is handed to them
        self.visited: set[tuple[str, int]] = set()
        self._keeping: dict[frozenset[str], bool] = {}

    @abc.abstractmethod
    def in_frame(self, frame: Frame, body: Sequence[ir.Stmt]) -> None:
        """Run a body in a frame of its own."""

    @abc.abstractmethod
    def spend(self, statements: int) -> None:
        """Count statements as walked that are spared: how far an entry is walked does not rest on that."""

    def _eval_call(self, node: ir.Call) -> Value:
        if isinstance(node.func, ir.Name) and node.func.id == "super":
            return self._super()
        callee = self._callee(node.func)
        args, named = self._arguments(node.args)
        if (
            isinstance(callee, Method)
            and callee.name in ("append", "extend", "insert")
            and isinstance(node.func, ir.Attr)
        ):
            self._grow(node.func.base, callee.name, args)
            return NOTHING
        value = self.call_value(callee, args, named, node.at)
        if isinstance(callee, project.External) and callee.dotted.endswith((".autocast", "GradScaler")):
            value = self._switched(node, value)
        untold = any(arg.star == "**" for arg in node.args) and "dtype" not in named
        return replace(value, table=False) if untold and isinstance(value, Tensor) and value.table else value

    def _switched(self, node: ir.Call, value: Value) -> Value:
        """A region or a scaler, with what is known where it is on."""
        flag = next((arg.value for arg in node.args if arg.keyword == "enabled"), None)
        facts = self.facts_of(flag, True) if flag is not None else NO_FACTS
        if isinstance(value, Region):
            return replace(value, facts=facts) if facts else value
        if isinstance(value, Opaque):
            self.scaler_facts[value.id] = self.facts | facts
        return value

    def _callee(self, node: ir.Expr) -> Value:
        if not isinstance(node, ir.Attr):
            return self.eval(node)
        base = self.eval(node.base)
        found = []
        for option in options(base):
            value = self.attribute(option, node.name)
            plain = isinstance(value, Opaque) and isinstance(option, (Opaque, Object))
            if plain and isinstance(option, (Opaque, Object)) and node.name in self.heap.of(option.id):
                plain = False
            found.append(Method(option, node.name) if plain or isinstance(option, Tensor) else value)
        return reduce(join, found)

    def _super(self) -> Value:
        frame = self.frame
        if frame.cls is None or frame.bound is None:
            return NOTHING
        return Super(frame.bound, frame.cls)

    def _arguments(self, nodes: Sequence[ir.Arg]) -> tuple[list[Value], dict[str, Value]]:
        args: list[Value] = []
        named: dict[str, Value] = {}
        for node in nodes:
            value = self.eval(node.value)
            if node.star == "*":
                args.extend(value.items if isinstance(value, Items) else (value,))
            elif node.star == "**":
                pairs = value.items if isinstance(value, Table) else ()
                named.update({key: inner for key, inner in pairs if isinstance(key, str)})
            elif node.keyword is not None:
                named[node.keyword] = value
            else:
                args.append(value)
        return args, named

    def _grow(self, target: ir.Expr, how: str, args: Sequence[Value]) -> None:
        before = self.eval(target)
        if not args or not isinstance(before, (Items, Many)):
            return
        added: Value = args[-1] if how == "extend" else Items((args[-1],))
        self.bind(target, Many(join(element(before), args[-1])) if how == "insert" else extended(before, added), 0)

    def _is_own_part(self, func: Object | Layer | Opaque) -> bool:
        """Whether a class of models calls a layer of its own: which of its models do so in a region is said by who
        calls them there.
        """
        return self.guessing or (isinstance(func, Layer) and self.in_module())

    def call_value(self, func: Value, args: Sequence[Value], named: Named, at: int) -> Value:
        if isinstance(func, Either):
            return reduce(join, (self.call_value(option, args, named, at) for option in func.options))
        if self.live is not None and isinstance(func, (Object, Layer, Opaque)) and not self._is_own_part(func):
            self.record.live_calls.setdefault(func.id, set()).add(self.facts | self.live.facts)
        if isinstance(func, Func):
            with self._weighing(func.bound):
                return self.follow(func, args, named, at)
        if isinstance(func, project.ClassRef):
            return self._instantiate(func, args, named, at)
        if isinstance(func, Object):
            return self._call_object(func, args, named, at)
        if isinstance(func, Layer):
            return self.layer(func, [*args, *named.values()], at)
        if isinstance(func, Method):
            return self._call_method(func, args, named, at)
        if isinstance(func, project.External):
            return self._call_external(func.dotted, args, named, at)
        if isinstance(func, DType) and self.in_setup():
            return Tensor(func.dtypes, table=True)  # torch.FloatTensor(...)
        if isinstance(func, Opaque) and func.id:
            return self.called_out_of_sight(func, func.text, args, named, at)
        return NOTHING

    def _call_method(self, func: Method, args: Sequence[Value], named: Named, at: int) -> Value:
        if isinstance(func.base, Super):
            if func.name == "__init__" and isinstance(func.base.bound, Object) and args:
                self.heap.keep(func.base.bound.id, "<parts>", Items(tuple(args)))
            return NOTHING
        if isinstance(func.base, Object):
            if func.name == "register_buffer":
                self._register(func.base, args, named)
            if func.name == "__call__":
                return self._call_object(func.base, args, named, at)
            if func.name in ("half", "float", "bfloat16", "to", "double") or self.is_module(func.base.cls):
                return self.method(func.base, func.name, args, named, at)
            return NOTHING
        return self.method(func.base, func.name, args, named, at)

    def _register(self, model: Object, args: Sequence[Value], named: Named) -> None:
        """``register_buffer(name, tensor)``."""
        given = {**dict(zip(("name", "tensor"), args)), **named}
        name, tensor = given.get("name"), given.get("tensor")
        if isinstance(name, Const) and tensor is not None:
            self.heap.keep(model.id, str(name.value), tensor)
            if isinstance(tensor, Tensor):
                self.buffers.setdefault(model.id, {})[str(name.value)] = tensor

    def _call_external(self, dotted: str, args: Sequence[Value], named: Named, at: int) -> Value:
        if not dotted.startswith("builtins."):
            if dotted in ("functools.partial",) and args and isinstance(args[0], Func):
                given = (*((None, arg) for arg in args[1:]), *named.items())
                return replace(args[0], partial=(*args[0].partial, *given))
            if dotted == _LOADER and args and "collate_fn" not in named:
                batches = self._batches(args[0])
                return Many(batches) if batches is not None else self.external(dotted, args, named, at)
            if dotted in _PASSES_ON and args:
                return args[0]
            return self.external(dotted, args, named, at)
        return self._builtin(dotted.removeprefix("builtins."), args)

    def _batches(self, dataset: Value) -> Value | None:
        """What iterating over a loader of a dataset of the project gives, of which nothing but float64 is kept: NumPy's
        dtype goes through the collation as it is.
        """
        method = self._method_of(dataset.cls, "__getitem__") if isinstance(dataset, Object) else None
        if method is None:
            return None
        item = self.follow(replace(method, bound=dataset), [NUMBER], {}, 0)
        kept = _doubles(item)
        return kept if _has_doubles(kept) else None

    def _builtin(self, name: str, args: Sequence[Value]) -> Value:
        first = args[0] if args else NOTHING
        if name == "float" and isinstance(first, Const):
            try:
                return Const.of(float(first.value), first.assumed)  # type: ignore[arg-type]
            except (TypeError, ValueError):
                return NUMBER
        if name in ("list", "tuple", "sorted", "reversed", "set", "iter"):
            return first if args else Items(())
        if name == "dict" and args:
            held = by_name(first)
            return held if isinstance(held, (Params, Table)) else NOTHING
        if name == "enumerate":
            return Many(Items((NUMBER, element(first))))
        if name == "zip":
            return Many(Items(tuple(map(element, args))))
        if name == "filter":
            given = args[1] if len(args) > 1 else NOTHING
            if not isinstance(given, Params):
                return given
            return self.freezing.kept(given, tests_of(first))
        if name == "range":
            return Many(NUMBER)
        if name == "next":
            return element(first)
        if name == "getattr" and len(args) > 1 and isinstance(args[1], Const) and isinstance(args[1].value, str):
            return reduce(join, (self.attribute(base, args[1].value) for base in options(first)))
        if name in ("len", "int", "float", "round", "abs", "min", "max", "sum", "pow"):
            if isinstance(first, (Tensor, Either)) and name in ("abs", "pow", "sum", "max", "min"):
                return Tensor() if name != "abs" else first
            return NUMBER
        return NOTHING

    def instance(
        self, cls: project.ClassRef, identity: Hashable, args: Sequence[Value] = (), named: Named | None = None
    ) -> Object:
        """An object of the project's class, its ``__init__`` run."""
        found = Object(identity, cls)
        method = self._method_of(cls, "__init__")
        if method is not None:
            self.follow(replace(method, bound=found), args, named or {}, 0)
        return found

    def _instantiate(self, cls: project.ClassRef, args: Sequence[Value], named: Named, at: int) -> Value:
        if not self.is_module(cls) and not self._methods(cls):
            return Table(tuple({**self._defaults(cls, args), **named}.items()))
        identity: tuple[Hashable, ...] = (self.path, at, cls.cls.at)
        given = Items((*args, *named.values()))
        if self.heap.of(identity).get("<args>", given) != given:
            identity = (*identity, hash(given))
        self.heap.keep(identity, "<args>", given)
        for name, value in ({**self._defaults(cls, args), **named} if self.fields.defaults(cls) else {}).items():
            self.heap.keep(identity, name, value)
        found = self.instance(cls, identity, args, named)
        self.made_here.add(identity)
        told = dtype_of(named["dtype"]) if isinstance(named.get("dtype"), DType) else None
        if told is not None and told.dtypes & HALVES and self.is_module(cls):
            cast = Cast((self.path, at), told.dtypes, identity, f"this {cls.cls.name}", built=True)
            self.casts.setdefault(identity, frozenset({cast}))
        return found

    def _defaults(self, cls: project.ClassRef, args: Sequence[Value]) -> dict[str, Value]:
        """What the fields of a dataclass hold if they are not given; unknown where they may be given by position."""
        found: dict[str, Value] = {}
        for name, (owner, default) in self.fields.defaults(cls).items():
            value = self.aside(owner.module, default, owner, {}) if not args else NOTHING
            found[name] = replace(value, assumed=True) if isinstance(value, (Const, DType)) else value
        return found

    def _call_object(self, func: Object, args: Sequence[Value], named: Named, at: int) -> Value:
        method = self._method_of(func.cls, "forward") or self._method_of(func.cls, "__call__")
        if self.is_module(func.cls) and not self.in_module():
            self.note_training()
            if not self.is_partly_low(func.id):
                self.foreign_call("model", args, named, at)
        with self._weighing(func):
            if method is None:
                return self._call_inherited(func, args, at)
            result = self.follow(replace(method, bound=func), args, named, at)
            numbers = isinstance(result, Tensor) and result.scalar and func.id in self.gathered
            return replace(result, scalar=False, last=GATHER) if numbers and isinstance(result, Tensor) else result

    @contextmanager
    def _weighing(self, model: Value | None) -> Iterator[None]:
        """Run a method of a model, whose layers have the dtype that it was cast to."""
        cast = self.casts.get(model.id) if isinstance(model, Object) else None
        if cast:
            self.weights.append(frozenset(dtype for one in cast for dtype in one.dtypes))
        try:
            yield
        finally:
            if cast:
                self.weights.pop()

    def in_setup(self) -> bool:
        """Whether a model is being made."""
        making = (frame.bound for frame in self.frames if frame.setup)
        return any(isinstance(made, Object) and self.is_module(made.cls) for made in making)

    def repeats(self) -> bool:
        if any(loop.trains for loop in self.loops):
            return True
        classes = (frame.cls.cls.name for frame in self.frames if frame.cls is not None)
        return any(map(averages.is_average, (*classes, *(frame.name for frame in self.frames))))

    def in_module(self) -> bool:
        """Whether the code at hand is a model's own."""
        bound = self.frame.bound if self.frames else None
        return isinstance(bound, Object) and self.is_module(bound.cls)

    def of_unknown(self) -> bool:
        """Whether the walk calls a model's method itself, which enters no region: whoever has the model may cast it."""
        bound = self.frames[0].bound if self.frames and self.region is None else None
        return isinstance(bound, Object) and self.is_module(bound.cls) and self.active[0] not in self.record.entering

    def _call_inherited(self, func: Object, args: Sequence[Value], at: int) -> Value:
        """A class of the project that takes its forward from a layer of torch."""
        for parent in self.project.bases(func.cls):
            if isinstance(parent, project.ClassRef):
                return self._call_inherited(Object(func.id, parent), args, at)
            if isinstance(parent, project.External):
                name = parent.dotted.rpartition(".")[2]
                if parent.dotted == "torch.nn.Sequential":
                    parts = self.heap.of(func.id).get("<parts>")
                    known = parts.items if isinstance(parts, Items) else ()
                    return self.layer(Layer(func.id, "sequential", tuple(known)), args, at) if known else NOTHING
                if parent.dotted.startswith("torch.nn.") and name in surface.LAYERS:
                    return self.layer(Layer(func.id, surface.LAYERS[name]), args, at)
        return NOTHING

    def follow(self, func: Func, args: Sequence[Value], named: Named, at: int) -> Value:
        """The result of a function of the project."""
        function = func.function
        place = (func.module.path, function.at)
        if len(self.active) >= _MAX_DEPTH or place in self.active:
            return NOTHING
        if at:  # an entry of the walk is called by nobody
            caller = self.active[-1] if self.active else None
            self.record.calls.setdefault(place, set()).add((self.live is not None, caller))
        region, cast = self._decorated(func)
        env = self._parameters(func, args, named)
        if cast is not None:
            env = {name: _recast(value, cast) for name, value in env.items()}
        regions = self.regions if region is None else (*self.regions, region)
        facts = self._facts_that_matter(function)
        key = (place, func.bound, tuple(env.items()), regions, tuple(self.weights), self.muted > 0, facts)
        remembers = func.env is None and function.name != "__init__"
        held = self.memo.get(key) if remembers else None
        if held is not None:
            self.casts.update(held.casts)
            self.note_emptied(held.emptied)
            if self.facts not in held.under and self._casts_are_under_facts():
                held.under.add(self.facts)
                self.spend(held.own)
            return held.result
        before, left, within, noted = dict(self.casts), self.fuel, self.remembered, len(self.zeros)
        result = self._run(func, env, region, at)
        if function.decorators:
            self.restore_default(before)  # a decorator may do so
        if remembers:
            own = left - self.fuel - (self.remembered - within)
            added = {name: casts for name, casts in self.casts.items() if before.get(name) != casts}
            self.memo[key] = _Outcome(result, added, own, {self.facts}, tuple(self.zeros[noted:]))
            self.remembered = within + left - self.fuel
        return result

    def _casts_are_under_facts(self) -> bool:
        return any(cast.under for casts in self.casts.values() for cast in casts)

    def _facts_that_matter(self, function: ir.Function) -> Facts:
        """What is known here, where it is kept under what the function runs; else what may exclude the conditions under
        which some model is cast.
        """
        if not self.facts or self._keeps_facts(function):
            return self.facts
        subjects = {subject(text) for casts in self.casts.values() for cast in casts for text, _ in cast.under}
        return frozenset(fact for fact in self.facts if subject(fact[0]) in subjects) if subjects else NO_FACTS

    def _keeps_facts(self, function: ir.Function) -> bool:
        kept = self._keeping.get(function.words)
        if kept is None:
            kept = self._keeping[function.words] = any(map(_KEEPS_FACTS.search, function.words))
        return kept

    def _run(self, func: Func, env: dict[str, Value], region: Region | None, at: int) -> Value:
        function = func.function
        place = (func.module.path, function.at)
        outer: Mapping[str, Value] = func.env if func.env is not None else {}
        setup = function.name in ("__init__", "setup", "__post_init__")
        given = frozenset(param.name for param in function.params) if at else frozenset[str]()
        frame = Frame(func.module, env, outer, func.cls, func.bound, setup, self.guards, given, function.name)
        self.sites.append((self.path, at) if at else None)
        self.active.append(place)
        path, self.path = self.path, func.module.path
        try:
            with self.inside_of(region, function.at):
                if self.live:
                    self.visited.add(place)
                if self.weights and self.weights[-1] <= HALVES:
                    self.cast_by_hand.add(place)
                self.in_frame(frame, function.body)
        finally:
            self.path = path
            self.active.pop()
            self.sites.pop()
        if function.is_generator:
            return Many(reduce(join, frame.yields)) if frame.yields else NOTHING
        if has_decorator(function, "contextmanager"):
            return NOTHING
        return reduce(join, frame.returns) if frame.returns else Const.of(None)

    def _decorated(self, func: Func) -> tuple[Region | None, DType | None]:
        """The region that a decorator puts around a function, and the dtype to which it casts the arguments."""
        for decorator in func.function.decorators:
            if not any(word in dotted_text(decorator) for word in ("autocast", "custom_fwd", "amp")):
                continue
            if isinstance(decorator, ir.Call) and dotted_text(decorator).endswith("custom_fwd"):
                cast_inputs = next((arg.value for arg in decorator.args if arg.keyword == "cast_inputs"), None)
                given = self.aside(func.module, cast_inputs, func.cls, {})
                return (None, None) if cast_inputs is None or is_none(given) else (_NO_REGION, dtype_of(given))
            region = region_of(self.aside(func.module, decorator, func.cls, {}))
            if region is not None:
                return region, None
        return None, None

    def _parameters(self, func: Func, args: Sequence[Value], named: Named) -> dict[str, Value]:
        given = [*(value for key, value in func.partial if key is None), *args]
        keywords = {**{key: value for key, value in func.partial if key is not None}, **named}
        if func.bound is not None:
            given = [func.bound, *given]
        env: dict[str, Value] = {}
        for param in func.function.params:
            if param.kind == "args":
                env[param.name] = Items(tuple(given)) if given else Many(NOTHING) if not args else Items(())
                given = []
            elif param.kind == "kwargs":
                env[param.name] = Table(tuple((key, value) for key, value in keywords.items()))
            elif given and param.kind == "positional":
                env[param.name] = given.pop(0)
            elif param.name in keywords:
                env[param.name] = keywords.pop(param.name)
            else:
                env[param.name] = self._missing(func, param)
        return env

    def _missing(self, func: Func, param: ir.Param) -> Value:
        """A parameter that the call does not give: its default, which another caller may replace, or unknown."""
        key = (func.module.path, func.function.at, param.name)
        if param.default is not None:
            self.active.append((func.module.path, func.function.at))  # it may call the function itself
            try:
                value = self.aside(func.module, param.default, func.cls, func.env or {})
            finally:
                self.active.pop()
            if is_none(value):
                return replace(Const.of(None), assumed=True)
            if isinstance(value, (Const, DType)):
                return replace(value, assumed=not self.active)
            return value
        if param.annotation is not None:
            last = dotted_text(param.annotation).rpartition(".")[2]
            if last in ("int", "float", "str", "bool"):
                return Opaque(key, param.name, number=True)
            if last == "Tensor":
                return Tensor()
            declared = self._declared(func, param) if not self.active else None
            if declared is not None:
                return declared
        number = func.function.name == "__init__" or param.name.lower() in OPTIONS
        return Opaque(key, param.name, number=number)

    def _declared(self, func: Func, param: ir.Param) -> Object | None:
        """The model that a parameter of an entry is declared to be, should its class be one of the project's."""
        annotation = param.annotation
        found = self.project.resolve(func.module, annotation) if isinstance(annotation, (ir.Name, ir.Attr)) else None
        if not isinstance(found, project.ClassRef) or not self.is_module(found):
            return None
        made = self.instance(found, (func.module.path, func.function.at, param.name))
        self.untold.add(made.id)  # whoever calls this may have cast it
        return made


def _doubles(value: Value) -> Value:
    """A value with nothing known but where it holds tensors of float64."""
    if isinstance(value, Tensor) and value.dtypes == {"float64"}:
        return Tensor(value.dtypes)
    if isinstance(value, Items):
        return Items(tuple(map(_doubles, value.items)))
    if isinstance(value, Table):
        return Table(tuple((key, _doubles(inner)) for key, inner in value.items))
    return NOTHING


def _has_doubles(value: Value) -> bool:
    if isinstance(value, Items):
        return any(map(_has_doubles, value.items))
    if isinstance(value, Table):
        return any(_has_doubles(inner) for _, inner in value.items)
    return isinstance(value, Tensor)


def _recast(value: Value, dtype: DType) -> Value:
    """An argument as ``custom_fwd(cast_inputs=dtype)`` hands it on: its float tensors in that dtype."""
    if isinstance(value, Tensor) and not value.dtypes <= {"int", "bool"}:
        return Tensor(dtype.dtypes, assumed=dtype.assumed)
    if isinstance(value, Opaque) and value.origin:
        return replace(value, dtypes=dtype.dtypes, origin="")
    return value
