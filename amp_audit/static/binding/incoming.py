"""Which code may come to some files of a project, told by names alone.

A superset, without resolving a name: code may come to a definition if it has its name, or one that an import or an
assignment gives to it, and stands in a file that defines or imports that name, or that has the name of its module. It
takes a fiftieth of the time that asking each entry where it may go does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Set
from pathlib import PurePath

from amp_audit.static.binding.project import Project
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import expressions, last_word, root_name, statements, walk

_OWN = ""
"""Stands for a module's own code, beside the names that it defines."""
_GENERIC = frozenset({"singledispatch", "singledispatchmethod"})
"""Words of modules in which a call of one function runs another one that says its name, not the other way round."""


class Incoming:
    """The code that may come to the files ``paths``: top-level functions and classes, and modules' own code."""

    def __init__(self, project: Project, paths: Set[str]) -> None:
        self._modules = list(project.modules.values())
        self._units: dict[str, dict[str, set[str]]] = {}
        self._imported: dict[str, list[tuple[ir.Module, str, str]]] = {}
        """By the last word of what is imported: the modules that do so, what they call it, and the word before that."""
        self._found: dict[str, set[str]] = {}
        self._waiting: list[tuple[ir.Module, str]] = []
        for module in self._modules:
            for local, target in (binding for node in module.imports for binding in node.bindings):
                around, _, word = target.rpartition(".")
                self._imported.setdefault(word, []).append((module, local, around.rpartition(".")[2]))
        for module in self._modules:
            if module.path in paths:
                self._add(module, _OWN)
        seen: set[tuple[str, str]] = set()
        while self._waiting:
            module, name = self._waiting.pop()
            if (module.path, name) not in seen:
                seen.add((module.path, name))
                self._follow(module, name)

    def has(self, module: ir.Module, function: ir.Function | None = None) -> bool:
        """Whether a function (None: the module's own code) is among them."""
        names = self._found.get(module.path)
        if names is None:
            return False
        return _OWN in names or (function is not None and function.qualname.partition(".")[0] in names)

    def _add(self, module: ir.Module, unit: str) -> None:
        """Some code may come there, and so may all that uses its name; what a module does by itself it does for all
        that use one of its names."""
        found = self._found.setdefault(module.path, set())
        if unit in found:
            return
        found.add(unit)
        if unit != _OWN:
            self._waiting.append((module, unit))
        if unit == _OWN or not _GENERIC.isdisjoint(module.words):
            for each in self._of(module):
                self._add(module, each)

    def _follow(self, module: ir.Module, name: str) -> None:
        """Add what uses a name of a module: there, where it is imported, and where the module is."""
        for unit, words in self._of(module).items() if name in module.words else ():
            if name in words:
                self._add(module, unit)
        called = self._names(module)
        for other, local, around in self._imported.get(name, ()):
            if local != "*" and (not around or around in called):
                self._waiting.append((other, local))
        for each in called | {""}:
            self._waiting += ((other, name) for other, local, _ in self._imported.get(each, ()) if local == "*")
        for other in self._modules:
            if name in other.words and not called.isdisjoint(other.words):
                units = self._of(other)
                aliased = not called.isdisjoint(units[_OWN])
                for unit, words in units.items():
                    if name in words and (aliased or not called.isdisjoint(words)):
                        self._add(other, unit)

    def _names(self, module: ir.Module) -> set[str]:
        """What a module is called, by its file and where it is imported under another name."""
        path = PurePath(os.path.abspath(module.path))
        found = {path.parent.name if path.stem == "__init__" else path.stem}
        waiting = [*found]
        while waiting:
            fresh = {local for _, local, _ in self._imported.get(waiting.pop(), ()) if local != "*"} - found
            found |= fresh
            waiting += fresh
        return found

    def _of(self, module: ir.Module) -> dict[str, set[str]]:
        """The names that a module's code binds, with the words of what is bound to each; and those of its own code."""
        units = self._units.get(module.path)
        if units is None:
            units = self._units[module.path] = {_OWN: set()}
            for node in statements(module.body):
                words = {word for part in _parts(node) if (word := last_word(part))}
                if isinstance(node, (ir.Function, ir.Class)):
                    units.setdefault(node.name, set()).update(words, node.words)
                    continue
                words |= {word for part in _parts(node) if isinstance(part, ir.Lambda) for word in part.function.words}
                units[_OWN] |= words
                for name in _bound(node):
                    units.setdefault(name, set()).update(words)
        return units


def _parts(node: ir.Stmt) -> Iterator[ir.Expr]:
    return (part for expression in expressions(node) for part in walk(expression))


def _bound(node: ir.Stmt) -> Iterator[str]:
    """The names that hold something of a statement after it: its targets, and what a method is called on."""
    targets: Iterable[ir.Expr | None] = ()
    if isinstance(node, (ir.Assign, ir.Delete)):
        targets = node.targets
    elif isinstance(node, (ir.Augment, ir.For, ir.Declare)):
        targets = (node.target,)
    elif isinstance(node, ir.With):
        targets = (target for _, target in node.items)
    elif isinstance(node, ir.Evaluate):
        targets = (part.func for part in walk(node.value) if isinstance(part, ir.Call))
    for target in targets:
        for part in walk(target) if target is not None else ():
            if name := root_name(part):
                yield name
    for part in _parts(node):
        if isinstance(part, ir.Walrus):
            yield root_name(part.target)
