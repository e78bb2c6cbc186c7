"""What is to be audited: a script, a module or a launcher's command line, and which Python file it begins in."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal

from amp_audit.records import record

Kind = Literal["script", "module", "launcher"]


class TargetError(Exception):
    """There is nothing to audit; the message is one line that says why."""


@record(frozen=True, slots=True)
class Target:
    """``command``: the script, module or launcher followed by its arguments. ``entry``: its first file, if known."""

    kind: Kind
    command: tuple[str, ...]
    entry: Path | None

    @property
    def shown(self) -> str:
        """As the user would write it."""
        prefix = {"script": "", "module": "-m ", "launcher": ""}[self.kind]
        return prefix + " ".join(self.command)


def script(command: Sequence[str]) -> Target:
    """``TRAIN.py ARGS``. Raises TargetError when there is no such file."""
    path = Path(command[0])
    if command[0] == "-":
        raise TargetError("a program on the standard input is not run: save it to a file")
    if path.is_dir():
        raise TargetError(f"{path}: is a folder; give a script, or -m MODULE for a package")
    if not path.is_file():
        raise TargetError(f"{path}: no such file")
    return Target("script", tuple(command), path)


def module(command: Sequence[str]) -> Target:
    """``-m MODULE ARGS``. Raises TargetError when the module is not found; nothing of it is imported."""
    path = module_file(command[0])
    if path is None:
        raise TargetError(f"no module named {command[0]!r} with a source file to run")
    return Target("module", tuple(command), path)


def launcher(command: Sequence[str]) -> Target:
    """``-- LAUNCHER ...``. The entry is the first existing ``*.py`` among its words, or its ``-m MODULE``."""
    if not command:
        raise TargetError("nothing after `--`: give a command, such as -- torchrun --nproc-per-node 2 train.py")
    return Target("launcher", tuple(command), _entry_of(command))


def _entry_of(command: Sequence[str]) -> Path | None:
    for word, following in zip(command[1:], [*command[2:], ""]):
        if word.endswith(".py") and Path(word).is_file():
            return Path(word)
        if word in ("-m", "--module") and following:
            return module_file(following)
    return None


def module_file(name: str) -> Path | None:
    """The source file that ``python -m NAME`` would run, found without importing its packages."""
    search: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    full = ""
    for part in name.split("."):
        full = f"{full}.{part}" if full else part
        spec = PathFinder.find_spec(full, search)
        if spec is None:
            return None
        search = spec.submodule_search_locations
        origin = spec.origin
    if search is not None:
        main = PathFinder.find_spec(f"{name}.__main__", search)
        origin = main.origin if main is not None else None
    return Path(origin) if origin is not None and origin.endswith(".py") else None
