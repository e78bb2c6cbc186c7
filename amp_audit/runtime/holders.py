"""What a program calls its models and optimizers: the variables, attributes and containers that hold them.

Nothing of the program runs: only instance dictionaries, plain lists, tuples and dicts are looked into. This is done
when one is met for the first time, never again.
"""

from __future__ import annotations

import dis
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

_MOST = 256
"""So many variables, attributes or elements of one thing are looked at."""

_FRAMES = 64

_KEEPS = frozenset({"locals", "vars", "eval", "exec", "dir"})
"""What gives a program the dictionary of its variables, which would change by being looked at (before Python 3.13)."""

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, torch.Tensor, types.ModuleType, types.FunctionType)
_LAYERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"})
_WRAPPERS = frozenset({"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"})


@dataclass(slots=True)
class Held:
    """A module that a variable of the program holds and that lies in no larger one.

    ``expression`` is how the program gets at it: ``netG``, ``layers[0]``, ``nets['G']``; of an object's attribute the
    object is left out (``self.netG``), and is ``keeper`` when it is a module itself. ``modules`` and ``parameters`` are
    the ids of those in it, itself included.
    """

    expression: str
    module: Any
    keeper: Any
    modules: set[int]
    parameters: set[int]


def walk(root: Any, prefix: str = "") -> Iterator[tuple[Any, str]]:
    """A module and all below it with their paths, each once. Reads ``_modules``: no code of the program runs."""
    seen: set[int] = set()
    queue = [(root, prefix)]
    while queue:
        module, path = queue.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield module, path
        wrapper = type(module).__name__ in _WRAPPERS
        for name, child in reversed(module._modules.items()):
            if child is not None:
                layer = name in _LAYERS or (wrapper and name == "module")
                queue.append((child, path if layer else f"{path}.{name}" if path else name))


def parameters(root: Any) -> set[int]:
    """The ids of the parameters of a module and of all below it."""
    return {id(one) for module, _ in walk(root) for one in module._parameters.values() if one is not None}


def held(frame: FrameType | None) -> list[Held]:
    """The models that the variables of a frame and of its callers hold, each under the first of its names.

    What the outermost frames call it comes first, and in one frame variables before attributes before elements of
    containers; the variable of a loop, which holds one after the other, comes last.
    """
    found: list[Held] = []
    covered: set[int] = set()
    for expression, module, keeper in _candidates(frame, _is_module):
        if id(module) in covered:
            continue
        inside = [one for one, _ in walk(module)]
        ids = {id(one) for one in inside}
        found = [other for other in found if id(other.module) not in ids]
        own = {id(parameter) for one in inside for parameter in one._parameters.values() if parameter is not None}
        found.append(Held(expression, module, keeper, ids, own))
        covered |= ids
    return found


def variable(frame: FrameType | None, thing: Any) -> str | None:
    """How the variables of a frame and of its callers get at ``thing``, as ``Held.expression``; None: none does."""
    return next((expression for expression, *_ in _candidates(frame, lambda one: one is thing)), None)


def _candidates(frame: FrameType | None, wanted: Callable[[Any], bool]) -> Iterator[tuple[str, Any, Any]]:
    for names, loops in reversed(list(_namespaces(frame))):
        known = [(name, value) for name, value in names.items() if not name.startswith(("_", "."))][:_MOST]
        lasting = [(name, value) for name, value in known if name not in loops]
        passing = [(name, value) for name, value in known if name in loops]
        yield from ((name, value, None) for name, value in lasting if wanted(value))
        for _, value in known:
            keeper = value if _is_module(value) else None
            yield from ((name, one, keeper) for name, one in _attributes(value, wanted))
        for name, value in lasting:
            yield from ((element, one, None) for element, one in _elements(name, value, wanted))
        yield from ((name, value, None) for name, value in passing if wanted(value))


def _namespaces(frame: FrameType | None) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Variables by name, innermost first, with the names of those that loops set."""
    seen: set[int] = set()
    for _ in range(_FRAMES):
        if frame is None:
            return
        code = frame.f_code
        if not code.co_filename.startswith((_OURS, _TORCH)):
            if code.co_flags & inspect.CO_OPTIMIZED:
                yield _locals(frame), _loop_variables(code)
            if id(frame.f_globals) not in seen:
                seen.add(id(frame.f_globals))
                yield frame.f_globals, _loop_variables(code)
        frame = frame.f_back


def _locals(frame: FrameType) -> dict[str, Any]:
    """The variables of a function that is running.

    Before Python 3.13 there is one dictionary a frame, which keeps what it holds alive: it is emptied again. A program
    that may have it itself is left alone.
    """
    if sys.version_info >= (3, 13):
        return dict(frame.f_locals)
    if not _KEEPS.isdisjoint(frame.f_code.co_names):
        return {}
    found = dict(frame.f_locals)
    frame.f_locals.clear()
    return found


def _loop_variables(code: CodeType) -> frozenset[str]:
    """What the ``for`` statements of some code assign to."""
    found: set[str] = set()
    assigns = False
    for step in dis.get_instructions(code):
        if step.opname.startswith("STORE_") and assigns:
            found.update(step.argval if isinstance(step.argval, tuple) else (step.argval,))
        else:
            assigns = step.opname == "FOR_ITER" or (assigns and step.opname.startswith(("UNPACK_", "EXTENDED_ARG")))
    return frozenset(map(str, found))


def _is_module(value: Any) -> bool:
    return issubclass(type(value), torch.nn.Module) and "_modules" in _attributes_of(value)


def _attributes_of(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except Exception:  # it has none, or a property of the program's own
        return {}
    return found if type(found) is dict else {}


def _attributes(value: Any, wanted: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """What is wanted among an object's attributes and in their containers; of a module what is not registered."""
    if issubclass(type(value), _PLAIN):
        return
    known = list(_attributes_of(value).items())[:_MOST]
    yield from ((name, one) for name, one in known if wanted(one))
    for name, one in known:
        if name not in ("_modules", "_parameters", "_buffers"):
            yield from _elements(name, one, wanted)


def _elements(name: str, value: Any, wanted: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    if type(value) in (list, tuple):
        yield from ((f"{name}[{index}]", one) for index, one in enumerate(value[:_MOST]) if wanted(one))
    elif type(value) is dict:
        for key, one in list(value.items())[:_MOST]:
            if type(key) in (str, int) and wanted(one):
                yield f"{name}[{key!r}]", one
