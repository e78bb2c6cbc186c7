"""Which modules make a program: what one that trains imports, and what it may load by a name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cached_property

from amp_audit.static.binding.project import ClassRef, FunctionRef, ModuleRef, Project
from amp_audit.static.source import ir

_TRAINS = re.compile(r"backward$|step$|clip_grad|zero_grad|autograd|state_dict|^save$")
_TRAINING = frozenset({"backward", "training_step", "TrainingArguments", "Seq2SeqTrainingArguments"})
"""Words of code that trains, or has a framework train."""
_IMPORTING_WORDS = frozenset({"importlib", "import_module", "__import__"})


class Programs:
    """What the modules of a project import, and which of them train; looked up when it is first asked for."""

    def __init__(self, project: Project) -> None:
        self.project = project

    @cached_property
    def _imports(self) -> dict[str, set[str]]:
        return {path: set(_imports(self.project, module)) for path, module in self.project.modules.items()}

    @cached_property
    def _trains(self) -> set[str]:
        modules = self.project.modules.items()
        return {path for path, module in modules if any(map(_TRAINS.search, module.words))}

    def around(self, live: Mapping[str, object], touched: Iterable[str] = ()) -> set[str]:
        """The modules of the programs that enter a region in ``live``: what they import, their own packages, what they
        load by name, and what is ``touched`` by autocast, unless that belongs to another program."""
        programs = set(live)
        while programs:
            more = {path for path in self._trains if self._imports[path] & programs} - programs
            if not more:
                break
            programs |= more
        todo = [*programs]
        while todo:
            for path in self._imports.get(todo.pop(), set()) - programs:
                programs.add(path)
                todo.append(path)
        unnamed = _unnamed(self.project, live, programs)
        unnamed.update(path for path in touched if not self._stands_apart(path, programs))
        return programs | {path for path in unnamed if not self._is_of_others(path, programs)}

    def _is_of_others(self, path: str, programs: Set[str]) -> bool:
        """Whether a module is a program that trains, which none of the others loads by name, or is imported where
        others train and by none of these programs.
        """
        if "__name__" in self.project.modules[path].words and self._trains_itself(path):
            return True
        importers = self._importers(path)
        return importers.isdisjoint(programs) and any(map(self._trains_itself, importers))

    def _stands_apart(self, path: str, programs: Set[str]) -> bool:
        """Whether what trains nearest to a module, in its folder or one around it, is none of these programs."""
        folder = os.path.dirname(path)
        while True:
            around = f"{folder}{os.sep}" if folder else ""
            trained = {each for each in self._training if each.startswith(around)}
            if trained or not around.strip(os.sep):
                return bool(trained) and trained.isdisjoint(programs)
            folder = os.path.dirname(folder)

    @cached_property
    def _training(self) -> set[str]:
        return set(filter(self._trains_itself, self.project.modules))

    def _trains_itself(self, path: str) -> bool:
        return not self.project.modules[path].words.isdisjoint(_TRAINING)

    def _importers(self, path: str) -> set[str]:
        """The modules that import one, or what imports it."""
        found, todo = set[str](), [path]
        while todo:
            fresh = self._imported_by.get(todo.pop(), set()) - found
            found |= fresh
            todo += fresh
        return found

    @cached_property
    def _imported_by(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for path, imported in self._imports.items():
            for each in imported:
                found.setdefault(each, set()).add(path)
        return found


def _unnamed(project: Project, live: Mapping[str, object], programs: Iterable[str]) -> set[str]:
    """What a program may load without importing it by name: the package that enters a region, and what lies beside
    and below a program that imports by a name it computes."""
    folders = {project.layout.package(path) for path in live}
    for path in programs:
        if path in project.modules and _IMPORTING_WORDS & project.modules[path].words:
            folders.add(os.path.dirname(os.path.abspath(path)))
    below = tuple(f"{folder}{os.sep}" for folder in folders if folder)
    return {path for path in project.modules if below and os.path.abspath(path).startswith(below)}


def _imports(project: Project, module: ir.Module) -> Iterator[str]:
    for node in module.imports:
        for target in (*(target for _, target in node.bindings), *node.loads):
            found = project.imported(module, target)
            if isinstance(found, (ModuleRef, FunctionRef, ClassRef)) and found.module is not None:
                yield found.module.path
