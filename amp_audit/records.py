"""Immutable records that are cheap to make, for what is made by the hundred thousand: nodes, values, events, states.

``@dataclass(frozen=True)`` sets each field through ``object.__setattr__``, which takes three times as long (measured: a
tenth of a check). Here the type checker keeps the promise, and at run time these are plain dataclasses that hash by
their fields. ``replace`` is that of ``dataclasses``, written out once for each class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as record
    from dataclasses import replace
else:
    import dataclasses
    import reprlib

    def record(*, eq=True, slots=False, frozen=True):
        """``dataclass`` with these options; ``frozen`` is not looked after. Raises TypeError for a class that asks for
        more: fields that are no parameters, or only by name, or not part of the hash, or a ``__post_init__``.

        ``dataclass`` compiles each method by itself, which is half of what loading this package takes; here the methods
        of a class are compiled together.
        """

        def made(cls):
            own = vars(cls).keys()
            if "__repr__" not in own:
                cls.__repr__ = _repr
            if cls.__doc__ is None:
                cls.__doc__ = cls.__name__  # else ``dataclass`` works out a signature
            made = dataclasses.dataclass(init=False, eq=False, repr=False, slots=slots)(cls)
            given = dataclasses.fields(made)
            if hasattr(made, "__post_init__") or any(not f.init or f.kw_only or f.hash is False for f in given):
                raise TypeError(f"{made.__qualname__}: record has no such fields")
            methods = [_init(given), *(_comparison([f.name for f in given if f.compare]) if eq else ())]
            space = {f"_{f.name}": _default(f) for f in given}
            space["__FACTORY__"] = __FACTORY__
            exec("\n".join(methods), space)
            for name in ("__init__", "__eq__", "__hash__"):
                if name in space and name not in own:
                    space[name].__qualname__ = f"{made.__qualname__}.{name}"
                    setattr(made, name, space[name])
            return made

        return made

    __FACTORY__ = object()

    def _default(field):
        return field.default if field.default_factory is dataclasses.MISSING else field.default_factory

    def _init(given):
        """A field's default stands in the names of the code, with an underscore before the field's own."""
        params, lines = [], []
        for field in given:
            name, value = field.name, field.name
            if field.default_factory is not dataclasses.MISSING:
                params.append(f"{name}=__FACTORY__")
                value = f"_{name}() if {name} is __FACTORY__ else {name}"
            else:
                params.append(name if field.default is dataclasses.MISSING else f"{name}=_{name}")
            lines.append(f"    self.{name} = {value}")
        return "\n".join([f"def __init__({', '.join(['self', *params])}):", *lines, "    return None"])

    def _comparison(names):
        mine, other = ("".join(f"{of}.{name}, " for name in names) for of in ("self", "other"))
        yield "def __eq__(self, other):"
        yield f"    return ({mine}) == ({other}) if other.__class__ is self.__class__ else NotImplemented"
        yield f"def __hash__(self):\n    return hash(({mine}))"

    @reprlib.recursive_repr()
    def _repr(self):
        """That of ``dataclasses``, one for all classes: to make it for each takes a fifth of the time they take."""
        fields = (f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
        return f"{type(self).__qualname__}({', '.join(fields)})"

    def replace(thing, /, **changes):
        """A copy of a record with these fields changed."""
        made = _copier(type(thing))(thing)
        for name, value in changes.items():
            object.__setattr__(made, name, value)
        return made

    _copiers = {}

    def _copier(cls):
        found = _copiers.get(cls)
        if found is None:
            shape = "    put(made, {0!r}, old.{0})" if cls.__dataclass_params__.frozen else "    made.{0} = old.{0}"
            lines = [shape.format(field.name) for field in dataclasses.fields(cls)]
            space = {"new": object.__new__, "put": object.__setattr__, "cls": cls}
            exec("\n".join(["def copy(old):", "    made = new(cls)", *lines, "    return made"]), space)
            found = _copiers[cls] = space["copy"]
        return found


__all__ = ["record", "replace"]
