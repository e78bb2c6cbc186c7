"""Which files to read: those that can matter (``screen``), and what lies around them.

Around the survivors lies context: what they import, however far, since calls are followed there and numbers count
there; training code that imports its way to a survivor, since it may hold the other half of an order mistake or build
what is trained; and models that a program may build without naming them in an import: those of the package that enters
autocast, and those where a program imports by a computed name. Programs that start in a file which only hands what one
survivor makes to another are read from there. All else is skipped, unparsed.

Where the survivors import a whole library, the nearest of it are context, up to a limit.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property

from amp_audit.records import record
from amp_audit.static.source import pins
from amp_audit.static.source.layout import Layout
from amp_audit.static.source.screen import EVERYTHING, TRAINING, Screen
from amp_audit.static.source.sources import STDIN, Unreadable, read_bytes

CONTEXT_LIMIT = 3_000_000
"""Bytes of context that are read beside the files that matter themselves; what a project of its own imports is less."""

_MOST_DECLARING = 50
"""So many files that declare dependencies are read."""

_AUTOCAST = re.compile(rb"autocast\b")
_BUILDS = re.compile(rb"\boptim\b|Optimizer\b")
_STARTS = re.compile(rb"__main__\b")
_MODEL = re.compile(rb"def[ \t]+forward\b")
_LOADING = (b"import_module", b"__import__", b"importlib")
_LOADS_BY_NAME = re.compile(rb"\b|".join(_LOADING) + rb"\b")
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^)]*\)|(?:[^\n#;\\]|\\\r?\n)*)|import[ \t]+([^\n#;]+))", re.M
)
_COMMENT = re.compile(rb"#[^\n]*")
_WORD = re.compile(rb"[.\w]+")


def root_of(path: str, searched: Sequence[str] = ()) -> str:
    """The folder that bounds the project of a file: the checkout it lies in; else the outermost of the ``searched``
    folders (absolute) it was found in; else where its build file lies; else the working directory or its own folder."""
    own = os.path.dirname(os.path.abspath(path))
    checkout = _with_marker(own, (".git",))
    if checkout is not None:
        return checkout
    around = [folder for folder in searched if _is_below(own, folder)]
    if around:
        return min(around, key=len)
    here = os.getcwd()
    return _with_marker(own, ("pyproject.toml", "setup.py", "setup.cfg")) or (here if _is_below(own, here) else own)


def path_in_project(path: str) -> str:
    """A file's path from the root of its project, with slashes: the same wherever the search for it began."""
    full = os.path.abspath(path)
    return os.path.relpath(full, root_of(full)).replace(os.sep, "/")


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _with_marker(folder: str, markers: Sequence[str]) -> str | None:
    while True:
        if any(os.path.exists(os.path.join(folder, marker)) for marker in markers):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


@record(frozen=True, slots=True)
class Selection:
    """The files of one project to lower, each with its bytes, in order.

    ``checked`` are those asked for that can matter, ``context`` those read for their sake, ``skipped`` the number of
    files asked for that cannot matter, ``failed`` those that could not be read. ``left_out``: not all context is there.
    ``layout``: where imports were looked for. ``looked_into``: what lay in files that were not asked for (None: they
    could not be read). ``declared``: the files in which the project declares what it needs.
    """

    root: str
    checked: dict[str, bytes]
    context: dict[str, bytes]
    layout: Layout
    skipped: int = 0
    failed: dict[str, Unreadable] = field(default_factory=dict)
    left_out: bool = False
    looked_into: Mapping[str, bytes | None] = field(default_factory=dict)
    declared: Mapping[str, bytes] = field(default_factory=dict)
    telling: Callable[[str], bool] = lambda path: True
    """Whether a file has a trigger word: of these alone it matters when they are no Python."""


def select(
    paths: Sequence[str],
    root: str,
    sieve: Screen,
    *,
    prefilter: bool = True,
    given: Mapping[str, bytes] | None = None,
) -> Selection:
    """Sort the files of one project into those to lower and those to skip. ``given``: bytes of files as they are not
    on the disk."""
    return _Selector(paths, root, sieve, given or {}).select(prefilter)


class _Selector:
    def __init__(self, paths: Sequence[str], root: str, sieve: Screen, given: Mapping[str, bytes]) -> None:
        self.paths = paths
        self.root = root
        self.sieve = sieve
        self.data = {path: given[path] for path in paths if path in given}
        self.failed: dict[str, Unreadable] = {}
        self.imports: dict[str, tuple[str, ...]] = {}
        self._matched: dict[str, bool] = {}
        self._keys: dict[str, str] = {}
        self._dead: set[str] = set()
        self.left_out = False

    @cached_property
    def layout(self) -> Layout:
        return Layout([path for path in self.paths if path != STDIN], self.root)

    def select(self, prefilter: bool) -> Selection:
        given = [path for path in self.paths if self.read(path)]
        alive = [path for path in given if not prefilter or self._matters(self._key(path))]
        if prefilter:
            alive += self._around(given, alive)
        around = self._closure(alive, limit=CONTEXT_LIMIT if prefilter else None)
        names = {os.path.abspath(path): path for path in given}
        checked = {path: self.data[path] for path in given if path in set(alive) or os.path.abspath(path) in around}
        context = {path: self.data[path] for path in sorted(around - names.keys())}
        failed = {path: error for path, error in self.failed.items() if path in set(self.paths)}
        asked = set(given)
        beside: dict[str, bytes | None] = {path: data for path, data in self.data.items() if path not in asked}
        beside.update((path, None) for path in self.failed if path not in failed)
        declared = self._declared()
        beside.update(declared)
        skipped = len(given) - len(checked)
        return Selection(
            self.root, checked, context, self.layout, skipped, failed, self.left_out, beside, declared, self._tells
        )

    def _declared(self) -> dict[str, bytes]:
        """The files of the root that declare dependencies, and those below it that they include."""
        found: dict[str, bytes] = {}
        waiting = [os.path.join(self.root, name) for name in pins.FILES]
        while waiting and len(found) < _MOST_DECLARING:
            path = waiting.pop()
            if path not in found and self.layout.is_file(path):
                with contextlib.suppress(Unreadable):
                    found[path] = read_bytes(path)
                    near = (
                        os.path.normpath(os.path.join(path, os.pardir, name)) for name in pins.included(found[path])
                    )
                    waiting += [each for each in near if each.startswith(self.root.rstrip(os.sep) + os.sep)]
        return found

    def _around(self, given: Sequence[str], alive: Sequence[str]) -> list[str]:
        """Of the other files those that train with the ones alive, and the models that these may build unnamed."""
        if not alive:
            return []
        chosen = set(alive)
        others = [path for path in given if path not in chosen]
        trained = [path for path in others if self._trains_with(path)]
        chosen.update(trained)
        programs = self._closure([*alive, *trained], limit=CONTEXT_LIMIT) | chosen
        models = self._unnamed_models([path for path in others if path not in chosen], programs)
        return self._within(CONTEXT_LIMIT, [*trained, *models])

    def _within(self, limit: int, paths: Sequence[str]) -> list[str]:
        """As many of some files as ``limit`` bytes hold."""
        found = []
        for path in paths:
            limit -= len(self.data[path])
            if limit < 0:
                self.left_out = True
                break
            found.append(path)
        return found

    def read(self, path: str) -> bool:
        """Whether the bytes of a file are at hand now."""
        if path not in self.data and path not in self.failed:
            try:
                self.data[path] = read_bytes(path)
            except Unreadable as error:
                self.failed[path] = error
        return path in self.data

    def _trains_with(self, path: str) -> bool:
        """Whether a file without trigger words trains, builds what is trained, or is where a program starts that hands
        one to the other, by way of a file with some.
        """
        said = (sieve.search(self.data[path]) for sieve in (TRAINING, _BUILDS, _STARTS))
        return any(said) and self._reaches(path)

    def _unnamed_models(self, others: Iterable[str], programs: Iterable[str]) -> list[str]:
        """Those of the other files that hold models which the programs may build without importing them by name."""
        folders: set[str] = set()
        for path in programs:
            data = b"" if path == STDIN else self._bytes(path) or b""
            if b"autocast" in data and _AUTOCAST.search(data):  # looking for a text alone takes a tenth of the time
                folders.add(self.layout.package(path) or "")
            if any(word in data for word in _LOADING) and _LOADS_BY_NAME.search(data):
                folders.add(os.path.dirname(os.path.abspath(path)))
        below = tuple(f"{folder}{os.sep}" for folder in folders if folder)
        return [
            path
            for path in others
            if below and self._key(path).startswith(below) and _MODEL.search(self.data[path]) is not None
        ]

    def _reaches(self, path: str) -> bool:
        """Whether ``path`` imports, directly or not, a file with a trigger word."""
        start = os.path.abspath(path)
        seen = {start}
        queue = [start]
        while queue:
            for found in self._loaded(queue.pop()):
                if found in self._dead or found in seen:
                    continue
                if self._matters(found):
                    return True
                seen.add(found)
                queue.append(found)
        self._dead |= seen
        return False

    def _tells(self, path: str) -> bool:
        return self._matters(self._key(path))

    def _matters(self, path: str) -> bool:
        if path not in self._matched:
            data = self._bytes(path)
            self._matched[path] = data is not None and self.sieve.matters(data)
        return self._matched[path]

    def _closure(self, paths: Iterable[str], limit: int | None = None) -> set[str]:
        """The absolute paths of what ``paths`` import, directly or not, nearest first until there is more than
        ``limit`` bytes of it."""
        queue = deque(self._key(path) for path in paths)
        seen = set(queue)
        found: set[str] = set()
        size = 0
        while queue:
            for path in self._loaded(queue.popleft()):
                data = None if path in seen else self._bytes(path)
                if data is None:
                    continue
                seen.add(path)
                size += len(data)
                if limit is not None and size > limit:
                    self.left_out = True
                    return found
                found.add(path)
                queue.append(path)
        return found

    def _key(self, path: str) -> str:
        key = self._keys.get(path)
        if key is None:
            key = self._keys[path] = path if path == STDIN else os.path.abspath(path)
        return key

    @cached_property
    def _given(self) -> dict[str, str]:
        return {os.path.abspath(path): path for path in self.paths if path != STDIN}

    def _bytes(self, path: str) -> bytes | None:
        key = self._given.get(path, path)
        return self.data[key] if self.read(key) else None

    def _loaded(self, path: str) -> tuple[str, ...]:
        if path not in self.imports:
            data = self._bytes(path) or b""
            source = os.path.join(self.root, "stdin.py") if path == STDIN else path
            found = [file for target in imports(data) for file in self.layout.loaded(source, target)]
            self.imports[path] = tuple(dict.fromkeys(found))
        return self.imports[path]


def imports(data: bytes) -> list[str]:
    """The dotted targets of the import statements in a source, by their looks; relative ones with their dots."""
    found: list[str] = []
    for match in _import_statements(data):
        source, names, plain = match.groups()
        if plain is not None:
            found += [part.split()[0].decode() for part in plain.split(b",") if part.split() and _is_dotted(part)]
            continue
        base = source.decode("utf-8", "replace")
        found.append(base)
        for part in _COMMENT.sub(b"", names).strip(b"() \t\r\n").split(b","):
            word = _WORD.match(part.strip().replace(b"\\", b"").strip())
            if word is not None:
                name = word.group().decode("utf-8", "replace")
                found.append(f"{base}{name}" if base.endswith(".") else f"{base}.{name}")
    return found


def _import_statements(data: bytes) -> Iterator[re.Match[bytes]]:
    """The matches of ``_IMPORT``, which needs a look at those lines alone that have the word."""
    end = 0
    while (place := data.find(b"import", end)) >= 0:
        start = data.rfind(b"\n", end, place) + 1
        match = _IMPORT.match(data, max(start, end))
        if match is not None:
            yield match
        end = match.end() if match is not None else place + len(b"import")


def _is_dotted(part: bytes) -> bool:
    word = _WORD.match(part.strip())
    return word is not None and word.group() == part.split()[0]


def local_imports(path: str, root: str | None = None) -> list[str]:
    """The files that a script imports from its own project, however far, in the order of their paths."""
    return list(select([path], root or root_of(path), EVERYTHING, prefilter=False).context)
