"""What ``isinstance`` says of values whose class is known."""

from __future__ import annotations

from amp_audit.static.binding.project import ClassRef, External, Project
from amp_audit.static.walking.values import Instance, Items, Literal, Scaler, Symbol, Value

_BUILT_IN = frozenset({"str", "int", "float", "bool", "list", "tuple", "dict", "set", "bytes"})


def is_instance(value: Value, cls: Value, project: Project) -> bool | None:
    """Whether a value is an instance of a class, or of one of several; None where either is not known well enough."""
    if isinstance(cls, Items):
        said = [is_instance(value, each, project) for each in cls.items]
        return True if True in said else None if None in said else False
    if isinstance(value, Literal):
        return _is_literal(value, cls)
    if isinstance(value, Scaler):
        return True if isinstance(cls, External) and cls.dotted.endswith("GradScaler") else None
    if isinstance(value, Symbol):  # what a class of a library made
        return True if isinstance(cls, External) and value.key.startswith(f"{cls.dotted}(") else None
    if isinstance(value, Instance) and value.cls is not None and isinstance(cls, ClassRef):
        return any(owner.key == cls.key for owner in project.mro(value.cls))
    return None


def _is_literal(value: Literal, cls: Value) -> bool | None:
    if isinstance(cls, ClassRef):
        return False
    if not isinstance(cls, External):
        return None
    scope, _, name = cls.dotted.rpartition(".")
    if scope == "builtins":
        return value.kind == name or (value.kind, name) == ("bool", "int") if name in _BUILT_IN else None
    return False if scope.partition(".")[0] in ("torch", "timm", "apex", "accelerate") else None
