"""Lowered modules, kept from one run to the next by what their source says.

A commit that changes three files has the rest of the project read for context, and most of that was read before. What
is kept are pickles, since making the objects anew from anything else takes as long as lowering does (measured on 139
files with 1.5 MB of source: 0.21 s to lower, 0.05 s to unpickle). Long bodies of functions are pickles of their own,
which are only looked into where somebody asks for the body: in a check of three files for one in four. No pickle is
believed to name anything but the classes of ``ir``.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, get_args

from amp_audit import kept
from amp_audit.records import replace
from amp_audit.static.source import ir
from amp_audit.static.source.lowering import lower
from amp_audit.static.source.sources import Source

MOST, MOST_BYTES = 10_000, 256_000_000
"""So many modules are kept, and they take no more bytes than this on the disk."""

_PROTOCOL = 5
_LONG = 600
"""Bytes of a body that is kept by itself: to open a pickle takes as long as to read so many."""


class Shelf:
    """The lowered modules in a folder."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def load(self, source: Source) -> ir.Module | None:
        """The module of a source, if it is there and whole."""
        name = self._name(source)
        data = kept.load_bytes(self.where, name)
        if data is None:
            return None
        try:
            module = _Unpickler(data, source).load()
        except Exception:  # whatever stands there instead of a pickle: it is not there
            return None
        if not isinstance(module, ir.Module):
            return None
        kept.use(self.where, name)
        return replace(module, path=source.path)

    def store(self, source: Source, module: ir.Module) -> None:
        """Keep a module; where that is impossible, nothing happens."""
        try:
            file = io.BytesIO()
            _Pickler(file, module).dump(module)
        except (RecursionError, MemoryError):
            return
        kept.store_bytes(self.where, self._name(source), file.getvalue())

    def tidy(self) -> None:
        """Forget the modules used longest ago where there are too many."""
        kept.forget(self.where, MOST, MOST_BYTES)

    def _name(self, source: Source) -> str:
        return kept.digest(f"{kept.state()}\0{source.text}".encode("utf-8", "surrogatepass"))


class _Pickler(pickle.Pickler):
    """Keeps bodies by themselves, but for those that hold other functions, which the module knows, too."""

    def __init__(self, file: io.BytesIO, module: ir.Module) -> None:
        super().__init__(file, _PROTOCOL)
        names = [function.qualname for function, _ in module.definitions]
        self._holding = {name.rpartition(".<locals>.")[0] for name in names}

    def reducer_override(self, value: object) -> Any:
        if type(value) is not ir.Function or value.name == "<lambda>" or value.qualname in self._holding:
            return NotImplemented
        body = pickle.dumps(value.body, _PROTOCOL)
        if len(body) < _LONG:
            return NotImplemented
        return _function, (body, *(getattr(value, name) for name in _BESIDE))


_BESIDE = [each.name for each in fields(ir.Function) if each.name not in ("body", "later")]


def _function(body: bytes, *beside: object) -> ir.Function:
    """Stands in pickles for ``_Unpickler.function``."""
    raise NotImplementedError


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, source: Source) -> None:
        super().__init__(io.BytesIO(data))
        self.source = source

    def function(self, body: bytes, *beside: Any) -> ir.Function:
        """A function whose body is read later."""
        found = object.__new__(ir.Function)
        parts = dict(zip(_BESIDE, beside))
        for name, value in (*parts.items(), ("later", partial(_body, self.source, parts["at"], body))):
            setattr(found, name, value)
        return found

    def find_class(self, module: str, name: str) -> object:
        if module == __name__ and name == _function.__name__:
            return self.function
        if module == ir.__name__ and name in _CLASSES:
            return _CLASSES[name]
        if (module, name) in _BUILT_IN:
            return _BUILT_IN[(module, name)]
        raise pickle.UnpicklingError(f"{module}.{name}")


def _body(source: Source, at: int, data: bytes) -> tuple[ir.Stmt, ...]:
    """The body of a function, lowered anew where something else stands there."""
    try:
        body = _Unpickler(data, source).load()
    except Exception:
        body = None
    if isinstance(body, tuple) and all(isinstance(each, _STATEMENTS) for each in body):
        return body
    return next(each.body for each, _ in lower(source.path, source.text).definitions if each.at == at)


_STATEMENTS = get_args(ir.Stmt)
_CLASSES = {name: value for name, value in vars(ir).items() if getattr(value, "__module__", "") == ir.__name__}
_BUILT_IN: dict[tuple[str, str], object] = {
    ("builtins", "complex"): complex,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "Ellipsis"): ...,
}
