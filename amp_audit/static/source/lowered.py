"""Lowered modules, kept from one run to the next by what their source says.

A commit that changes three files has the rest of the project read for context, and most of that was read before. What
is kept are pickles, since making the objects anew from anything else takes as long as lowering does (measured on 139
files with 1.5 MB of source: 0.21 s to lower, 0.05 s to unpickle). No pickle is believed to name anything but the
classes of ``ir``.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path

from amp_audit import kept
from amp_audit.records import replace
from amp_audit.static.source import ir
from amp_audit.static.source.sources import Source

MOST, MOST_BYTES = 10_000, 256_000_000
"""So many modules are kept, and they take no more bytes than this on the disk."""

_PROTOCOL = 5


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
            module = _Unpickler(io.BytesIO(data)).load()
        except Exception:  # whatever stands there instead of a pickle: it is not there
            return None
        if not isinstance(module, ir.Module):
            return None
        kept.use(self.where, name)
        return replace(module, path=source.path)

    def store(self, source: Source, module: ir.Module) -> None:
        """Keep a module; where that is impossible, nothing happens."""
        try:
            data = pickle.dumps(module, _PROTOCOL)
        except (RecursionError, MemoryError):
            return
        kept.store_bytes(self.where, self._name(source), data)

    def tidy(self) -> None:
        """Forget the modules used longest ago where there are too many."""
        kept.forget(self.where, MOST, MOST_BYTES)

    def _name(self, source: Source) -> str:
        return kept.digest(f"{kept.state()}\0{source.text}".encode("utf-8", "surrogatepass"))


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if module == ir.__name__ and name in _CLASSES:
            return _CLASSES[name]
        if (module, name) in _BUILT_IN:
            return _BUILT_IN[(module, name)]
        raise pickle.UnpicklingError(f"{module}.{name}")


_CLASSES = {name: value for name, value in vars(ir).items() if getattr(value, "__module__", "") == ir.__name__}
_BUILT_IN: dict[tuple[str, str], object] = {
    ("builtins", "complex"): complex,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "Ellipsis"): ...,
}
