"""The facts of many modules -> names resolved across files, classes and imports."""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from amp_audit.records import record
from amp_audit.static.binding.canonical import STAR_EXPORTS, canonical
from amp_audit.static.binding.names import Assigned, Bound, Imported, Names, collect
from amp_audit.static.source import ir
from amp_audit.static.source.layout import Layout
from amp_audit.static.source.pins import Newest
from amp_audit.static.source.sources import SourceError, Unreadable, find, read_bytes


@record(frozen=True, slots=True)
class External:
    """Something of a library, by its canonical dotted name: ``torch.amp.GradScaler``, ``builtins.print``."""

    dotted: str


@record(frozen=True, slots=True, eq=False)
class _Placed:
    """Something at an ordinal of a module; equal when module path and ordinal are.

    No abstract base class: of these every ``isinstance`` takes ten times as long.
    """

    module: ir.Module

    @property
    def key(self) -> tuple[str, int]:
        """The path and the ordinal."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, _Placed) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@record(frozen=True, slots=True, eq=False)
class FunctionRef(_Placed):
    """A function of the project."""

    function: ir.Function

    @property
    def key(self) -> tuple[str, int]:
        return (self.module.path, self.function.at)


@record(frozen=True, slots=True, eq=False)
class ClassRef(_Placed):
    """A class of the project."""

    cls: ir.Class

    @property
    def key(self) -> tuple[str, int]:
        return (self.module.path, self.cls.at)


@record(frozen=True, slots=True, eq=False)
class ValueRef(_Placed):
    """A variable of a module or class that is assigned exactly once (in each arm, within ``Alternatives``)."""

    expr: ir.Expr

    @property
    def key(self) -> tuple[str, int]:
        return (self.module.path, self.expr.at)


@record(frozen=True, slots=True)
class ModuleRef:
    """A module of the project; ``module`` is None for a folder without ``__init__.py``, or one not read."""

    dotted: str
    module: ir.Module | None

    @property
    def key(self) -> tuple[str, int]:
        """The dotted name, and which module is there."""
        return (self.dotted, id(self.module))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModuleRef) and self.dotted == other.dotted and self.module is other.module

    def __hash__(self) -> int:
        return hash(self.dotted)


@record(frozen=True, slots=True)
class Alternatives:
    """Several bindings of one name, in the order of the source: import fallbacks, version gates."""

    options: tuple[Binding, ...]


@record(frozen=True, slots=True)
class Unknown:
    """Nothing certain is known."""


Binding: TypeAlias = External | FunctionRef | ClassRef | ModuleRef | ValueRef | Alternatives | Unknown

Definitions: TypeAlias = tuple[tuple[ir.Function, ir.Class | None], ...]

UNKNOWN = Unknown()
_BUILTINS = frozenset(name for name in dir(builtins) if not name.startswith("_"))
_MODULE_CLASSES = frozenset({"lightning.pytorch.LightningModule", "transformers.PreTrainedModel"})


class Scope:
    """The names of one function, seen from inside it; ``outer`` is the function around it, if any."""

    def __init__(self, function: ir.Function, outer: Scope | None = None) -> None:
        self.function = function
        self.outer = outer
        self._names: Names | None = None

    @property
    def names(self) -> Names:
        if self._names is None:
            self._names = collect(self.function.body, self.function.params, self.function.words)
        return self._names


class Project:
    """Modules that are read together; ``root`` bounds the search for what they import.

    ``modules`` maps ``ir.Module.path`` to the module. ``newest`` are the newest releases that may run them, where the
    project bounds them.
    """

    def __init__(self, modules: Iterable[ir.Module], root: Path, newest: Newest | None = None) -> None:
        self.newest = newest or Newest()
        self.modules = {module.path: module for module in modules}
        self.layout = Layout(self.modules, root)
        self._by_path = {os.path.abspath(path): module for path, module in self.modules.items()}
        self._names: dict[tuple[str, int], Names] = {}
        self._folders: dict[str, str] = {}
        self._found: dict[tuple[str, str], Binding] = {}
        self._open: set[tuple[str, str]] = set()
        self._imported: dict[tuple[str, str], Binding] = {}
        self._members: dict[tuple[Hashable, str], Binding] = {}
        self._elsewhere: dict[str, bool] = {}
        self.read_everything = False
        """Whether an answer rests on every file below the root."""
        self._mro: dict[tuple[str, int], tuple[ClassRef, ...]] = {}
        self._methods: dict[tuple[str, int], dict[str, tuple[ClassRef, ir.Function]]] = {}
        self._derived: dict[tuple[tuple[str, int], str], bool] = {}

    def name(self, module: ir.Module) -> str:
        """The dotted name of a module: ``pkg.train`` for ``pkg/train.py``."""
        return self.layout.name(module.path)

    def definitions(self, module: ir.Module) -> Definitions:
        """Every function of a module, with the class whose body it stands in directly."""
        return module.definitions

    def mentioned_elsewhere(self, word: str) -> bool:
        """Whether a word stands in a file of the project that was not read into it, so that nothing can be said about
        what is done with it nowhere."""
        if word not in self._elsewhere:
            pattern = re.compile(rf"\b{re.escape(word)}\b".encode())
            self._elsewhere[word] = any(pattern.search(data) for data in self._unread())
        return self._elsewhere[word]

    def _unread(self) -> Iterator[bytes]:
        self.read_everything = True
        try:
            paths = find([self.layout.root])
        except SourceError:
            return
        for path in paths:
            if os.path.abspath(path) not in self._by_path:
                try:
                    yield read_bytes(path)
                except Unreadable:
                    continue

    # Names of a module

    def lookup(self, module: ir.Module, name: str) -> Binding:
        """What a module-level name means, builtins included."""
        found = self._own(module, name)
        if isinstance(found, Unknown) and name in _BUILTINS and name not in self.names(module).bound:
            return External(f"builtins.{name}")
        return found

    def _own(self, module: ir.Module, name: str) -> Binding:
        """What a module itself binds or re-exports under a name."""
        key = (module.path, name)
        if key in self._found:
            return self._found[key]
        if key in self._open:  # modules that import each other
            return UNKNOWN
        self._open.add(key)
        try:
            names = self.names(module)
            if name in names.bound:
                found = self._choose(module, names, name)
            else:
                found = self._from_stars(module, names.stars, name)
        finally:
            self._open.discard(key)
        self._found[key] = found
        return found

    def names(self, module: ir.Module) -> Names:
        """What the module's own code binds."""
        key = (module.path, -1)
        if key not in self._names:
            self._names[key] = collect(module.body, words=module.words)
        return self._names[key]

    def _choose(self, module: ir.Module, names: Names, name: str, scope: Scope | None = None) -> Binding:
        candidates = names.candidates(name)
        options = [self._source(module, bound, scope) for bound in candidates]
        if len(candidates) < len(names.bound[name]):  # a variable with a history has no one value
            options = [UNKNOWN if isinstance(option, ValueRef) else option for option in options]
        return _alternatives(options)

    def _source(self, module: ir.Module, bound: Bound, scope: Scope | None) -> Binding:
        source = bound.source
        if isinstance(source, Imported):
            return self.imported(module, source.target)
        if isinstance(source, ir.Function):
            return FunctionRef(module, source)
        if isinstance(source, ir.Class):
            return ClassRef(module, source)
        return self._assigned(module, source, scope)

    def _assigned(self, module: ir.Module, source: Assigned, scope: Scope | None) -> Binding:
        if source.expr is None:
            return UNKNOWN
        if isinstance(source.expr, (ir.Name, ir.Attr, ir.IfExp)):
            found = self.resolve(module, source.expr, scope)
            if _is_alias(found):
                return found
        return ValueRef(module, source.expr)

    def _from_stars(self, module: ir.Module, stars: tuple[str, ...], name: str) -> Binding:
        for target in reversed(stars):
            source = self.imported(module, target)
            if isinstance(source, ModuleRef) and source.module is not None and _is_exported(name):
                found = self._own(source.module, name)
            elif isinstance(source, External) and name in STAR_EXPORTS.get(source.dotted, ()):
                found = self.member(source, name)
            else:
                found = UNKNOWN
            if not isinstance(found, Unknown):
                return found
        return UNKNOWN

    # Imports

    def imported(self, module: ir.Module, target: str) -> Binding:
        """What an import target (``ir.Import.bindings``) means in ``module``."""
        key = (module.path, target)
        found = self._imported.get(key)
        if found is None:
            found = self._import(module, target)
            if self._is_settled(found):
                self._imported[key] = found
        return found

    def _is_settled(self, found: Binding) -> bool:
        """Whether an answer is always the same: while others are open it may be unknown only for now, and folders go by
        a name that others may share."""
        return not self._open and not (isinstance(found, ModuleRef) and found.module is None)

    def _import(self, module: ir.Module, target: str) -> Binding:
        dotted = target.lstrip(".")
        dots = len(target) - len(dotted)
        parts = dotted.split(".") if dotted else []
        if dots:
            return self._descend(self._place(self.layout.relative(module.path, dots)), parts)
        place = self.layout.top(module.path, parts[0])
        if place is None:
            return External(canonical(dotted))
        return self._descend(self._place(place), parts[1:])

    def _place(self, path: str) -> ModuleRef:
        """The module of a file or folder."""
        init = os.path.join(path, "__init__.py")
        path = init if self.layout.is_file(init) else path
        module = self._by_path.get(path)
        dotted = self.layout.name(path)
        if module is None:
            self._folders[dotted] = os.path.dirname(path) if path.endswith("__init__.py") else path
        return ModuleRef(dotted, module)

    def _descend(self, binding: Binding, names: Iterable[str]) -> Binding:
        for name in names:
            binding = self.member(binding, name)
        return binding

    # Members

    def member(self, binding: Binding, attr: str) -> Binding:
        """An attribute of a module or class, inherited ones included; Unknown for all else."""
        if isinstance(binding, External):
            return External(canonical(f"{binding.dotted}.{attr}"))
        if isinstance(binding, (ModuleRef, ClassRef)):
            return self._member_of(binding, attr)
        if isinstance(binding, Alternatives):
            return _alternatives([self.member(option, attr) for option in binding.options if not _is_none(option)])
        return UNKNOWN

    def _member_of(self, binding: ModuleRef | ClassRef, attr: str) -> Binding:
        key = (binding.key, attr)
        found = self._members.get(key)
        if found is None:
            if isinstance(binding, ModuleRef):
                found = self._module_member(binding, attr)
            else:
                found = self._class_member(binding, attr)
            if self._is_settled(found) and self._is_settled(binding):
                self._members[key] = found
        return found

    def _module_member(self, binding: ModuleRef, attr: str) -> Binding:
        found: Binding = UNKNOWN
        if binding.module is not None:
            found = self._own(binding.module, attr)
        if isinstance(found, Unknown):
            folder = self._folder(binding)
            place = self.layout.child(folder, attr) if folder is not None else None
            return self._place(place) if place is not None else UNKNOWN
        return found

    def _folder(self, binding: ModuleRef) -> str | None:
        if binding.module is None:
            return self._folders.get(binding.dotted)
        path = os.path.abspath(binding.module.path)
        return os.path.dirname(path) if os.path.basename(path) == "__init__.py" else None

    def _class_member(self, binding: ClassRef, attr: str) -> Binding:
        for owner in self.mro(binding):
            names = self._class_names(owner)
            if attr in names.bound:
                return self._choose(owner.module, names, attr)
        return UNKNOWN

    def _class_names(self, ref: ClassRef) -> Names:
        if ref.key not in self._names:
            self._names[ref.key] = collect([s for s in ref.cls.body if not _is_setter(s)], words=ref.cls.words)
        return self._names[ref.key]

    # Classes

    def bases(self, ref: ClassRef) -> tuple[Binding, ...]:
        """The direct bases, in order; Unknown stands for what cannot be resolved."""
        plain = [arg.value for arg in ref.cls.bases if arg.keyword is None and not arg.star]
        return tuple(self.resolve(ref.module, base) for base in plain)

    def mro(self, ref: ClassRef) -> tuple[ClassRef, ...]:
        """The classes of the project in which an attribute is looked for: left to right, a shared base once, last."""
        if ref.key not in self._mro:
            self._mro[ref.key] = (ref,)  # a class that is its own base ends here
            order = [ref, *(above for base in self._class_bases(ref) for above in self.mro(base))]
            self._mro[ref.key] = tuple(dict.fromkeys(reversed(order)))[::-1]
        return self._mro[ref.key]

    def _class_bases(self, ref: ClassRef) -> Iterator[ClassRef]:
        for base in self.bases(ref):
            options = base.options if isinstance(base, Alternatives) else (base,)
            yield from (option for option in options if isinstance(option, ClassRef))

    def methods(self, ref: ClassRef) -> dict[str, tuple[ClassRef, ir.Function]]:
        """Every method by name, inherited ones included, with the class in whose body it stands."""
        found = self._methods.get(ref.key)
        if found is not None:
            return found
        found = self._methods[ref.key] = {}
        for owner in self.mro(ref):
            for name, places in self._class_names(owner).bound.items():
                for bound in places:
                    if isinstance(bound.source, ir.Function) and found.get(name, (owner,))[0] == owner:
                        found[name] = (owner, bound.source)
        return found

    def is_subclass(self, ref: ClassRef, dotted: str) -> bool:
        """Whether a class derives from the library class of this canonical name, however far up."""
        key = (ref.key, dotted)
        if key not in self._derived:
            self._derived[key] = self._derives(ref, dotted)
        return self._derived[key]

    def _derives(self, ref: ClassRef, dotted: str) -> bool:
        for owner in self.mro(ref):
            for base in self.bases(owner):
                options = base.options if isinstance(base, Alternatives) else (base,)
                if any(isinstance(each, External) and _derives(each.dotted, dotted) for each in options):
                    return True
        return False

    # Expressions

    def resolve(self, module: ir.Module, expr: ir.Expr, scope: Scope | None = None) -> Binding:
        """What a name, an attribute chain or a choice between them means, seen from ``scope`` (None: the module)."""
        if isinstance(expr, ir.Name):
            return self._name(module, expr.id, scope)
        if isinstance(expr, ir.Attr):
            return self.member(self.resolve(module, expr.base, scope), expr.name)
        if isinstance(expr, ir.IfExp):
            return _alternatives([self.resolve(module, arm, scope) for arm in (expr.body, expr.orelse)])
        return UNKNOWN

    def _name(self, module: ir.Module, name: str, scope: Scope | None) -> Binding:
        while scope is not None:
            if name in scope.names.bound:
                return self._local(module, name, scope)
            scope = scope.outer
        return self.lookup(module, name)

    def _local(self, module: ir.Module, name: str, scope: Scope) -> Binding:
        key = (module.path, f"{scope.function.at}:{name}")
        if key in self._open:  # x = x.y
            return UNKNOWN
        self._open.add(key)
        try:
            return self._choose(module, scope.names, name, scope)
        finally:
            self._open.discard(key)

    def called(self, module: ir.Module, expr: ir.Expr, scope: Scope | None = None) -> str | None:
        """As ``qualified``, for what is called: a name that is None where an import fails is not called there."""
        found = self.resolve(module, expr, scope)
        if isinstance(found, Alternatives):
            found = _alternatives([option for option in found.options if not _is_none(option)])
        return found.dotted if isinstance(found, External) else None

    def qualified(self, module: ir.Module, expr: ir.Expr, scope: Scope | None = None) -> str | None:
        """The canonical dotted name of a library's thing; None for what is not one, or not surely that one."""
        found = self.resolve(module, expr, scope)
        return found.dotted if isinstance(found, External) else None


def _alternatives(options: Iterable[Binding]) -> Binding:
    flat: dict[Binding, None] = {}
    for option in options:
        flat.update(dict.fromkeys(option.options if isinstance(option, Alternatives) else (option,)))
    known = [option for option in flat if not isinstance(option, Unknown)]
    if len(known) == len(flat) == 1:
        return known[0]
    return Alternatives(tuple(flat)) if known else UNKNOWN


def _is_none(binding: Binding) -> bool:
    return isinstance(binding, ValueRef) and isinstance(binding.expr, ir.Const) and binding.expr.value is None


def _is_alias(binding: Binding) -> bool:
    options = binding.options if isinstance(binding, Alternatives) else (binding,)
    return all(isinstance(option, (External, FunctionRef, ClassRef, ModuleRef)) for option in options)


def _is_exported(name: str) -> bool:
    return not name.startswith("_")


def _is_setter(node: ir.Stmt) -> bool:
    return isinstance(node, ir.Function) and any(
        isinstance(decorator, ir.Attr) and decorator.name in ("setter", "deleter") for decorator in node.decorators
    )


def _derives(base: str, dotted: str) -> bool:
    if base == dotted:
        return True
    if dotted != "torch.nn.Module":
        return False
    name = base.rpartition(".")[2]
    return base in _MODULE_CLASSES or (base == f"torch.nn.{name}" and name[:1].isupper())
