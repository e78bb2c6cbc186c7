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

    def record(*, eq=True, **options):
        """``dataclass`` with the same options; only ``frozen`` is not looked after."""

        def made(cls):
            hashed = eq and "__hash__" not in vars(cls)
            if "__repr__" not in vars(cls):
                cls.__repr__ = _repr
            return dataclasses.dataclass(eq=eq, unsafe_hash=hashed, repr=False, **{**options, "frozen": False})(cls)

        return made

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
