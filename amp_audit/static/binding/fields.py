"""Dataclasses and their like: what their fields hold where nobody says otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from amp_audit.static.binding.project import ClassRef, Project
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import last_word, parts, statements

_DECORATORS = frozenset(
    {
        "dataclasses.dataclass",
        "pydantic.dataclasses.dataclass",
        *(f"attrs.{name}" for name in ("define", "frozen", "mutable")),
        *(f"attr.{name}" for name in ("define", "frozen", "mutable", "dataclass", "s")),
    }
)
_BASES = ("pydantic.BaseModel", "typing.NamedTuple")
_FIELDS = frozenset({"field", "Field", "ib", "attrib"})


class Fields:
    """The defaults of the dataclasses of a project, without those of fields that its code writes to."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._written: frozenset[str] | None = None
        self._defaults: dict[tuple[str, int], Mapping[str, tuple[ClassRef, ir.Expr]]] = {}

    def defaults(self, ref: ClassRef) -> Mapping[str, tuple[ClassRef, ir.Expr]]:
        """Each field's default with the class that states it; nothing for a class that is no dataclass."""
        if ref.key not in self._defaults:
            found: dict[str, tuple[ClassRef, ir.Expr]] = {}
            for owner in reversed(self.project.mro(ref)) if self._is_dataclass(ref) else ():
                stated = ((name, self._told(owner, value)) for name, value in _stated(owner.cls))
                found.update((name, (owner, value)) for name, value in stated if value is not None)
            self._defaults[ref.key] = {name: one for name, one in found.items() if self._stays(name)}
        return self._defaults[ref.key]

    def of_instance(self, ref: ClassRef, call: ir.Call) -> Mapping[str, tuple[ClassRef, ir.Expr]]:
        """The defaults that hold in what a call of the class makes: none where it hands over values by position, or
        values that cannot be told.
        """
        if any(arg.keyword is None for arg in call.args):
            return {}
        given = {arg.keyword for arg in call.args}
        return {name: one for name, one in self.defaults(ref).items() if name not in given}

    def _told(self, owner: ClassRef, value: ir.Expr) -> ir.Expr | None:
        """What a field holds at first; of ``field(...)`` what it names as default, or what its factory makes, where
        that is an instance of a class of the project: collections are made to be filled.
        """
        if not isinstance(value, ir.Call) or last_word(value.func) not in _FIELDS:
            return value
        given = {arg.keyword: arg.value for arg in value.args}
        factory = given.get("default_factory", given.get("factory"))
        made = given.get("default") if factory is None else _made_by(factory)
        if factory is None or not isinstance(made, ir.Call):
            return made
        return made if isinstance(self.project.resolve(owner.module, made.func), ClassRef) else None

    def _is_dataclass(self, ref: ClassRef) -> bool:
        plain = (node.func if isinstance(node, ir.Call) else node for node in ref.cls.decorators)
        decorated = any(self.project.qualified(ref.module, node) in _DECORATORS for node in plain)
        return decorated or any(self.project.is_subclass(ref, base) for base in _BASES)

    def _stays(self, name: str) -> bool:
        if self._written is None:
            self._written = frozenset(_written(self.project))
        return name not in self._written and "" not in self._written


def _stated(cls: ir.Class) -> Iterator[tuple[str, ir.Expr]]:
    """The fields in a class's own body and what they are set to."""
    for node in cls.body:
        if isinstance(node, ir.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ir.Name))


def _made_by(factory: ir.Expr) -> ir.Expr | None:
    """What a call of a factory gives: an instance of a class, or what a lambda returns."""
    if not isinstance(factory, ir.Lambda):
        return ir.Call(factory.at, factory, ())
    body = factory.function.body
    value = body[0].value if len(body) == 1 and isinstance(body[0], ir.Return) else None
    return value if isinstance(value, (ir.Call, ir.Const)) else None


def _written(project: Project) -> Iterator[str]:
    """The attributes that the code assigns to; "" for those that ``setattr`` writes by names not spelled out."""
    for module in project.modules.values():
        for node in statements(module.body, into=True):
            targets = node.targets if isinstance(node, ir.Assign) else ()
            yield from (target.name for target in targets if isinstance(target, ir.Attr))
            if isinstance(node, ir.Augment) and isinstance(node.target, ir.Attr):
                yield node.target.name
        for part in parts(module.body, into=True) if "setattr" in module.words else ():
            if isinstance(part, ir.Call) and last_word(part.func) == "setattr" and len(part.args) > 1:
                name = part.args[1].value
                yield name.value if isinstance(name, ir.Const) and isinstance(name.value, str) else ""
