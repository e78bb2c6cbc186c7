"""Where a value may come from and what kind of thing it is, as far as one look without running shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from amp_audit.records import record
from amp_audit.static.binding.dicts import changed, spelled_out
from amp_audit.static.binding.fields import Fields
from amp_audit.static.binding.names import Assigned
from amp_audit.static.binding.options import CommandLine
from amp_audit.static.binding.project import Alternatives, ClassRef, External, FunctionRef, Project, Scope, ValueRef
from amp_audit.static.binding.signatures import SCALERS
from amp_audit.static.source import ir
from amp_audit.static.source.names import is_settings
from amp_audit.static.source.traverse import last_word, statements, walk

_MAX_DEPTH = 8

_SCALE = re.compile(r"(?:init|initial|start)_(?:loss_)?scale", re.I)
_FLAG = re.compile(r"(?:use|enable|with|is|has)_\w+|(?:\w+_)?(?:amp|fp16|half|mixed_precision|enabled?)", re.I)
_NO_FLAG = re.compile(r"device|type|dtype|scale", re.I)
_TENSOR = re.compile(
    r"(?:\w+_)?(?:[xyqkvt]|inputs?|images?|imgs?|input_ids|hidden_states?|tensors?|batch|features?|feats?|logits|query|key"
    r"|value|latents?|samples?|outputs?|out|tokens?|audio|wavs?|mels?|frames?|pixel_values|embeds?|embeddings?|labels?"
    r"|targets?|points?|coords?|src|tgt|loss)"
)
_TESTS = frozenset(f"builtins.{name}" for name in ("bool", "isinstance", "hasattr", "callable", "all", "any"))
_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "bool", "uint8"})


@record(frozen=True, slots=True)
class Where:
    """From where an expression is read: its module, the function around it, the class whose methods these are.

    ``call``: by which call the function was entered, and where that stands, should one be followed.
    """

    module: ir.Module
    scope: Scope | None = None
    cls: ClassRef | None = None
    call: tuple[ir.Call, Where] | None = None


@record(frozen=True, slots=True)
class Origin:
    """An expression that a value may come from; None when it comes from outside (a parameter, an unpacked item).

    ``assumed``: it is the default of a field that nobody is seen to set.
    """

    where: Where
    expr: ir.Expr | None
    param: ir.Param | None = None
    assumed: bool = False


class Origins:
    """Follows names, attributes of ``self`` and factories back to where values are made."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.fields = Fields(project)
        self._attributes: dict[tuple[str, int], dict[str, list[Origin]]] = {}
        self._changed: dict[str, frozenset[str]] = {}
        self.command_line = CommandLine(project)

    def of(self, expr: ir.Expr, where: Where) -> list[Origin]:
        """All expressions that ``expr`` may have its value from; those it is itself a part of come too late."""
        found = self._follow(expr, where, 0, set())
        return [origin for origin in found if origin.expr is expr or not _contains(origin.expr, expr)]

    def _follow(self, expr: ir.Expr, where: Where, depth: int, seen: set[tuple[str, int]]) -> Iterator[Origin]:
        key = (where.module.path, expr.at)
        if depth > _MAX_DEPTH or key in seen:
            return
        seen.add(key)
        sources = self._sources(expr, where)
        if sources is None and isinstance(expr, ir.Attr):
            sources = self._of_field(expr, where, depth + 1, set(seen))
        if sources is None and isinstance(expr, ir.Subscript):
            sources = self._of_item(expr, where, depth + 1, set(seen))
        if sources is None:
            yield Origin(where, expr)
            return
        for source in sources:
            if source.expr is None:
                yield source
                continue
            for found in self._follow(source.expr, source.where, depth + 1, seen):
                yield replace(found, assumed=True) if source.assumed else found

    def _sources(self, expr: ir.Expr, where: Where) -> list[Origin] | None:
        """One step back; None where the value is made here."""
        if isinstance(expr, ir.Name):
            return self._of_name(expr, where)
        if isinstance(expr, ir.Attr):
            return self._of_attribute(expr, where)
        if isinstance(expr, ir.IfExp):
            return [Origin(where, expr.body), Origin(where, expr.orelse)]
        if isinstance(expr, ir.BoolOp):
            return [Origin(where, expr.left), Origin(where, expr.right)]
        if isinstance(expr, ir.Walrus):
            return [Origin(where, expr.value)]
        if isinstance(expr, ir.Call):
            return self._of_factory(expr, where)
        return None

    def _of_name(self, expr: ir.Name, where: Where) -> list[Origin] | None:
        scope = where.scope
        while scope is not None:
            if expr.id in scope.names.bound:
                inside = Where(where.module, scope, where.cls, where.call if scope is where.scope else None)
                return self._local(expr.id, scope, inside)
            scope = scope.outer
        outside = Where(where.module)
        names = self.project.names(where.module)
        if expr.id in names.bound:
            exprs = [b.source.expr for b in names.bound[expr.id] if isinstance(b.source, Assigned)]
            return [Origin(outside, each) for each in exprs] if exprs else None
        return self._elsewhere(expr, where)

    def _local(self, name: str, scope: Scope, where: Where) -> list[Origin] | None:
        params = {param.name: param for param in scope.function.params}
        found = []
        for bound in scope.names.bound[name]:
            if not isinstance(bound.source, Assigned):
                return None
            param = params.get(name) if bound.source.expr is None else None
            given = _given(param, where) if param is not None else None
            found.append(given or Origin(where, bound.source.expr, param))
        return found

    def _elsewhere(self, expr: ir.Expr, where: Where) -> list[Origin] | None:
        """A variable of another module of the project."""
        binding = self.project.resolve(where.module, expr, where.scope)
        options = binding.options if isinstance(binding, Alternatives) else (binding,)
        if not all(isinstance(option, ValueRef) for option in options):
            return None
        return [Origin(Where(option.module), option.expr) for option in options if isinstance(option, ValueRef)]

    def _of_attribute(self, expr: ir.Attr, where: Where) -> list[Origin] | None:
        if self.is_self(expr.base, where) and where.cls is not None:
            found = [
                origin for owner in self.project.mro(where.cls) for origin in self.attributes(owner).get(expr.name, ())
            ]
            return found or None
        return self._elsewhere(expr, where)

    def _of_field(self, expr: ir.Attr, where: Where, depth: int, seen: set[tuple[str, int]]) -> list[Origin] | None:
        """The default of a dataclass's field, read off an instance that is made without a value for it."""
        if not isinstance(expr.base, (ir.Name, ir.Attr)):
            return None
        found = []
        for made in self._follow(expr.base, where, depth, seen):
            default = self._default(made.expr, made.where, expr.name)
            if default is None:
                return None
            found.append(default)
        return found or None

    def _of_item(self, expr: ir.Subscript, where: Where, depth: int, seen: set[tuple[str, int]]) -> list[Origin] | None:
        """The entry of a dict that stays as it was made, by a literal key."""
        key = expr.index.value if isinstance(expr.index, ir.Const) else None
        table = self._table(expr.base, where, self._follow(expr.base, where, depth, seen))
        return [table[key]] if table is not None and isinstance(key, str) and key in table else None

    def _table(self, expr: ir.Expr, where: Where, made: Iterable[Origin]) -> dict[str, Origin] | None:
        """The entries of a dict that is spelled out in one place and stays so; ``made`` are its origins."""
        found = list(made)
        config = spelled_out(found[0].expr) if len(found) == 1 else None
        if config is None:
            return None
        if found[0].expr is not expr and not self._stays((where.module, found[0].where.module), last_word(expr)):
            return None
        return {key: replace(found[0], expr=value) for key, value in config.items()}

    def _stays(self, modules: Iterable[ir.Module], word: str) -> bool:
        """Whether a dict of this name is as it was made, as far as these modules show."""
        for module in modules:
            if module.path not in self._changed:
                self._changed[module.path] = changed(module)
        return bool(word) and not any(word in self._changed[module.path] for module in modules)

    def unpacked(self, call: ir.Call, where: Where) -> ir.Call:
        """A call with keywords in place of the dicts that it unpacks, where these are known."""
        if all(arg.star != "**" for arg in call.args):
            return call
        args: list[ir.Arg] = []
        for arg in call.args:
            table = self._table(arg.value, where, self.of(arg.value, where)) if arg.star == "**" else None
            if table is None or not all(_reads_alike(origin, where) for origin in table.values()):
                args.append(arg)
            else:
                args += [ir.Arg(origin.expr, key) for key, origin in table.items() if origin.expr is not None]
        return replace(call, args=tuple(args))

    def _default(self, made: ir.Expr | None, where: Where, name: str) -> Origin | None:
        """The default of a field of the dataclass that ``made`` is an instance of, where it keeps that."""
        if not isinstance(made, ir.Call):
            return None
        cls = self.project.resolve(where.module, made.func, where.scope)
        found = self.fields.of_instance(cls, made).get(name) if isinstance(cls, ClassRef) else None
        return Origin(Where(found[0].module), found[1], assumed=True) if found is not None else None

    def _of_factory(self, expr: ir.Call, where: Where) -> list[Origin] | None:
        binding = self.project.resolve(where.module, expr.func, where.scope)
        if isinstance(expr.func, ir.Attr) and self.is_self(expr.func.base, where) and where.cls is not None:
            binding = self.project.member(where.cls, expr.func.name)
        if not isinstance(binding, FunctionRef) or binding.function.is_generator or binding.function.is_async:
            return None
        inside = Where(binding.module, Scope(binding.function), where.cls, (expr, where))
        returned = [s.value for s in statements(binding.function.body) if isinstance(s, ir.Return)]
        return [Origin(inside, value) for value in returned if value is not None] or None

    @staticmethod
    def is_self(expr: ir.Expr, where: Where) -> bool:
        """Whether an expression is the first parameter of the method that it stands in."""
        scope = where.scope
        while scope is not None and scope.outer is not None:
            scope = scope.outer
        if not isinstance(expr, ir.Name) or scope is None or where.cls is None or not scope.function.params:
            return False
        return expr.id == scope.function.params[0].name

    def attributes(self, ref: ClassRef) -> dict[str, list[Origin]]:
        """What the methods in a class's own body assign to the attributes of ``self``, and its own variables."""
        if ref.key not in self._attributes:
            table: dict[str, list[Origin]] = {}
            for node in ref.cls.body:
                if isinstance(node, ir.Function) and node.params:
                    where = Where(ref.module, Scope(node), ref)
                    for name, expr in _self_assignments(node):
                        table.setdefault(name, []).append(Origin(where, expr))
                elif isinstance(node, ir.Assign):
                    for target in node.targets:
                        if isinstance(target, ir.Name):
                            table.setdefault(target.id, []).append(Origin(Where(ref.module), node.value))
            self._attributes[ref.key] = table
        return self._attributes[ref.key]

    # Kinds

    def constructors(
        self, expr: ir.Expr, where: Where, classes: Iterable[str] = SCALERS
    ) -> list[tuple[ir.Call, Where]] | None:
        """The calls that make ``expr``, when it is surely an instance of one of some library classes, or None there.

        Empty when only an annotation says so. None (the result) when it may be something else.
        """
        known = frozenset(classes)
        found = []
        is_one = False
        for origin in self.of(expr, where):
            if isinstance(origin.expr, ir.Const) and origin.expr.value is None:
                continue
            if not {self.called(origin.expr, origin.where), self._annotated(origin)} & known:
                return None
            is_one = True
            if isinstance(origin.expr, ir.Call):
                found.append((origin.expr, origin.where))
        return found if is_one else None

    def called(self, expr: ir.Expr | None, where: Where) -> str | None:
        """The canonical name of what a call calls."""
        if not isinstance(expr, ir.Call):
            return None
        return self.project.qualified(where.module, expr.func, where.scope)

    def _annotated(self, origin: Origin) -> str | None:
        if origin.param is None or origin.param.annotation is None:
            return None
        return self.project.qualified(origin.where.module, origin.param.annotation)

    def kinds(self, expr: ir.Expr, where: Where) -> tuple[frozenset[str], bool]:
        """What kinds of thing ``expr`` is (empty: unknown), and whether that is more than a name's word.

        Kinds: bool int float str none dict dtype device module callable parameters tensor flag.
        """
        found: set[str] = set()
        sure = True
        for origin in self.of(expr, where):
            kind = self._kind(origin)
            if kind is None:
                named = self._by_name(expr, where)[0] or self._by_name(origin.expr or expr, origin.where)[0]
                if not named:
                    return frozenset(), False
                found |= named
            else:
                found.add(kind)
            sure = sure and kind is not None and not origin.assumed
        return (frozenset(found), sure) if found else self._by_name(expr, where)

    def _by_name(self, expr: ir.Expr, where: Where) -> tuple[frozenset[str], bool]:
        word = last_word(expr) or _key(expr)
        if _SCALE.fullmatch(word):
            return frozenset({"float"}), False
        if _FLAG.fullmatch(word) and not _NO_FLAG.search(word):
            return frozenset({"flag"}), False
        if isinstance(expr, ir.Attr) and expr.name == "device":
            base = expr.base
            if isinstance(base, ir.Call) or (isinstance(base, ir.Name) and _TENSOR.fullmatch(base.id)):
                return frozenset({"device"}), isinstance(base, ir.Call)
        return frozenset(), False

    def _kind(self, origin: Origin) -> str | None:
        expr, where = origin.expr, origin.where
        if expr is None:
            return self._kind_of_parameter(origin)
        if isinstance(expr, ir.Const):
            return {"NoneType": "none"}.get(type(expr.value).__name__, type(expr.value).__name__)
        if isinstance(expr, ir.Compare) or (isinstance(expr, ir.Unary) and expr.op == "not"):
            return "bool"
        if isinstance(expr, ir.Binary):
            return self._kind_of_arithmetic(expr, where)
        if isinstance(expr, (ir.Mapping, ir.Lambda, ir.Text)):
            return {ir.Mapping: "dict", ir.Lambda: "callable", ir.Text: "str"}[type(expr)]
        if isinstance(expr, ir.Call):
            return self._kind_of_call(expr, where)
        return self._kind_of_binding(expr, where)

    def _kind_of_default(self, expr: ir.Expr, where: Where) -> str | None:
        """The kind of a literal; None says nothing of what stands there later."""
        is_literal = isinstance(expr, (ir.Const, ir.Binary)) and not (isinstance(expr, ir.Const) and expr.value is None)
        return self._kind(Origin(where, expr)) if is_literal else None

    def _kind_of_arithmetic(self, expr: ir.Binary, where: Where) -> str | None:
        sides = {self._kind(Origin(where, side)) for side in (expr.left, expr.right)}
        if not sides <= {"int", "float"}:
            return None
        return "float" if "float" in sides or expr.op == "/" else "int"

    def _kind_of_parameter(self, origin: Origin) -> str | None:
        if origin.param is None:
            return None
        annotated = self._annotated(origin)
        if _plain(annotated) is not None:
            return _plain(annotated)
        if annotated in ("torch.device", "torch.dtype"):
            return annotated.removeprefix("torch.")
        default = origin.param.default
        if origin.param.annotation is None and isinstance(default, ir.Const) and isinstance(default.value, (bool, str)):
            return type(default.value).__name__
        return None

    def _kind_of_call(self, expr: ir.Call, where: Where) -> str | None:
        name = self.called(expr, where)
        if name in _TESTS or last_word(expr.func) in ("is_available", "is_bf16_supported"):
            return "bool"
        if name in ("builtins.str", "builtins.int", "builtins.float", "builtins.dict"):
            return name.removeprefix("builtins.")
        if name == "torch.device":
            return "device"
        if name is not None and name.startswith("torch.nn.") and name.rpartition(".")[2][:1].isupper():
            return "module"
        binding = self.project.resolve(where.module, expr.func, where.scope)
        if isinstance(binding, ClassRef) and self.project.is_subclass(binding, "torch.nn.Module"):
            return "module"
        if isinstance(expr.func, ir.Attr) and expr.func.name in ("parameters", "named_parameters"):
            return "parameters"
        if isinstance(expr.func, ir.Attr) and expr.func.name in ("to", "cuda", "cpu", "train", "eval"):
            kinds, _ = self.kinds(expr.func.base, where)
            return "module" if kinds == {"module"} else None
        return None

    def _kind_of_binding(self, expr: ir.Expr, where: Where) -> str | None:
        binding = self.project.resolve(where.module, expr, where.scope)
        if isinstance(binding, FunctionRef):
            return "callable"
        if isinstance(binding, External) and binding.dotted.removeprefix("torch.") in _DTYPES:
            return "dtype"
        if isinstance(expr, ir.Attr) and where.cls is not None and self.is_self(expr.base, where):
            method = self.project.methods(where.cls).get(expr.name)
            is_property = method is not None and bool(method[1].decorators)
            if method is not None:
                return None if is_property else "callable"
        if not isinstance(expr, ir.Attr):
            return None
        return self._kind_of_field(expr, where) or self._kind_of_option(expr, where)

    def _kind_of_option(self, expr: ir.Attr, where: Where) -> str | None:
        """What the parser says of ``args.name``: a number, by its ``type``."""
        kind = self.command_line.number(expr.name)
        if kind is None or is_settings(last_word(expr.base)):
            return kind
        made = (origin.expr for origin in self.of(expr.base, where))
        parsed = any(isinstance(each, ir.Call) and last_word(each.func).startswith("parse_") for each in made)
        return kind if parsed else None

    def _kind_of_field(self, expr: ir.Attr, where: Where) -> str | None:
        """What the class of an object says of an attribute: that of a parameter by its annotation. A whole number may
        be set to a truth value there, and the other way round: it is some flag.
        """
        kinds = {self._stated(self._class_of(origin), expr.name) for origin in self.of(expr.base, where)}
        kind = kinds.pop() if len(kinds) == 1 else None
        return "flag" if kind in ("bool", "int") else kind

    def _class_of(self, origin: Origin) -> ClassRef | None:
        """The class of the project that a value is an instance of."""
        named = origin.param.annotation if origin.param is not None else None
        named = origin.expr.func if isinstance(origin.expr, ir.Call) else named
        found = self.project.resolve(origin.where.module, named) if isinstance(named, (ir.Name, ir.Attr)) else None
        return found if isinstance(found, ClassRef) else None

    def _stated(self, cls: ClassRef | None, name: str) -> str | None:
        """The kind of a field, as a class's own body declares it or by its default."""
        for owner in self.project.mro(cls) if cls is not None else ():
            for node in owner.cls.body:
                if isinstance(node, ir.Declare) and last_word(node.target) == name:
                    return _plain(self.project.qualified(owner.module, node.annotation))
                if isinstance(node, ir.Assign) and any(last_word(target) == name for target in node.targets):
                    return self._kind_of_default(node.value, Where(owner.module))
        return None


def _plain(annotated: str | None) -> str | None:
    """The kind that an annotation names by a builtin type."""
    word = (annotated or "").removeprefix("builtins.")
    return word if word != annotated and word in ("bool", "int", "float", "str") else None


def _key(expr: ir.Expr) -> str:
    """The word by which a setting is looked up: ``cfg["amp"]``, ``cfg.get("amp", False)``, ``getattr(args, "amp")``."""
    key: ir.Expr | None = None
    if isinstance(expr, ir.Subscript):
        key = expr.index
    elif isinstance(expr, ir.Call) and last_word(expr.func) in ("get", "getattr"):
        position = 0 if isinstance(expr.func, ir.Attr) else 1
        key = expr.args[position].value if len(expr.args) > position else None
    return key.value if isinstance(key, ir.Const) and isinstance(key.value, str) else ""


def _reads_alike(origin: Origin, where: Where) -> bool:
    """Whether an expression of one place means the same in another: it is a literal, or the module is the same."""
    return isinstance(origin.expr, ir.Const) or origin.where.module is where.module


def _given(param: ir.Param, where: Where) -> Origin | None:
    """What the call by which a function was entered gives one of its parameters; None where that cannot be told."""
    if where.call is None or where.scope is None or param.kind != "positional":
        return None
    call, caller = where.call
    if any(arg.star for arg in call.args):
        return None
    function = where.scope.function
    names = [each.name for each in function.params if each.kind == "positional"]
    bound = where.cls is not None and isinstance(call.func, ir.Attr) and Origins.is_self(call.func.base, caller)
    if bound and not any(last_word(decorator) == "staticmethod" for decorator in function.decorators):
        names = names[1:]
    plain = [arg.value for arg in call.args if arg.keyword is None]
    given = {**dict(zip(names, plain)), **{arg.keyword: arg.value for arg in call.args if arg.keyword is not None}}
    return Origin(caller, given[param.name]) if param.name in given else None


def _contains(outer: ir.Expr | None, inner: ir.Expr) -> bool:
    return outer is not None and any(part is inner for part in walk(outer))


def _self_assignments(function: ir.Function) -> Iterator[tuple[str, ir.Expr | None]]:
    first = function.params[0].name
    for node in statements(function.body):
        if isinstance(node, ir.Assign):
            for target in node.targets:
                yield from _attributes_of(first, target, node.value)


def _attributes_of(first: str, target: ir.Expr, value: ir.Expr | None) -> Iterator[tuple[str, ir.Expr | None]]:
    if isinstance(target, ir.Attr) and isinstance(target.base, ir.Name) and target.base.id == first:
        yield target.name, value
    elif isinstance(target, ir.Sequence):
        items: list[ir.Expr | None] = [None] * len(target.items)
        if isinstance(value, ir.Sequence) and len(value.items) == len(items):
            items = list(value.items)
        for item, each in zip(target.items, items):
            yield from _attributes_of(first, item, each)
