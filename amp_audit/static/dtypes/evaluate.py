"""Names and expressions: the value of each."""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, get_args

from amp_audit import policy
from amp_audit.records import replace
from amp_audit.static.binding import project
from amp_audit.static.binding.fields import Fields
from amp_audit.static.binding.options import CommandLine
from amp_audit.static.dtypes import averages
from amp_audit.static.dtypes.arguments import Named, computed, info_attribute, torch_dtype
from amp_audit.static.dtypes.frames import Frame
from amp_audit.static.dtypes.freezing import Freezing
from amp_audit.static.dtypes.guards import skip_guards
from amp_audit.static.dtypes.indexing import is_mask, picks
from amp_audit.static.dtypes.lasts import negated
from amp_audit.static.dtypes.meanings import Meanings
from amp_audit.static.dtypes.truths import Truths
from amp_audit.static.dtypes.values import (
    ANY,
    FLOAT32,
    HALVED,
    HALVES,
    NOTHING,
    NUMBER,
    REST,
    SIDE,
    Const,
    DType,
    Either,
    Func,
    Info,
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
    element,
    extended,
    is_filled,
    join,
    options,
    part_of,
)
from amp_audit.static.dtypes.widening import BLANK, keeps_dimensions
from amp_audit.static.source import ir
from amp_audit.static.source.conditions import Facts
from amp_audit.static.source.names import is_weights
from amp_audit.static.source.traverse import dotted_text, root_name

_HANDLERS = {kind: f"_eval_{kind.__name__.lower()}" for kind in get_args(ir.Expr)}

ARITHMETIC = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "//": "floor_divide",
    "%": "remainder",
    "**": "pow",
    "@": "matmul",
}
OPTIONS = frozenset({"args", "cfg", "config", "conf", "opt", "opts", "hparams", "flags", "options", "hps", "hp"})
_CAST_ALONG = (frozenset({"float32"}), frozenset({"float64"}))
"""What of a model's buffers its casts are known to change."""
_SIDES = re.compile(r"_?(h|w|height|width)\d?", re.IGNORECASE)
"""What the sides of maps and images are called."""
_OF_DICTS = frozenset({"get", "items", "keys", "values", "pop", "update", "setdefault", "copy"})
_TENSOR_WORDS = ("shape", "ndim", "nbytes", "itemsize")


class Evaluation(Truths):
    """Evaluates expressions in the frame at hand. ``modules`` are the names of modules whose own code ran."""

    def __init__(self, code: project.Project) -> None:
        super().__init__()
        self.project = code
        self.fields = Fields(code)
        self.freezing = Freezing(code)
        self._command_line = CommandLine(code)
        self.frames: list[Frame] = []
        self.modules: dict[str, dict[str, Value]] = {}
        self._methods_of: dict[project.ClassRef, dict[str, tuple[project.ClassRef, ir.Function]]] = {}
        self._is_module: dict[project.ClassRef, bool] = {}
        self.meanings = Meanings()
        self._skip_guards: dict[str, frozenset[int]] = {}
        self.cast_by_hand: set[tuple[str, int]] = set()
        self._evaluators: dict[type, Callable[[Any], Value]] = {
            kind: getattr(self, name) for kind, name in _HANDLERS.items() if hasattr(self, name)
        }

    @abc.abstractmethod
    def run_module(self, module: ir.Module) -> dict[str, Value]:
        """The names of a module after its own code ran."""

    @abc.abstractmethod
    def follow(self, func: Func, args: Sequence[Value], named: Named, at: int) -> Value:
        """The result of a function of the project."""

    def aside(
        self, module: ir.Module, node: ir.Expr | None, cls: project.ClassRef | None, outer: Mapping[str, Value]
    ) -> Value:
        """The value of an expression seen from elsewhere: a decorator, a default, a class variable."""
        path, self.path = self.path, module.path
        self.frames.append(Frame(module, {}, outer, cls))
        try:
            return self.eval(node)
        finally:
            self.frames.pop()
            self.path = path

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def bind(self, target: ir.Expr, value: Value, at: int) -> None:
        """``target = value``."""
        self.meanings.forget(self.frame, target)
        if isinstance(target, ir.Name):
            self.frame.env[target.id] = value
        elif isinstance(target, ir.Attr):
            self._set_attribute(target, value)
        elif isinstance(target, ir.Sequence):
            for number, item in enumerate(target.items):
                part = _part(value, number, target)
                size = part == NUMBER or (isinstance(value, Opaque) and value.number)
                side = size and isinstance(item, ir.Name) and _SIDES.fullmatch(item.id)
                self.bind(item, SIDE if side else part, at)
        elif isinstance(target, ir.Starred):
            self.bind(target.value, value, at)
        elif isinstance(target, ir.Subscript):
            self._set_item(target, value, at)

    def _set_attribute(self, target: ir.Attr, value: Value) -> None:
        for base in options(self.eval(target.base)):
            if target.name == "requires_grad" and isinstance(base, Params):
                if isinstance(value, Const) and value.value is False:
                    self.record.frozen.update(base.of)
            elif isinstance(base, (Object, Opaque)) and base.id:
                self.own_parameter(base, target.name, value, target.at)
                if isinstance(value, Const) and value.number == 0:
                    self.note_emptied([(base, target.name)])
                held = self.heap.of(base.id)
                if isinstance(value, Tensor) and value.last in BLANK and not self.frame.setup:
                    value = replace(value, table=False)  # a state, of which this is the beginning
                strong = base == self.frame.bound and self.frame.setup and self.guards == self.frame.guards
                alone = strong or target.name not in held
                self.heap.keep(base.id, target.name, value if alone else join(held[target.name], value))

    def _set_item(self, target: ir.Subscript, value: Value, at: int) -> None:
        base, index = self.eval(target.base), self.eval(target.index)
        if isinstance(value, Tensor) and value.of and isinstance(base, Table):
            self.stored(value, at)
            value = replace(value, of=averages.kept(value.of))
        if isinstance(base, Table) and isinstance(index, Const):
            self.bind(target.base, base.put(index.value, value), at)
        elif isinstance(base, Table) and is_filled(base):
            before = base.get(REST)
            self.bind(target.base, Table(((REST, value if before is None else join(before, value)),)), at)
        elif (
            isinstance(base, Tensor)
            and (picks(index) or (is_mask(target.index) and not _is_number(index)))
            and isinstance(value, Tensor)
            and not value.scalar
        ):
            self.apply("index_put_", [base, index, value], {}, at)
        elif isinstance(base, Tensor):
            self.apply("setitem_", [base, value], {}, at)
        if isinstance(base, Tensor) and base.table and isinstance(target.base, (ir.Name, ir.Attr)):
            kept = value.table if isinstance(value, Tensor) else _is_number(value)
            self.bind(target.base, replace(base, table=kept, last="setitem"), at)

    def lookup(self, name: str) -> Value:
        """What a name stands for here."""
        frame = self.frame
        found = frame.env.get(name)
        if found is None:
            found = frame.outer.get(name)
        if found is None:
            found = self.run_module(frame.module).get(name)
        if found is not None:
            return found
        return self.of_binding(self.project.lookup(frame.module, name), name)

    def of_binding(self, binding: project.Binding, name: str = "") -> Value:
        """The value of a resolved name."""
        if isinstance(binding, project.External):
            return torch_dtype(binding.dotted) or binding
        if isinstance(binding, (project.ClassRef, project.ModuleRef)):
            return binding
        if isinstance(binding, project.FunctionRef):
            return Func(binding.module, binding.function)
        if isinstance(binding, project.Alternatives):
            found = [self.of_binding(option, name) for option in binding.options]
            return next(
                (one for one in found if isinstance(one, project.External) and one.dotted.startswith("torch.")),
                found[0],
            )
        if isinstance(binding, project.ValueRef):
            return self.run_module(binding.module).get(name, NOTHING)
        if not name:
            return NOTHING
        self.libraries.setdefault((self.path, name), "")  # what an import brought that is not there
        return Opaque((self.path, name), name, number=name.lower() in OPTIONS)

    def eval(self, node: ir.Expr | None) -> Value:
        handler = self._evaluators.get(type(node))
        return handler(node) if handler is not None else NOTHING

    def _eval_const(self, node: ir.Const) -> Value:
        return Const.of(node.value)

    def _eval_text(self, node: ir.Text) -> Value:
        for part in node.parts:
            self.eval(part)
        return NOTHING

    def _eval_name(self, node: ir.Name) -> Value:
        return self.lookup(node.id)

    def _eval_attr(self, node: ir.Attr) -> Value:
        base = self.eval(node.base)
        if not isinstance(base, Either):
            return self.attribute(base, node.name)
        return reduce(join, [self.attribute(option, node.name) for option in base.options])

    def is_skip_guard(self, at: int) -> bool:
        module = self.frame.module
        if module.path not in self._skip_guards:
            self._skip_guards[module.path] = skip_guards(module)
        return at in self._skip_guards[module.path]

    def option_default(self, name: str) -> str | None:
        return self._command_line.default(name)

    def attribute(self, base: Value, name: str) -> Value:
        """``base.name``."""
        if isinstance(base, Object):
            return self._member(base, base.cls, name, base)
        if isinstance(base, Super):
            return self._above(base, name)
        if isinstance(base, project.ClassRef):
            return self._member(base, base, name, None)
        if isinstance(base, project.External):
            return self.of_binding(self.project.member(base, name), name)
        if isinstance(base, project.ModuleRef):
            return self._of_package(base, name)
        if isinstance(base, Info):
            return info_attribute(base, name)
        if isinstance(base, (Tensor, Opaque)) and name == "dtype":
            return DType(base.dtypes if base.origin != "model" else ANY, borrowed=True)
        if isinstance(base, Tensor):
            return _tensor_attribute(base, name)
        if isinstance(base, Params) and name == "dtype":
            own = self.tensor_of(base)
            return DType(own.dtypes if own is not None else ANY, borrowed=True)
        if isinstance(base, Params) and name in ("data", "grad"):
            return base if name == "data" else Tensor()
        if isinstance(base, Items) and name in ("values", "indices") and len(base.items) == 2:
            return base.items[name == "indices"]
        if isinstance(base, Table):
            known = name in _OF_DICTS and all(key != name for key, _ in base.items)
            return Method(base, name) if known else base.get(name) or Method(base, name)
        if isinstance(base, Opaque):
            return self._opaque_attribute(base, name)
        if isinstance(base, Layer) and name in ("weight", "bias") and base.op != "sequential":
            told = self.weight_dtypes(base)
            return Tensor(FLOAT32 if told == ANY and self.is_as_built(base.id) else told, origin="weights")
        return Method(base, name)

    def _opaque_attribute(self, base: Opaque, name: str) -> Value:
        if not base.id:
            return NUMBER if name in _TENSOR_WORDS else Opaque("", name)
        held = self.heap.of(base.id).get(name)
        if held is not None:
            return held
        if name == "module":
            return base
        number = base.number or name.lower() in OPTIONS or name in _TENSOR_WORDS
        return part_of(base, Opaque((base.id, name), name, number=number), name)

    def _of_package(self, base: project.ModuleRef, name: str) -> Value:
        if base.module is not None:
            held = self.run_module(base.module).get(name)
            if held is not None:
                return held
        return self.of_binding(self.project.member(base, name), name)

    def _member(self, base: Value, cls: project.ClassRef, name: str, bound: Object | None) -> Value:
        held = self.heap.of(bound.id).get(name) if bound is not None else None
        if bound is not None and held is not None:
            own = name in self.buffers.get(bound.id, {}) or (isinstance(held, Tensor) and held.origin == "weights")
            return self._stored(held) if own else held
        method = self._method_of(cls, name)
        if method is not None:
            return self._bound(method, base, bound)
        found = self.project.member(cls, name)
        if isinstance(found, project.ValueRef) and found.expr is not None:
            return self.aside(found.module, found.expr, cls, {})
        if bound is None:
            return Opaque((cls.module.path, cls.cls.at, name), name)
        if self.is_module(cls):
            return bound if name == "module" else Opaque((bound.id, name), name)
        return Opaque((bound.id, name), name, number=name.lower() in OPTIONS)

    def _stored(self, held: Value) -> Value:
        """A buffer or a parameter, which is cast with the model whose forward runs here; no table where that is only
        taken to run here, and is cast elsewhere."""
        if not isinstance(held, Tensor):
            return held
        if self.guessing and not self.cast_by_hand.isdisjoint(self.active[-1:]):
            return replace(held, table=False)
        cast = self.weights[-1] if self.weights else ANY if held.origin == "weights" and self.of_unknown() else None
        return replace(held, dtypes=cast) if cast is not None and held.dtypes in _CAST_ALONG else held

    def _bound(self, method: Func, base: Value, bound: Object | None) -> Value:
        function = method.function
        if has_decorator(function, "staticmethod"):
            return method
        if has_decorator(function, "classmethod"):
            return replace(method, bound=base)
        if bound is not None and (has_decorator(function, "property") or has_decorator(function, "cached_property")):
            return self.follow(replace(method, bound=bound), [], {}, 0)
        return replace(method, bound=bound) if bound is not None else method

    def _methods(self, cls: project.ClassRef) -> dict[str, tuple[project.ClassRef, ir.Function]]:
        if cls not in self._methods_of:
            self._methods_of[cls] = self.project.methods(cls)
        return self._methods_of[cls]

    def is_module(self, cls: project.ClassRef) -> bool:
        """Whether a class derives from ``nn.Module``."""
        if cls not in self._is_module:
            self._is_module[cls] = self.project.is_subclass(cls, "torch.nn.Module")
        return self._is_module[cls]

    def _method_of(self, cls: project.ClassRef, name: str) -> Func | None:
        found = self._methods(cls).get(name)
        return Func(found[0].module, found[1], None, None, found[0]) if found is not None else None

    def _above(self, base: Super, name: str) -> Value:
        bound = base.bound if isinstance(base.bound, Object) else None
        for parent in self.project.bases(base.cls):
            if isinstance(parent, project.ClassRef):
                method = self._method_of(parent, name)
                if method is not None:
                    return self._bound(method, base.bound, bound)
        return Method(base, name)

    def _eval_subscript(self, node: ir.Subscript) -> Value:
        base, index = self.eval(node.base), self.eval(node.index)
        return reduce(join, (self._item(one, index, node.index) for one in options(base)))

    def _item(self, base: Value, index: Value, node: ir.Expr) -> Value:
        if isinstance(base, Table):
            found = base.get(index.value) if isinstance(index, Const) else None
            return found or (reduce(join, (value for _, value in base.items)) if base.items else NOTHING)
        parts = base.parts if isinstance(base, Layer) else base.items if isinstance(base, Items) else None
        if parts is not None and isinstance(index, Const) and isinstance(index.value, int):
            if any(isinstance(part, Many) for part in parts):  # any number of items
                return NOTHING
            return parts[index.value] if -len(parts) <= index.value < len(parts) else NOTHING
        if isinstance(base, (Items, Many)):
            return Many(element(base)) if isinstance(node, ir.Slice) else element(base)
        if isinstance(base, Layer):
            return replace(base, parts=base.parts) if isinstance(node, ir.Slice) else element(base)
        if isinstance(base, Tensor) and base.table and not keeps_dimensions(index, node):
            return replace(base, table=False)
        if isinstance(base, Tensor) and base.dtypes == {"float64"} and isinstance(index, Opaque):
            return replace(base, scalar=True)  # a number of an array perhaps, which widens nothing
        if isinstance(base, (Tensor, Params)):
            return base
        if isinstance(base, Opaque):
            if base.origin == "loaded" and isinstance(node, ir.Sequence):
                return base  # several indices are those of a tensor
            key = index.value if isinstance(index, Const) else None
            return part_of(base, replace(base, id=(base.id, "[]"), origin=""), str(key)) if base.id else base
        return NOTHING

    def _eval_slice(self, node: ir.Slice) -> Value:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.eval(part)
        return NOTHING

    def _eval_binary(self, node: ir.Binary) -> Value:
        result = self._combine(node.op, self.eval(node.left), self.eval(node.right), node.at)
        same = isinstance(node.left, ir.Name) and isinstance(node.right, ir.Name) and node.left.id == node.right.id
        return replace(result, last="square") if same and node.op == "*" and isinstance(result, Tensor) else result

    def _combine(self, op: str, left: Value, right: Value, at: int) -> Value:
        if isinstance(left, Const) and isinstance(right, Const):
            return computed(op, left, right)
        if op == "//" and isinstance(left, Opaque) and right == Const.of(2):
            return HALVED
        if isinstance(left, (Items, Many)) and isinstance(right, (Items, Many)) and op == "+":
            return extended(left, right)
        if isinstance(left, Params) and isinstance(right, Params) and op == "+":
            return join(left, right)  # lists of them, as a rule
        if _is_number(left) and _is_number(right):
            return NUMBER
        tensors = [side for side in (left, right) if isinstance(side, (Tensor, Either, Params)) or _is_tensor(side)]
        unknown = [side for side in (left, right) if isinstance(side, Opaque) and not side.number]
        name = ARITHMETIC.get(op)
        factor = next((side for side in (left, right) if isinstance(side, Const) and unknown and op == "*"), None)
        if factor is not None and not tensors and _is_huge(factor):
            return Tensor(filled=factor)  # a mask, times what is to become of its ones
        if name is None or not (tensors or (unknown and op == "@" and self.live)):
            return Opaque((self.path, at)) if unknown else NUMBER if not tensors else Tensor()
        if isinstance(left, Const) and name == "div":
            return self.apply("reciprocal", [right], {}, at)
        if _is_number(left) and name in ("add", "sub", "mul"):
            return self.apply(name, [right, left], {}, at)
        return self.apply(name, [left, right], {}, at)

    def _eval_unary(self, node: ir.Unary) -> Value:
        value = self.eval(node.operand)
        if isinstance(value, Const) and value.number is not None and node.op in "+-":
            number = -value.value if node.op == "-" else value.value  # type: ignore[operator]
            return Const.of(number, value.assumed)
        if node.op == "-" and isinstance(value, Tensor):
            return replace(value, last=negated(value.last))
        return Const.of(not value.value, value.assumed) if node.op == "not" and isinstance(value, Const) else value

    def _eval_compare(self, node: ir.Compare) -> Value:
        sides = [self.eval(node.left), *(self.eval(right) for _, right in node.rest)]
        known = self.truth(node)
        if known is not None:
            return Const.of(known)
        told = _with_defaults(node.rest[0][0], sides)
        if told is not None:
            return told
        tensors = [side for side in sides if isinstance(side, Tensor)]
        table = all(side.table if isinstance(side, Tensor) else _is_number(side) for side in sides)
        return Tensor(frozenset({"bool"}), table=table) if tensors else NOTHING

    def _eval_boolop(self, node: ir.BoolOp) -> Value:
        known = self.truth(node.left)
        left = self.eval(node.left)
        if known is not None:
            return left if known is (node.op == "or") else self.eval(node.right)
        return join(left, self.eval(node.right))

    def _eval_ifexp(self, node: ir.IfExp) -> Value:
        known = self.truth(node.test)
        if known is not None:
            return self.eval(node.body if known else node.orelse)
        self.eval(node.test)
        outer, values = self.facts, []
        for arm, truth in ((node.body, True), (node.orelse, False)):
            self.facts = outer | self.facts_of(node.test, truth)
            values.append(self.eval(arm))
        self.facts = outer
        return join(*values)

    def facts_of(self, test: ir.Expr, truth: bool) -> Facts:
        """What is known where a condition is true, or false."""
        return self.meanings.facts_of(self.frame, test, truth)

    def _eval_sequence(self, node: ir.Sequence) -> Value:
        items: list[Value] = []
        for item in node.items:
            if not isinstance(item, ir.Starred):
                items.append(self.eval(item))
                continue
            value = self.eval(item.value)
            if isinstance(value, Items):
                items.extend(value.items)
            else:
                items.append(value if isinstance(value, (Params, Many)) else element(value))
        return Items(tuple(items))

    def _eval_mapping(self, node: ir.Mapping) -> Value:
        table = Table(())
        for key, value in node.items:
            known = self.eval(key) if key is not None else None
            held = self.eval(value)
            if isinstance(known, Const):
                table = table.put(known.value, held)
            elif known is None and isinstance(held, Table):
                for name, inner in held.items:
                    table = table.put(name, inner)
        return table

    def _eval_starred(self, node: ir.Starred) -> Value:
        return self.eval(node.value)

    def _eval_lambda(self, node: ir.Lambda) -> Value:
        return Func(self.frame.module, node.function, None, self.frame.env, self.frame.cls)

    def _eval_comprehension(self, node: ir.Comprehension) -> Value:
        kept = dict(self.frame.env)
        conditions: list[ir.Expr] = []
        for target, iterable, tests in node.loops:
            self.bind(target, self._iterated(iterable), node.at)
            conditions += tests
            for test in tests:
                self.eval(test)
        value = self.eval(node.element)
        if node.kind == "dict" and not conditions:
            self._cast_entries(node, value)
        self.frame.env.clear()
        self.frame.env.update(kept)
        if isinstance(value, Params):
            return self.freezing.kept(value, conditions)
        if node.kind == "dict":
            if conditions or not isinstance(value, Tensor) or not value.of:
                return NOTHING
            return Table(((REST, replace(value, of=averages.kept(value.of))),))
        return Many(value)

    def _cast_entries(self, node: ir.Comprehension, value: Value) -> None:
        """Note that every entry of a batch, which a loop has just bound, is cast whatever it holds."""
        if not self.loops or not isinstance(node.element, ir.Call) or not isinstance(value, (Tensor, Opaque)):
            return
        source, entry = root_name(node.loops[0][1]), self.frame.env.get(root_name(node.element))
        if source not in self.frame.env or source in self.loops[0].start:
            return
        if isinstance(entry, Params) or is_weights(source):
            return
        if value.origin == "cast" and value.dtypes <= HALVES:
            self.notice("cast_entries", Tensor(value.dtypes), node.at)

    def _eval_walrus(self, node: ir.Walrus) -> Value:
        value = self.eval(node.value)
        self.bind(node.target, value, node.at)
        return value

    def _eval_await(self, node: ir.Await) -> Value:
        return self.eval(node.value)

    def _eval_yield(self, node: ir.Yield) -> Value:
        if node.value is not None:
            value = self.eval(node.value)
            self.frame.yields.append(element(value) if node.delegate else value)
        return NOTHING

    def _iterated(self, node: ir.Expr) -> Value:
        value = self.eval(node)
        return reduce(join, map(element, options(value)))


def _with_defaults(op: str, sides: Sequence[Value]) -> Const | None:
    """What ``==`` and ``!=`` say of constants, one of which is a default that a caller may replace."""
    consts = [side.value for side in sides if isinstance(side, Const)]
    if op not in ("==", "!=") or not len(consts) == len(sides) == 2:
        return None
    return Const.of((consts[0] == consts[1]) is (op == "=="), assumed=True)


def region_of(value: Value) -> Region | None:
    """The autocast region that entering a value enters; one of which nothing is known if it only sounds like one."""
    for option in options(value):
        if isinstance(option, Region):
            return option
        if isinstance(option, Opaque) and "autocast" in option.text.lower():
            return Region("cuda", ANY, None, assumed=True)
    return None


def has_decorator(function: ir.Function, decorator: str) -> bool:
    return any(dotted_text(node).rpartition(".")[2] == decorator for node in function.decorators)


def _part(value: Value, number: int, target: ir.Sequence) -> Value:
    """What unpacking gives the target of this number; for a starred one the items it takes."""
    star = next((n for n, item in enumerate(target.items) if isinstance(item, ir.Starred)), None)
    if isinstance(value, Either):
        return reduce(join, (_part(option, number, target) for option in value.options))
    if not isinstance(value, Items):
        return element(value)
    extra = len(value.items) - len(target.items)
    if star is None:
        return value.items[number] if extra == 0 else element(value)
    if extra < -1:
        return NOTHING
    if number == star:
        return Items(value.items[star : star + extra + 1])
    return value.items[number if number < star else number + extra]


def _is_tensor(value: Value) -> bool:
    """Whether something unknown is no number, being the output of a model or what was cast, and no model either."""
    return isinstance(value, Opaque) and value.origin in ("model", "cast")


def _is_number(value: Value) -> bool:
    if isinstance(value, Either):
        return all(map(_is_number, value.options))
    return (isinstance(value, Const) and value.number is not None) or (isinstance(value, Opaque) and value.number)


def _is_huge(value: Const) -> bool:
    """Whether a number is as large as masks have it."""
    return value.number is not None and abs(value.number) >= policy.MAX_FINITE["float16"]


def _tensor_attribute(base: Tensor, name: str) -> Value:
    if name in ("T", "mT", "H", "mH", "data", "real", "imag"):
        return base
    if name in _TENSOR_WORDS:
        return Many(NUMBER) if name == "shape" else NUMBER
    if name in ("values", "indices"):
        return base if name == "values" else Tensor(frozenset({"int"}))
    return Tensor() if name == "grad" else Method(base, name) if name not in ("device", "is_cuda") else Opaque("", name)
