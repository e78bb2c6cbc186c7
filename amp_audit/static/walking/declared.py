"""What annotations say of unknown things: the classes of parameters and of fields."""

from __future__ import annotations

import re

from amp_audit.static.binding.project import ClassRef, External, FunctionRef, Project
from amp_audit.static.source import ir
from amp_audit.static.walking.hot import gives_dtype
from amp_audit.static.walking.values import Func, Symbol

_OTHERS = re.compile(r"loss|crit|metric|transform|augment|mixup|process|normali[sz]|token", re.IGNORECASE)
"""What has no weights that matter, although it is declared to be an ``nn.Module``."""


class Declared:
    """The project's classes that unknown things are declared to be of, and which of these are models."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._classes: dict[str, ClassRef] = {}  # by the keys of symbols
        self._models: set[str] = set()

    def note(self, symbol: Symbol, module: ir.Module, annotation: ir.Expr | None) -> None:
        """Remember an annotation, should it name a class."""
        found = self.project.resolve(module, annotation) if isinstance(annotation, (ir.Name, ir.Attr)) else None
        if isinstance(found, ClassRef):
            self._classes[symbol.key] = found
        if found is not None and self._is_module(found) and _OTHERS.search(symbol.text) is None:
            self._models.add(symbol.key)

    def is_model(self, symbol: Symbol) -> bool:
        """Whether it is declared to be an ``nn.Module``, by a name that does not tell otherwise."""
        return symbol.key in self._models

    def _is_module(self, found: object) -> bool:
        if isinstance(found, ClassRef):
            return _OTHERS.search(found.cls.name) is None and self.project.is_subclass(found, "torch.nn.Module")
        return found == External("torch.nn.Module")

    def note_field(self, symbol: Symbol, cls: ClassRef, name: str) -> None:
        """Remember what a class's own body declares a field to be."""
        for node in cls.cls.body:
            if isinstance(node, ir.Declare) and isinstance(node.target, ir.Name) and node.target.id == name:
                self.note(symbol, cls.module, node.annotation)

    def dtype_property(self, base: Symbol, name: str) -> Func | None:
        """The property by which an object of a declared class chooses a dtype."""
        cls = self._classes.get(base.key)
        found = self.project.member(cls, name) if cls is not None else None
        if not isinstance(found, FunctionRef) or not is_property(found.function) or not gives_dtype(found.function):
            return None
        return Func(found.module, found.function, base, {}, cls)


def is_property(function: ir.Function) -> bool:
    return any(decorator_name(d) in ("property", "cached_property") for d in function.decorators)


def decorator_name(node: ir.Expr) -> str:
    """The last word of a name, an attribute, or of what is called."""
    if isinstance(node, ir.Call):
        return decorator_name(node.func)
    return node.name if isinstance(node, ir.Attr) else node.id if isinstance(node, ir.Name) else ""
