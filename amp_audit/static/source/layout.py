"""Where modules lie on disk, and what an import there means: dotted names -> files of the project."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from amp_audit.static.source.sources import Unreadable, read_bytes

_LARGEST_NAMED = 1 << 18
"""Bytes of a file named by the code that is still read."""

_ROOTS = ("src", "lib")
"""Folders that programs put on their path, or are installed from."""

LIBRARIES = frozenset({"torch", "numpy", "builtins"})
"""Never taken from the project, though something of that name may lie in it."""

INSTALLED = LIBRARIES | {"accelerate", "transformers", "lightning", "pytorch_lightning", "deepspeed", "apex", "timm"}
"""A mere folder of this name (configurations, scripts) is not what an import of it means."""


class Layout:
    """The files of a project: those that are given and, beside them, those on disk.

    An absolute import is looked for as Python would from a script: beside the importing file, then in each folder
    above it up to the root (also in ``src/`` and ``lib/`` there), last among the packages of the project wherever they
    lie. Files inside a package look above the package first.
    """

    def __init__(self, paths: Iterable[str], root: str | Path) -> None:
        self.root = os.path.abspath(root)
        self._given = frozenset(os.path.abspath(path) for path in paths)
        self._folders = {folder for path in self._given for folder in _above(path)}
        self._children: dict[tuple[str, str], str | None] = {}
        self._files: dict[str, bool] = {}
        self._starts: dict[str, tuple[str, ...]] = {}
        self._found: dict[tuple[str, str], tuple[str, ...]] = {}
        self._dotted: dict[str, str] = {}
        self._holds: dict[str, bool] = {}
        self._absolute: dict[str, str] = {}
        self.listed: dict[str, str] = {}
        """The listings of the folders that were searched."""
        self.read: dict[str, bytes | None] = {}
        """What lay in files that the code names (None: nothing that can be read)."""

    @property
    def asked(self) -> dict[str, bool]:
        """Which absolute paths were found to be files, or none, apart from those given."""
        return {path: found for path, found in self._files.items() if path not in self._given}

    def learn(self, read: Mapping[str, bytes | None], asked: Mapping[str, bool], listed: Mapping[str, str]) -> None:
        """Add what a copy of this layout has asked the disk."""
        self.read.update(read)
        self._files.update(asked)
        self.listed.update(listed)

    def absolute(self, path: str) -> str:
        """The absolute path; those of a project are asked for by the ten thousand."""
        known = self._absolute.get(path)
        if known is None:
            known = self._absolute[path] = os.path.abspath(path)
        return known

    def is_file(self, path: str) -> bool:
        """Whether an absolute path is a file, given or on disk."""
        known = self._files.get(path)
        if known is None:
            known = self._files[path] = path in self._given or os.path.isfile(path)
        return known

    def contents(self, name: str, module: str) -> bytes | None:
        """What lies in a file that the code of a module names: below the root, where programs are started, or beside
        the module; None where there is none that can be read, or a large one.
        """
        places = (os.path.normpath(os.path.join(folder, name)) for folder in (self.root, os.path.dirname(module)))
        path = next(filter(self.is_file, map(self.absolute, places)), None)
        if path is not None and path not in self.read:
            try:
                self.read[path] = read_bytes(path) if os.path.getsize(path) <= _LARGEST_NAMED else None
            except (OSError, Unreadable):
                self.read[path] = None
        return self.read[path] if path is not None else None

    def is_package(self, folder: str) -> bool:
        """Whether ``folder`` holds an ``__init__.py``."""
        return self.is_file(os.path.join(folder, "__init__.py"))

    def name(self, path: str) -> str:
        """The dotted name of a file or folder, from the top of its package; else from the root."""
        known = self._dotted.get(path)
        if known is None:
            known = self._dotted[path] = self._name(os.path.abspath(path))
        return known

    def _name(self, path: str) -> str:
        top = os.path.dirname(path)
        if not self.is_package(top):
            top = self.root if path.startswith(self.root + os.sep) else top
        while self.is_package(top):
            top = os.path.dirname(top)
        inside = os.path.relpath(path, top)
        parts = (os.path.splitext(inside)[0] if self.is_file(path) else inside).split(os.sep)
        return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)

    def package(self, path: str) -> str | None:
        """The folder of the outermost package that a file lies in; None for a file in no package."""
        top = os.path.dirname(self.absolute(path))
        if not self.is_package(top):
            return None
        while self.is_package(os.path.dirname(top)):
            top = os.path.dirname(top)
        return top

    def child(self, folder: str, name: str) -> str | None:
        """The file (``name.py``, a package's ``__init__.py``) or folder that ``name`` is in ``folder``; or None."""
        key = (folder, name)
        if key not in self._children:
            self._children[key] = self._child(os.path.join(folder, name))
        return self._children[key]

    def _child(self, base: str) -> str | None:
        for candidate in (os.path.join(base, "__init__.py"), base + ".py"):
            if self.is_file(candidate):
                return self._given_name(candidate)
        return base if self._holds_python(base, 2) else None

    def _given_name(self, path: str) -> str:
        """The given file that a link leads to, so that one file is one module."""
        if path in self._given:
            return path
        return self._by_real_path.get(os.path.realpath(path), path)

    @cached_property
    def _by_real_path(self) -> dict[str, str]:
        return {os.path.realpath(path): path for path in self._given}

    def _holds_python(self, folder: str, depth: int) -> bool:
        """Whether there is Python in ``folder``, or in a folder of it: a package without ``__init__.py``."""
        if folder in self._folders:
            return True
        known = self._holds.get(folder)
        if known is None:
            known = self._holds[folder] = self._scan(folder, depth)
        return known

    def _scan(self, folder: str, depth: int) -> bool:
        self.listed[folder] = listing(folder)
        names = self.listed[folder].split("\n")
        if any(name.endswith(".py") for name in names):
            return True
        inner = (os.path.join(folder, name[:-1]) for name in names if name.endswith("/"))
        return depth > 1 and any(self._holds_python(each, depth - 1) for each in inner)

    def starts(self, path: str) -> tuple[str, ...]:
        """The folders in which an absolute import of the file ``path`` is looked for, nearest first."""
        own = os.path.dirname(self.absolute(path))
        if own not in self._starts:
            self._starts[own] = tuple(self._search(own))
        return self._starts[own]

    def _search(self, own: str) -> Iterator[str]:
        top = own
        while self.is_package(top):
            top = os.path.dirname(top)
        for folder in self._upward(top):
            yield folder
            yield from (inner for name in _ROOTS if self._holds_anything(inner := os.path.join(folder, name)))
        if top != own:
            yield own

    def _holds_anything(self, folder: str) -> bool:
        """Whether there is such a folder, with something in it: else it needs no look for each name."""
        if folder in self._folders or listing(folder):
            return True
        self.listed[folder] = ""
        return False

    def _upward(self, folder: str) -> Iterator[str]:
        yield folder
        while folder != self.root and folder.startswith(self.root + os.sep):
            folder = os.path.dirname(folder)
            yield folder

    def _is_inside(self, folder: str) -> bool:
        return folder == self.root or folder.startswith(self.root.rstrip(os.sep) + os.sep)

    def _own_name(self, path: str) -> str | None:
        """The name of the package that a file lies in, of which the project may be a part."""
        package = self.package(path)
        return os.path.basename(package) if package is not None else None

    def relative(self, path: str, dots: int) -> str:
        """The folder that ``dots`` leading dots mean in the file ``path``."""
        folder = os.path.dirname(self.absolute(path))
        for _ in range(dots - 1):
            folder = os.path.dirname(folder)
        return folder

    def top(self, path: str, name: str) -> str | None:
        """The file or folder that the first component of an absolute import means, or None for a library.

        A file or package anywhere on the way comes before a mere folder, as on ``sys.path``. The file itself is not
        meant: ``train/train.py`` that imports ``train.losses`` is run from the folder above.
        """
        if name in LIBRARIES:
            return None
        mere_folder = None
        for found in self._tops(path, name):
            if self.absolute(found) == self.absolute(path):
                continue
            if found.endswith(".py"):
                return found
            mere_folder = mere_folder or found
        return (mere_folder if name not in INSTALLED else None) or self._packages.get(name)

    def _tops(self, path: str, name: str) -> tuple[str, ...]:
        """What lies under a name where absolute imports of a file are looked for, nearest first: for all files of a
        folder the same. Beside the project lie others: an environment's packages, other checkouts.
        """
        key = (os.path.dirname(self.absolute(path)), name)
        if key not in self._found:
            starts = (each for each in self.starts(path) if self._is_inside(each) or name == self._own_name(path))
            self._found[key] = tuple(found for start in starts if (found := self.child(start, name)) is not None)
        return self._found[key]

    def loaded(self, path: str, dotted: str) -> Sequence[str]:
        """The files that Python reads to import ``dotted`` (relative with leading dots) in the file ``path``.

        The last components may be names inside the last file. Empty for a library.
        """
        name = dotted.lstrip(".")
        parts = name.split(".") if name else []
        dots = len(dotted) - len(name)
        place: str | None
        if dots:
            place = self.relative(path, dots)
            init = os.path.join(place, "__init__.py")
            place = init if self.is_file(init) else place
        else:
            place = self.top(path, parts.pop(0))
        found = []
        while place is not None:
            if place.endswith(".py"):
                found.append(place)
            folder = os.path.dirname(place) if place.endswith("__init__.py") else place
            place = self.child(folder, parts.pop(0)) if parts and not folder.endswith(".py") else None
        return found

    @cached_property
    def _packages(self) -> dict[str, str | None]:
        """Top-level packages by name; None where two share it."""
        found: dict[str, str | None] = {}
        for folder in self._folders:
            if self.is_package(folder) and not self.is_package(os.path.dirname(folder)):
                name = os.path.basename(folder)
                place = os.path.join(folder, "__init__.py")
                found[name] = place if found.setdefault(name, place) == place else None
        return found


def listing(folder: str) -> str:
    """The names in a folder that are not hidden, a line each, those of folders with a slash; empty for no folder."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name + "/" * entry.is_dir() for entry in entries if not entry.name.startswith(".")]
    except OSError:
        return ""
    return "\n".join(sorted(names))


def _above(path: str) -> Iterator[str]:
    folder = os.path.dirname(path)
    while True:
        yield folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return
        folder = parent
