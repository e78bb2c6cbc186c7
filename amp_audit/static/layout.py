"""Where modules lie on disk, and what an import there means: dotted names -> files of the project."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from amp_audit.static import ir

LIBRARIES = frozenset({"torch", "numpy", "builtins"})
"""Never taken from the project, though a folder of that name may lie in it."""


class Layout:
    """The files of a project by absolute path.

    An absolute import is looked for as Python would from a script: beside the importing file, then in each folder
    above it up to the root (also in ``src/`` there), last among the packages of the project wherever they lie. Files
    inside a package look above the package first.
    """

    def __init__(self, modules: Iterable[ir.Module], root: Path) -> None:
        self.root = os.path.abspath(root)
        self.files = {os.path.abspath(module.path): module for module in modules}
        self._folders = {folder for path in self.files for folder in _above(path)}
        self._is_package: dict[str, bool] = {}

    def is_package(self, folder: str) -> bool:
        """Whether ``folder`` holds an ``__init__.py``, among the modules or on disk."""
        known = self._is_package.get(folder)
        if known is None:
            init = os.path.join(folder, "__init__.py")
            known = self._is_package[folder] = init in self.files or os.path.isfile(init)
        return known

    def name(self, path: str) -> str:
        """The dotted name of a file or folder, from the top of its package; else from the root."""
        path = os.path.abspath(path)
        top = os.path.dirname(path)
        if not self.is_package(top):
            top = self.root if path.startswith(self.root + os.sep) else top
        while self.is_package(top):
            top = os.path.dirname(top)
        stem = os.path.splitext(os.path.relpath(path, top))[0] if path in self.files else os.path.relpath(path, top)
        parts = stem.split(os.sep)
        return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)

    def child(self, folder: str, name: str) -> str | None:
        """The file (``name.py``, a package's ``__init__.py``) or folder that ``name`` is in ``folder``; or None."""
        base = os.path.join(folder, name)
        for candidate in (os.path.join(base, "__init__.py"), base + ".py"):
            if candidate in self.files:
                return candidate
        return base if base in self._folders else None

    def starts(self, module: ir.Module) -> Iterator[str]:
        """The folders in which an absolute import of ``module`` is looked for, nearest first."""
        own = os.path.dirname(os.path.abspath(module.path))
        top = own
        while self.is_package(top):
            top = os.path.dirname(top)
        for folder in self._upward(top):
            yield folder
            yield os.path.join(folder, "src")
        if top != own:
            yield own

    def _upward(self, folder: str) -> Iterator[str]:
        yield folder
        while folder != self.root and folder.startswith(self.root + os.sep):
            folder = os.path.dirname(folder)
            yield folder

    def relative(self, module: ir.Module, dots: int) -> str:
        """The folder that ``dots`` leading dots mean in ``module``."""
        folder = os.path.dirname(os.path.abspath(module.path))
        for _ in range(dots - 1):
            folder = os.path.dirname(folder)
        return folder

    def top(self, module: ir.Module, name: str) -> str | None:
        """The file or folder that the first component of an absolute import means, or None for a library.

        A file or package anywhere on the way comes before a mere folder, as on ``sys.path``.
        """
        if name in LIBRARIES:
            return None
        mere_folder = None
        for start in self.starts(module):
            found = self.child(start, name)
            if found is None:
                continue
            if found in self.files or self.is_package(found):
                return found
            mere_folder = mere_folder or found
        return mere_folder or self._packages.get(name)

    @cached_property
    def _packages(self) -> dict[str, str | None]:
        """Top-level packages by name; None where two share it."""
        found: dict[str, str | None] = {}
        for folder in self._folders:
            if self.is_package(folder) and not self.is_package(os.path.dirname(folder)):
                name = os.path.basename(folder)
                init = os.path.join(folder, "__init__.py")
                place = init if init in self.files else folder
                found[name] = place if found.setdefault(name, place) == place else None
        return found


def _above(path: str) -> Iterator[str]:
    folder = os.path.dirname(path)
    while True:
        yield folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return
        folder = parent
