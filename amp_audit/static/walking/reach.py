"""What the code of an entry may come to, over all calls in it: entries that cannot end in a hazard need no walk.

A screen, and so a superset: whatever code refers to, it may call. A name means what it is bound to; an attribute of
something unknown means what has that name in any class that the code so far has referred to, for objects come from
nowhere else: a walk holds what the code it went through referred to, what a module or class assigns to a name, and what
the own code of the entry's module has left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeAlias

from amp_audit.records import record
from amp_audit.rulebook import Rulebook
from amp_audit.static.binding.names import collect
from amp_audit.static.binding.project import (
    Alternatives,
    Binding,
    ClassRef,
    FunctionRef,
    Project,
    Unknown,
    ValueRef,
)
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import children, definitions, expressions, last_word, statements, walk, words_in
from amp_audit.static.walking.byhand import FINITE
from amp_audit.static.walking.hot import Heat, aliases, dotted
from amp_audit.static.walking.library import REPLICATES
from amp_audit.static.walking.means import Means, dangers, used
from amp_audit.static.walking.ranks import POOL

_SAID: dict[str, Means] = {
    **dict.fromkeys(("autocast", "MixedPrecision", "MixedPrecisionPolicy"), Means.REGION),
    **dict.fromkeys(("GradScaler", "ShardedGradScaler"), Means.BUILD),
    **dict.fromkeys(("unscale_", "get_scale"), Means.SCALER),
    "scale_loss": Means.SCALER | Means.BACKWARD,
    **dict.fromkeys(("backward", "manual_backward"), Means.BACKWARD),
    "step": Means.STEP,
    "update": Means.UPDATE,
    **dict.fromkeys(("zero_grad", "grad"), Means.CLEAR),
    **dict.fromkeys(
        ("parameters", "named_parameters", "buffers", "trainable_parameters", "param_groups", "load_state_dict"),
        Means.WRITE,
    ),
    **dict.fromkeys(("register_hook", "register_post_accumulate_grad_hook", "register_comm_hook"), Means.HOOK),
    **dict.fromkeys(("no_grad", "inference_mode"), Means.UNGRADED),
    **dict.fromkeys(REPLICATES, Means.REPLICAS),
    **dict.fromkeys(("trace", "trace_module"), Means.TRACE),
}
_BITS = {word: int(means) for word, means in _SAID.items()}
"""Numbers, since the flags of an enumeration take ten times as long to join."""
_NAMING = {"getattr": slice(1, 2), "attrgetter": slice(None), "methodcaller": slice(1)}
"""What asks for attributes by their names, and which of its arguments those are."""
_HANDS_OVER = frozenset({"submit", "map", "apply_async", "Thread"})
_DTYPES = frozenset({"float16", "half", "bfloat16", "bf16", "fp16"})

_CLIP = re.compile(r"clip|clamp", re.IGNORECASE)
_RUN = ("__init__", "__call__", "forward", "__enter__", "__exit__")
"""The methods that run where an object is made, called or entered."""


Start: TypeAlias = tuple[ir.Module, ir.Function | None, ClassRef | None]
"""An entry: a function, with the class of the object it is called on, or (None) the own code of a module."""


@dataclass(slots=True, eq=False)
class _Node:
    """Some code: what it says itself and refers to. ``names`` are attributes of unknown objects, ``own`` those of
    ``self`` in a class. ``functions``: what is defined there, the code itself among them if it is a function's.
    ``texts``: those that may name an attribute; ``computes``: whether some code asks for attributes by such names.
    """

    path: str
    means: int = 0
    functions: tuple[ir.Function, ...] = ()
    codes: list[_Node] = field(default_factory=list)
    classes: list[ClassRef] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    cls: ClassRef | None = None
    texts: set[str] = field(default_factory=set)
    computes: bool = False


@record(frozen=True, slots=True, eq=False)
class _Kind:
    """A class: the classes it has its members from, and its members by name. One for each class: it is compared by its
    identity, which takes a tenth of the time."""

    above: tuple[ClassRef, ...]
    members: dict[str, list[_Node | ClassRef]]


@dataclass(slots=True)
class _Met:
    """What some entries may come to, while it is gathered. ``below`` are the known classes that have members of a
    class. ``found``: it is what was asked for, and no more was gathered.
    """

    means: int = 0
    waiting: list[_Node] = field(default_factory=list)
    nodes: set[_Node] = field(default_factory=set)
    classes: set[_Kind] = field(default_factory=set)
    names: set[str] = field(default_factory=lambda: set(_RUN))
    found: bool = False
    texts: set[str] = field(default_factory=set)
    computes: bool = False
    own: dict[ClassRef, set[str]] = field(default_factory=dict)
    below: dict[ClassRef, list[_Kind]] = field(default_factory=dict)

    def add(self, node: _Node) -> None:
        if node not in self.nodes:
            self.nodes.add(node)
            self.waiting.append(node)


@record(frozen=True, slots=True)
class _Code:
    """Expressions of a module with the class around them and the names that are bound there."""

    module: ir.Module
    parts: list[ir.Expr]
    cls: ClassRef | None = None
    local: frozenset[str] = frozenset()
    imports: dict[str, Binding] = field(default_factory=dict)
    leaves: bool = False


_NO_ALARM = object()


def _each(starts: Sequence[Start], holds: Callable[[Sequence[Start]], bool]) -> list[bool]:
    """For each of some entries, whether something holds of what it may come to.

    What several entries come to together holds what each of them comes to. So those of a module are asked together
    first, and in ever smaller parts where something is found.
    """
    groups: dict[str, list[int]] = {}
    for number, (module, _, _) in enumerate(starts):
        groups.setdefault(module.path, []).append(number)
    found = [False] * len(starts)
    waiting = list(groups.values())
    while waiting:
        group = waiting.pop()
        if not holds([starts[number] for number in group]):
            continue
        if len(group) == 1:
            found[group[0]] = True
        else:
            half = len(group) // 2
            waiting += (group[:half], group[half:])
    return found


class Reach:
    """Answers for the entries of a project."""

    def __init__(self, project: Project, heat: Heat, book: Rulebook) -> None:
        self.project = project
        self.heat = heat
        self._dangers = dangers(book)
        self._aliases = dict.fromkeys(aliases(project.modules.values(), REPLICATES), int(Means.REPLICAS))
        self._aliases.update(dict.fromkeys(heat.aliases, int(~Means.NONE)))
        self._homes: dict[int, tuple[ir.Module, ClassRef | None]] = {}
        self._nodes: dict[object, _Node] = {}
        self._kinds: dict[ClassRef, _Kind] = {}
        self._having: dict[str, list[_Kind]] = {}
        """The classes that have a member of a name, of those met so far."""
        self._judged: dict[int, bool] = {}
        self._alarms: dict[_Node, _Kind | None] = {}
        """Functions that come to a hazard by themselves, with the class of the object they are called on."""
        self._ends: dict[Hashable, tuple[Means, frozenset[str]]] = {}
        for module in project.modules.values():
            for function, owner in project.definitions(module):
                self._homes[id(function)] = (module, ClassRef(module, owner) if owner is not None else None)

    def hazardous(self, starts: Sequence[Start]) -> list[bool]:
        """Whether walks of these entries may end in a hazard, for each."""
        return _each(starts, self._may_end_in_hazard)

    def through(self, starts: Sequence[Start], paths: Set[str]) -> list[bool]:
        """Whether walks of these entries may go through one of some files, for each."""
        return _each(starts, lambda group: self._met(group, lambda node, _: node.path in paths).found)

    def _may_end_in_hazard(self, starts: Sequence[Start]) -> bool:
        met = self._met(starts, lambda node, met: self._hazardous(met.means) or self._alarmed(node, met))
        if met.found and len(starts) == 1:
            module, function, cls = starts[0]
            if function is not None and self._own_code(module) in met.waiting:  # it took nothing of the module's own
                self._alarms[self._function(function)] = self._kind(cls) if cls is not None else None
        return met.found

    def may_come_to(self, start: Start) -> tuple[Means, frozenset[str]]:
        """What a walk of an entry may come to, and the files it may go through."""
        module, function, cls = start
        key = (id(module), id(function), cls)
        found = self._ends.get(key)
        if found is None:
            met = self._met([start])
            found = self._ends[key] = (Means(met.means), frozenset(node.path for node in met.nodes))
        return found

    def functions(self, starts: Iterable[Start], most: int) -> tuple[list[ir.Function], set[str]] | None:
        """The functions that walks of these entries may come to, and the files; None if it is more code than ``most``
        pieces."""
        met = self._met(starts, lambda _, met: len(met.nodes) > most)
        if met.found:
            return None
        return [each for node in met.nodes for each in node.functions], {node.path for node in met.nodes}

    def paths(self, starts: Iterable[Start]) -> set[str]:
        """The files that walks of these entries may go through."""
        return {node.path for node in self._met(starts).nodes}

    def _met(self, starts: Iterable[Start], until: Callable[[_Node, _Met], bool] | None = None) -> _Met:
        met = _Met()
        for module, function, cls in starts:
            met.add(self._own_code(module))
            if function is not None:
                met.add(self._function(function))
            if cls is not None:
                self._find(cls, met)
        while met.waiting and not met.found:
            node = met.waiting.pop()
            self._meet(node, met)
            met.found = until is not None and until(node, met)
        return met

    def _alarmed(self, node: _Node, met: _Met) -> bool:
        kind = self._alarms.get(node, _NO_ALARM)
        return kind is None or kind in met.classes

    def _hazardous(self, means: int) -> bool:
        found = self._judged.get(means)
        if found is None:
            found = self._judged[means] = any(danger.within(used(Means(means))) for danger in self._dangers)
        return found

    def _meet(self, node: _Node, met: _Met) -> None:
        met.means |= node.means
        for code in node.codes:
            met.add(code)
        for cls in node.classes:
            self._find(cls, met)
        met.computes = met.computes or node.computes
        met.texts |= node.texts
        names = node.names | met.texts if met.computes else node.names
        for name in names - met.names:
            met.names.add(name)
            for kind in self._having.get(name, ()):
                if kind in met.classes:
                    self._find_members(kind, (name,), met)
        if node.own and node.cls is not None:
            known = met.own.setdefault(node.cls, set())
            fresh = node.own - known
            known |= fresh
            for kind in met.below.get(node.cls, ()) if fresh else ():
                self._find_members(kind, kind.members.keys() & fresh, met)

    def _find(self, found: _Node | ClassRef, met: _Met) -> None:
        """Some code may run; or an object of a class may be there: what is asked of unknown objects may be its own."""
        if isinstance(found, _Node):
            met.add(found)
            return
        kind = self._kind(found)
        if kind not in met.classes:
            met.classes.add(kind)
            asked = kind.members.keys() & met.names
            for above in kind.above:
                met.below.setdefault(above, []).append(kind)
                if above in met.own:
                    asked |= kind.members.keys() & met.own[above]
            self._find_members(kind, asked, met)

    def _find_members(self, kind: _Kind, names: Iterable[str], met: _Met) -> None:
        for name in names:
            for member in kind.members[name]:
                self._find(member, met)

    # Classes and code

    def _kind(self, ref: ClassRef) -> _Kind:
        found = self._kinds.get(ref)
        if found is None:
            found = self._kinds[ref] = _Kind(self.project.mro(ref), {})
            for name, (_, method) in self.project.methods(ref).items():
                if name == "__init__" or self.heat.followed(method) or "getattr" in method.words:
                    found.members.setdefault(name, []).append(self._function(method))
            for owner in found.above:
                bases = [part for base in owner.cls.bases for part in walk(base.value)]
                found.members.setdefault("__init__", []).append(self._code(owner.cls, _Code(owner.module, bases)))
                for name, value in _values(owner.cls):
                    node = self._code(value, _Code(owner.module, _deep(value)))
                    found.members.setdefault(name, []).append(node)
                for inner in owner.cls.body:
                    if isinstance(inner, ir.Class):
                        found.members.setdefault(inner.name, []).append(ClassRef(owner.module, inner))
            for name in found.members:
                self._having.setdefault(name, []).append(found)
        return found

    def _function(self, function: ir.Function) -> _Node:
        node = self._nodes.get(id(function))
        if node is not None:
            return node
        module, cls = self._homes[id(function)]
        names = collect(function.body, function.params, function.words)
        imports = dict(self._imports(module, function))
        local = frozenset(names.bound) - imports.keys() - names.outer
        inner = {type(each) for each in statements(function.body, into=True)}
        cls = None if ir.Class in inner else cls  # then ``self`` may be an object of another one
        parts = _parts((function,))
        made = self._code(function, _Code(module, parts, cls, local, imports, ir.Continue in inner))
        within = (each for each, _ in definitions(function.body)) if ir.Function in inner else ()
        made.functions = (function, *within)
        return made

    def _imports(self, module: ir.Module, function: ir.Function) -> Iterator[tuple[str, Binding]]:
        for statement in statements(function.body, into=True):
            for name, target in statement.bindings if isinstance(statement, ir.Import) else ():
                if name != "*":
                    yield name, self.project.imported(module, target)

    def _own_code(self, module: ir.Module) -> _Node:
        node = self._nodes.get(id(module))
        if node is None:
            leaves = any(isinstance(each, ir.Continue) for each in statements(module.body))
            node = self._code(module, _Code(module, _parts(module.body, own=True), leaves=leaves))
        return node

    def _code(self, owner: object, code: _Code) -> _Node:
        node = self._nodes.get(id(owner))
        if node is None:
            node = self._nodes[id(owner)] = _Node(code.module.path, int(self._said(code)), cls=code.cls)
            bases: set[int] = {id(part.base) for part in code.parts if isinstance(part, ir.Attr)}
            for part in code.parts:
                self._refer(part, code, node, id(part) in bases)
        return node

    # What code says and refers to

    def _said(self, code: _Code) -> int:
        """The means that the identifiers and texts of some code speak of."""
        words: set[str] = set()
        texts: set[str] = set()
        found = 0
        for part in code.parts:
            if isinstance(part, ir.Name):
                words.add(part.id)
            elif isinstance(part, ir.Attr):
                words.add(part.name)
                if part.name in ("step", "update") and self._is_scaler(part.base, code.module):
                    found |= Means.SCALER
            elif isinstance(part, ir.Const) and isinstance(part.value, str):
                texts.add(part.value)
            elif isinstance(part, ir.Call):
                if isinstance(part.func, ir.Attr) and part.func.name == "scale":
                    found |= Means.SCALER
                if any(arg.keyword == "cache_enabled" for arg in part.args):
                    found |= Means.UNCACHED
        if "cache_enabled" in texts:  # perhaps a dict that is unpacked
            found |= Means.UNCACHED
        if "getattr" in words:
            words |= texts
        if not words.isdisjoint(_HANDS_OVER) and any(map(POOL.search, words)):
            found |= Means.HANDOVER
        if any(map(_CLIP.search, words)):
            found |= Means.CLIP
        if not _DTYPES.isdisjoint(words | texts):
            found |= Means.DTYPE
        for word in words:
            found |= _BITS.get(word, 0) | self._aliases.get(word, 0)
        if code.leaves and any(map(FINITE.search, words)):
            found |= Means.LEAVE_OUT
        return found

    def _is_scaler(self, node: ir.Expr, module: ir.Module) -> bool:
        """Whether something is called a scaler, or used like one in its module."""
        if Heat.scales(_chain(node)):
            return True
        if module.words.isdisjoint(("scale", "unscale_")):
            return False
        used = self.heat.methods(module).get(dotted(node), frozenset())
        return not used.isdisjoint(("scale", "unscale_"))

    def _refer(self, part: ir.Expr, code: _Code, node: _Node, is_base: bool) -> None:
        if isinstance(part, ir.Name):
            found = self._resolved(part, code)
            if found is not None:
                self._bind(found, node, is_base)
        elif isinstance(part, ir.Attr):
            self._attribute(part, code, node, is_base)
        elif isinstance(part, ir.Call) and last_word(part.func) in _NAMING:
            self._named(part, node)
        elif isinstance(part, ir.Const) and isinstance(part.value, str) and part.value.isidentifier():
            node.texts.add(part.value)

    def _named(self, call: ir.Call, node: _Node) -> None:
        """The attributes that ``getattr`` and its kind ask for: by texts, or by what is computed."""
        place = _NAMING[last_word(call.func)]
        for arg in call.args[place]:
            if isinstance(arg.value, ir.Const) and isinstance(arg.value.value, str):
                node.names.add(arg.value.value)
            else:
                node.computes = True

    def _attribute(self, part: ir.Attr, code: _Code, node: _Node, is_base: bool) -> None:
        base = part.base
        if code.cls is not None and isinstance(base, ir.Name) and base.id in ("self", "cls"):
            node.own.add(part.name)
            return
        if isinstance(base, ir.Call) and isinstance(base.func, ir.Name) and base.func.id == "super":
            for above in self.project.mro(code.cls)[1:] if code.cls is not None else ():
                node.codes += (each for each in self._kind(above).members.get(part.name, ()) if isinstance(each, _Node))
        found = self._resolved(base, code)
        if found is None or isinstance(found, (Unknown, ValueRef)):
            node.names.add(part.name)
        else:
            self._bind(self.project.member(found, part.name), node, is_base)

    def _resolved(self, expr: ir.Expr, code: _Code) -> Binding | None:
        """What a chain of names means; None for all else."""
        if isinstance(expr, ir.Name):
            if expr.id in code.imports:
                return code.imports[expr.id]
            return None if expr.id in code.local else self.project.lookup(code.module, expr.id)
        if isinstance(expr, ir.Attr):
            base = self._resolved(expr.base, code)
            return None if base is None else self.project.member(base, expr.name)
        return None

    def _bind(self, binding: Binding, node: _Node, is_base: bool) -> None:
        if isinstance(binding, Alternatives):
            for option in binding.options:
                self._bind(option, node, is_base)
        elif isinstance(binding, FunctionRef):
            for function in (binding.function, *self.heat.dispatched(binding.function)):
                if self.heat.followed(function):
                    node.codes.append(self._function(function))
        elif isinstance(binding, ClassRef):
            if not is_base:
                node.classes.append(binding)
        elif isinstance(binding, ValueRef):
            node.codes.append(self._code(binding.expr, _Code(binding.module, _deep(binding.expr))))


def _chain(node: ir.Expr) -> Iterator[str]:
    """The words of a chain of attributes, subscripts and calls, without what the calls are given."""
    while isinstance(node, (ir.Attr, ir.Subscript, ir.Call)):
        if isinstance(node, ir.Subscript):
            yield from words_in(node.index)
        yield last_word(node)
        node = node.func if isinstance(node, ir.Call) else node.base
    yield last_word(node)


def _values(cls: ir.Class) -> Iterator[tuple[str, ir.Expr]]:
    """What a class assigns to its names."""
    for statement in statements(cls.body):
        for target in statement.targets if isinstance(statement, ir.Assign) else ():
            if isinstance(target, ir.Name) and isinstance(statement, ir.Assign):
                yield target.id, statement.value


def _parts(body: Iterable[ir.Stmt], own: bool = False) -> list[ir.Expr]:
    """All expressions that statements evaluate, the bodies of definitions and lambdas included, or (``own``) without
    definitions.
    """
    found: list[ir.Expr] = []
    for node in statements(body, into=not own):
        if isinstance(node, ir.Function) and not own:
            roots: Iterable[ir.Expr] = (*node.decorators, *(p.default for p in node.params if p.default is not None))
        elif own and isinstance(node, (ir.Function, ir.Class)):
            continue
        else:
            roots = () if isinstance(node, (ir.Declare, ir.Try)) else expressions(node)
        for root in roots:
            found += _deep(root)
    return found


def _deep(expression: ir.Expr) -> list[ir.Expr]:
    """All expressions in one, the bodies of lambdas included, but not what is only asked of types."""
    found: list[ir.Expr] = []
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        found.append(part)
        if isinstance(part, (ir.Name, ir.Const)):
            continue  # most are leaves
        if isinstance(part, ir.Attr):
            waiting.append(part.base)
            continue
        if isinstance(part, ir.Lambda):
            found += _parts(part.function.body)
        if (
            isinstance(part, ir.Call)
            and isinstance(part.func, ir.Name)
            and part.func.id in ("isinstance", "issubclass")
        ):
            waiting += [arg.value for arg in part.args[:1]]
        else:
            waiting += children(part)
    return found
