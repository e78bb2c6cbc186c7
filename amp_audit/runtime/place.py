"""Where in the program something happens: source line, module path, and whether that is the optimizer.

Sites are small integers, so that the tracer's hot path compares and hashes nothing bigger; what they stand for is
worked out once, when a row is first written.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

import torch

from amp_audit.runtime import holders, tracebacks
from amp_audit.runtime.frames import is_thrown_in
from amp_audit.runtime.patches import Patches
from amp_audit.trace.schema import Place

USER, SKIPPED, OPTIMIZER, ENGINE = range(4)
"""What the code of a frame is: a place worth naming, torch or Python's own, torch.optim, the call into autograd."""

NOWHERE = 0
"""The site of what has no line: operators of an autograd thread whose forward was not seen."""

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OPTIM = os.path.join(_TORCH, "optim") + os.sep
_GRAPH = os.path.join(_TORCH, "autograd", "graph.py")
_ENGINE = "_engine_run_backward"
_CHECKPOINT = os.path.join(_TORCH, "utils", "checkpoint.py")
_PYTHON = sysconfig.get_path("stdlib") + os.sep
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_INDUCTOR = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or os.path.join(tempfile.gettempdir(), "torchinductor_")
_GENERATED = ("<eval_with_key", "<frozen ", "<string>", _INDUCTOR)
_COMPILED = os.path.join(_TORCH, "_functorch", "_aot_autograd") + os.sep
_ENTERS = frozenset({"__enter__", "enter_context", "__aenter__"})
"""What a ``with`` statement calls, also of Python's own context managers."""


@dataclass(frozen=True, slots=True)
class Site:
    """What a site number stands for.

    ``module`` is an index of ``Modules.names``; ``user`` the innermost code outside installed packages, with its
    instruction; ``in_optimizer`` says that ``torch.optim`` called.
    """

    code: CodeType | None
    instruction: int
    module: int
    user: tuple[CodeType, int] | None
    in_optimizer: bool


class Places:
    """All sites of a process."""

    def __init__(self) -> None:
        self.kinds: dict[int, int] = {}
        self.modules = Modules()
        self.sites: list[Site] = [Site(None, -1, 0, None, False)]
        self.numbers: dict[tuple[int, int, int, int], int] = {}
        self._in_modules: dict[int, int] = {0: NOWHERE}
        self._recomputing: dict[tuple[int, bool], bool] = {}
        self._compiled: dict[int, bool] = {}
        self._places: dict[int, Place] = {}
        self._codes: dict[int, CodeType] = {}
        self._directory = os.getcwd()

    def kind(self, code: CodeType) -> int:
        """What ``code`` is; remembered in ``kinds`` by its id, for which it is kept alive."""
        known = self.kinds.get(id(code))
        if known is None:
            self._codes[id(code)] = code
            known = self.kinds[id(code)] = _classify(code)
        return known

    def site(self, frame: FrameType, module: int, through_optimizer: int) -> int:
        """The number of a place in the program, in a module (an index of ``modules``)."""
        key = (id(frame.f_code), frame.f_lasti, module, through_optimizer)
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.sites)
            self._codes[id(frame.f_code)] = frame.f_code
            user, in_optimizer = self._outwards(frame)
            in_optimizer = bool(through_optimizer) or (in_optimizer and module == 0)
            self.sites.append(Site(frame.f_code, frame.f_lasti, module, user, in_optimizer))
        return number

    def module_site(self, module: int) -> int:
        """The site of what happens in a module without being on any line."""
        number = self._in_modules.get(module)
        if number is None:
            number = self._in_modules[module] = len(self.sites)
            self.sites.append(Site(None, -1, module, None, False))
        return number

    def owner_site(self, parameter: Any) -> int:
        """The site of what autograd does to a parameter's gradient: the module that has it."""
        return self.module_site(self.modules.owner(parameter))

    def recomputes(self, site: int, frame: FrameType | None) -> bool:
        """Whether code of the program that runs inside a backward repeats a forward.

        ``torch.utils.checkpoint`` does, also where gradients are off. Otherwise a function's own backward or a hook
        runs with gradients off, unless a graph of the backward is made.
        """
        key = (site, torch.is_grad_enabled())
        known = self._recomputing.get(key)
        if known is None:
            known = self._recomputing[key] = _recomputes(frame, key[1])
        return known

    def compiled(self, site: int, frame: FrameType | None) -> bool:
        """Whether compiled code of a function runs, whose forward makes no nodes but its own; decided once a site."""
        known = self._compiled.get(site)
        if known is None:
            while frame is not None and not frame.f_code.co_filename.startswith(_COMPILED):
                frame = frame.f_back
            known = self._compiled[site] = frame is not None
        return known

    def place(self, site: int) -> Place:
        """The place of a site; one object for each."""
        place = self._places.get(site)
        if place is None:
            place = self._places[site] = self._resolve(self.sites[site])
        return place

    def module(self, site: int) -> str | None:
        """The module of a site, None outside of any."""
        return self.modules.names[self.sites[site].module]

    def here(self) -> Place:
        """The calling thread's innermost line outside torch and amp_audit; columns where Python gives them."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and self.kind(frame.f_code) != USER:
            frame = frame.f_back
        if frame is None:
            return Place()
        return self.place(self.site(frame, self.modules.current(), 0))

    def entered_by_program(self) -> bool:
        """Whether the program enters what the calling thread is entering: by itself, or where one of its own ``with``
        statements has installed code do it. A framework that calls the program within has entered it by itself.
        """
        frame: FrameType | None = sys._getframe(1)
        called, through_installed = "", False
        while frame is not None:
            if self.kind(frame.f_code) == USER:
                if not _installed(frame.f_code):
                    return not through_installed or called in _ENTERS
                through_installed = True
            called = frame.f_code.co_name
            frame = frame.f_back
        return True

    def of_error(self, error: BaseException) -> Place:
        """Where an error was raised: the innermost line outside torch that it went through."""
        found: tuple[CodeType, int] | None = None
        user: tuple[CodeType, int] | None = None
        step = error.__traceback__
        while step is not None:
            code = step.tb_frame.f_code
            if self.kind(code) == USER:
                found = (code, step.tb_lasti)
                user = found if not _installed(code) else user
            step = step.tb_next
        return Place() if found is None else self._resolve(Site(*found, 0, user, False))

    def _outwards(self, frame: FrameType) -> tuple[tuple[CodeType, int] | None, bool]:
        """The innermost frame outside installed packages, and whether an optimizer is at work further out."""
        user: tuple[CodeType, int] | None = None
        in_optimizer = False
        at: FrameType | None = frame
        while at is not None and not (user and in_optimizer):
            kind = self.kind(at.f_code)
            if user is None and kind == USER and not _installed(at.f_code):
                user = (at.f_code, at.f_lasti)
            in_optimizer |= kind == OPTIMIZER
            at = at.f_back
        return user, in_optimizer

    def _resolve(self, site: Site) -> Place:
        module = self.modules.names[site.module]
        if site.code is None:
            return Place(module=module)
        path = self._absolute(site.code)
        line, column, end_column = position(site.code, site.instruction)
        user_path, user_line = None, None
        if site.user is not None:
            user_path, user_line = self._absolute(site.user[0]), position(*site.user)[0]
        function = getattr(site.code, "co_qualname", site.code.co_name)
        return Place(path, line, column, end_column, function, module, user_path, user_line)

    def _absolute(self, code: CodeType) -> str:
        path = code.co_filename
        return path if path.startswith("<") else os.path.normpath(os.path.join(self._directory, path))


def _recomputes(frame: FrameType | None, gradients: bool) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _CHECKPOINT:
            return True
        if frame.f_code.co_filename == _GRAPH and frame.f_code.co_name == _ENGINE:
            arguments = frame.f_locals.get("args", ())  # gradients, keep_graph, create_graph, ...
            return gradients and not (len(arguments) > 2 and arguments[2])
        frame = frame.f_back
    return gradients


def _classify(code: CodeType) -> int:
    path = code.co_filename
    if path == _GRAPH and code.co_name == _ENGINE:
        return ENGINE
    if path.startswith(_OPTIM):
        return OPTIMIZER
    if path.startswith((_TORCH, _HERE, *_GENERATED)):
        return SKIPPED
    return SKIPPED if path.startswith(_PYTHON) and not _installed(code) else USER


def _installed(code: CodeType) -> bool:
    return any(part in code.co_filename for part in _PACKAGES)


def position(code: CodeType, instruction: int) -> tuple[int | None, int | None, int | None]:
    """Line, column and end column (code points, from 1) of an instruction, given as ``f_lasti``.

    The end column is None when the expression ends on another line; both are on Python 3.10, which has none.
    """
    if instruction < 0:
        return code.co_firstlineno, None, None
    if not hasattr(code, "co_positions"):
        lines = (line for start, end, line in code.co_lines() if start <= instruction < end)
        return next(lines, None), None, None
    for number, (line, end_line, column, end_column) in enumerate(code.co_positions()):
        if number == instruction // 2:
            if line is None or column is None:
                return line, None, None
            end = _points(code, line, end_column) if end_line == line else None
            return line, _points(code, line, column), end
    return None, None, None


def _points(code: CodeType, line: int, offset: int | None) -> int | None:
    """A byte offset in a line as a column in code points."""
    if offset is None:
        return None
    text = linecache.getline(code.co_filename, line).encode("utf-8", "replace")
    return len(text[:offset].decode("utf-8", "replace")) + 1 if text else offset + 1


class Modules:
    """Which module each thread is in, and what modules and parameters are called.

    Names are dotted paths below the outermost module, of several such after the variables that hold them, and without
    the layers that ``torch.compile``, DDP and FSDP add;
    index 0 means outside of any module. ``home`` is the thread that trains; ``outermost`` is told of its outermost
    calls, before anything else is done about them, ``left`` of what any of its calls return; ``guest_enters`` and
    ``guest_leaves`` of those of other threads; ``broken`` of errors of our own. ``trained`` tells the parameters that
    optimizers have.
    """

    def __init__(self) -> None:
        self.names: list[str | None] = [None]
        self.stacks: dict[int, list[int]] = {}
        self.home = get_ident()
        self.outermost: Callable[[Any], None] | None = None
        self.left: Callable[[str, Any], None] | None = None
        self.guest_enters: Callable[[int], None] = lambda thread: None
        self.guest_leaves: Callable[[int], None] = lambda thread: None
        self.broken: Callable[[Exception], None] = lambda error: None
        self.trained: Callable[[], Iterable[Any]] = lambda: ()
        self._indices: dict[str, int] = {}
        self._known: dict[int, int] = {}
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._parameters: dict[int, tuple[weakref.ref[Any], str, int]] = {}
        self._patches = Patches()

    def install(self) -> None:
        """Follow calls of modules from now on.

        Not by hooks: torch warns of these when a module is compiled, and takes a longer way to call any module.
        """
        if not self._patches.wraps(torch.nn.Module, "__call__"):
            self._patches.wrap(torch.nn.Module, "__call__", self._follow)

    def uninstall(self) -> None:
        self._patches.undo()
        for stack in self.stacks.values():
            del stack[1:]

    def stack(self, thread: int) -> list[int]:
        """The modules that a thread is in, as indices of ``names``, after a 0 for outside."""
        return self.stacks.setdefault(thread, [0])

    def current(self) -> int:
        stack = self.stacks.get(get_ident())
        return stack[-1] if stack else 0

    def owner(self, parameter: Any) -> int:
        """The index of the module that a parameter belongs to, 0 when it was not met in one."""
        known = self._parameters.get(id(parameter))
        return known[2] if known and known[0]() is parameter else 0

    def parameter(self, parameter: Any) -> str | None:
        """What a parameter is called, e.g. ``"encoder.fc1.weight"``."""
        known = self._parameters.get(id(parameter))
        return known[1] if known and known[0]() is parameter else None

    def owned(self) -> Iterator[Any]:
        """The parameters and buffers of all modules that are known and alive."""
        for reference in list(self._alive.values()):
            module = reference()
            if module is not None:
                for tensor in (*module._parameters.values(), *module._buffers.values()):
                    if tensor is not None:
                        yield tensor

    def tables(self) -> Iterator[tuple[Any, str]]:
        """The buffers of all modules that are known and alive, and other tensors that they hold, with their names."""
        for key, reference in list(self._alive.items()):
            module = reference()
            if module is not None:
                path = self.names[self._known[key]]
                for name, value in (*module._buffers.items(), *vars(module).items()):
                    if isinstance(value, torch.Tensor):
                        yield value, f"{path}.{name}" if path else name

    def name(self, root: Any, prefix: str = "") -> None:
        """Give names to a module, all modules in it that have none, and their parameters."""
        for module, path in holders.walk(root, prefix):
            if id(module) in self._known:
                continue
            index = self._indices.get(path)
            if index is None:
                index = self._indices[path] = len(self.names)
                self.names.append(path)
            self._known[id(module)] = index
            self._alive[id(module)] = weakref.ref(module, self._forgetter(id(module)))
            for name, parameter in module._parameters.items():
                if parameter is not None and self.parameter(parameter) is None:
                    full = f"{path}.{name}" if path else name
                    self._parameters[id(parameter)] = (weakref.ref(parameter), full, index)

    def _forgetter(self, key: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
            self._known.pop(key, None)
            self._alive.pop(key, None)

        return forget

    def _follow(self, original: Callable[..., Any]) -> Callable[..., Any]:
        stacks, known = self.stacks, self._known

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(module, *args, **kwargs)
            thread = get_ident()
            stack = stacks.get(thread)
            if stack is None or len(stack) == 1:
                stack = self._outermost(thread, module)
            depth = len(stack)
            try:
                index = known.get(id(module))
                stack.append(self._index(stack, module) if index is None else index)
                out = original(module, *args, **kwargs)
                if self.left is not None:
                    self._leave(thread, stack, depth, out)
                return out
            except BaseException as error:
                tracebacks.clean(error)
                raise
            finally:
                del stack[depth:]
                if depth == 1 and thread != self.home:
                    self.guest_leaves(thread)

        return __call__

    def _outermost(self, thread: int, module: Any) -> list[int]:
        """A thread calls a module from outside of any: its stack."""
        stack = self.stack(thread)
        if thread != self.home:
            self.guest_enters(thread)
        elif self.outermost is not None:
            self.outermost(module)
        return stack

    def _index(self, stack: list[int], module: Any) -> int:
        """The index of the name of a module that is called for the first time."""
        try:
            self._name_in(stack, module)
        except Exception as error:
            if is_thrown_in(error):
                raise
            self.broken(error)
        return self._known.get(id(module), 0)

    def _leave(self, thread: int, stack: list[int], depth: int, out: Any) -> None:
        """Tell of what a module returns, on the thread that trains. Recording may have ended while it ran."""
        if self.left is None or depth >= len(stack) or thread != self.home:
            return
        try:
            self.left(self.names[stack[depth]] or "", out)
        except Exception as error:
            if is_thrown_in(error):
                raise
            self.left = None
            self.broken(error)

    def _name_in(self, stack: list[int], module: Any) -> None:
        """Name a module that was not met as a child of another."""
        outer = self.names[stack[-1]]
        if isinstance(module, torch.fx.GraphModule):  # a compiler's, of what called it
            self.name(module, outer or "")
        elif "_is_replica" in vars(module):  # nn.DataParallel's, of what is running at home
            self.name(module, self.names[self.stack(self.home)[-1]] or "")
        else:
            self._name_by_holder(module, outer)

    def _name_by_holder(self, module: Any, outer: str | None) -> None:
        """Name a module by what the program calls it.

        The only one that has something to train is where names begin, as in its ``state_dict``. Where there are
        several, and of others that come beside it, each begins with its variable; what hides in a module's own lists
        with that module.
        """
        own, kind = holders.parameters(module), ".".join(filter(None, (outer, type(module).__name__)))
        if not own:
            self.name(module, kind)  # a loss, an activation: alike wherever it is used
            return
        trained = {id(parameter): parameter for parameter in self.trained()}
        if trained.keys() <= own and self._is_free(""):
            self.name(module)
        else:
            found = holders.held(sys._getframe(1))
            root = next((one for one in found if id(module) in one.modules), None)
            root = root or holders.Held(kind, module, None, set(), own)
            others = {key for key in trained if key not in root.parameters}
            alone = not any(self.parameter(trained[key]) is not None for key in others)
            alone &= all(one is root or others.isdisjoint(one.parameters) for one in found)
            self.name(root.module, self._path(root, alone))

    def _path(self, root: holders.Held, alone: bool) -> str:
        known, keeper = (self._known.get(id(one)) for one in (root.module, root.keeper))
        if known is not None:  # it has got a new part
            return self.names[known] or ""
        if alone and self._is_free(""):
            return ""
        return self._unused(".".join(filter(None, (self.names[keeper or 0], root.expression))))

    def _is_free(self, path: str) -> bool:
        """Whether no module that is alive has this path."""
        index = self._indices.get(path)
        return index is None or index not in self._known.values()

    def _unused(self, path: str) -> str:
        """The path, numbered when another module has it."""
        free, count = path, 1
        while not self._is_free(free):
            count += 1
            free = f"{path} ({count})"
        return free
