"""Which states a checkpoint gathers: an optimizer's without that of the scaler that goes with it (AMP701).

A checkpoint is data, not an order of calls: a dict that is filled over several statements, returned by one function and
written by another, often in a file that never mentions a scaler. So it is read off the definitions, project-wide, and
not off paths. What is written is told by ``state_dict()`` of something that is, or is called, an optimizer or a scaler.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from amp_audit.model import Confidence
from amp_audit.rulebook import Detector, Rule
from amp_audit.static.binding.origins import Origins, Where
from amp_audit.static.binding.project import ClassRef, FunctionRef, ModuleRef, Project
from amp_audit.static.binding.signatures import SCALERS
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.source import ir
from amp_audit.static.source.names import is_settings
from amp_audit.static.source.traverse import children, expressions, last_word, statements, walk
from amp_audit.static.spots.sites import inside

_OPTIMIZER = re.compile(r"^(?!.*sched).*optim|^opt(?:_\w+)?$|_opt$", re.IGNORECASE)
_SAID_OF_ONE = re.compile(
    r"_(?:name|type|kind|cls|class|str|id|lr|cfg|conf|config|args|kwargs|params|options|settings|steps?)$",
    re.IGNORECASE,
)
"""What is said of an optimizer and is none: its name, its settings."""
_SCALER = re.compile(r"scaler|^amp$", re.IGNORECASE)
_MODEL = re.compile(r"model|net|sched", re.IGNORECASE)
_SAVES = re.compile(
    r"save|checkpoint|ckpt|snapshot|dump|write|store|upload|export|register|recover|persist", re.IGNORECASE
)
_TEXTS = frozenset({"json", "yaml", "toml", "csv"})
"""What writes text, and no tensors."""
_SCALING = frozenset({"GradScaler", "ShardedGradScaler", "unscale_", "scale_loss"})
_APEX = "apex.amp.scale_loss"
_OPTIMIZER_STATE, _SCALER_STATE, _MODEL_STATE, _ANY_STATE = "optimizer", "scaler", "model", "any"


@dataclass(slots=True)
class _Checkpoint:
    """A dict or call that holds an optimizer's state; ``at`` is where that stands, ``save`` the call that writes it."""

    at: int
    states: set[str]
    names: set[str] = field(default_factory=set)
    save: int | None = None
    returned: bool = False
    function: str = ""


@dataclass(slots=True)
class _Part:
    """What one module has to do with checkpoints and loss scaling."""

    checkpoints: list[_Checkpoint] = field(default_factory=list)
    written: list[tuple[str, int, frozenset[str]]] = field(default_factory=list)  # (function, save, other states)
    apart: bool = False
    scaler: int | None = None
    sure: bool = False


class _Survey:
    """What the modules of a project have to do with checkpoints, each read when it is asked about. It lives as long as
    the project and does not hold it."""

    def __init__(self, origins: Origins) -> None:
        self._origins = weakref.ref(origins)
        self._parts: dict[str, _Part] = {}

    @property
    def origins(self) -> Origins:
        found = self._origins()
        assert found is not None
        return found

    @property
    def project(self) -> Project:
        return self.origins.project

    def part(self, path: str) -> _Part:
        """What one module has to do with them."""
        found = self._parts.get(path)
        if found is None:
            reader = _Reader(self.project.modules[path], self.project, self.origins, self._scalers)
            found = self._parts[path] = reader.part()
        return found

    @cached_property
    def _scalers(self) -> frozenset[str]:
        return frozenset(name for module in self.project.modules.values() for name in _names_of_scalers(module))

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """By module, those that hold what it imports by name."""
        return {
            module.path: {owner.path for owner, _ in _imported_things(module, self.project)} - {module.path}
            for module in self.project.modules.values()
        }

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """By module, those that import something of it by name."""
        found: dict[str, set[str]] = {}
        for path, targets in self.imports.items():
            for target in targets:
                found.setdefault(target, set()).add(path)
        return found

    def family(self, path: str) -> set[str]:
        """The modules that a program with this one in it may consist of: those that import it, and what they import."""
        return _closure(_closure({path}, self.importers), self.imports)


_SURVEYS: weakref.WeakKeyDictionary[Origins, _Survey] = weakref.WeakKeyDictionary()


def scaler_left_out(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """AMP701: an optimizer's state is written without the scaler's, in a program that scales its loss."""
    survey = _SURVEYS.get(origins)
    if survey is None:
        survey = _SURVEYS[origins] = _Survey(origins)
    own = survey.part(module.path)
    if not own.checkpoints:
        return
    parts = {path: survey.part(path) for path in survey.family(module.path)}
    if any(part.apart for part in parts.values()):
        return
    if not _scaling(module, survey, project):
        return
    for place in dict.fromkeys(_places(module.path, own, parts)):
        scaling = _scaling(project.modules[place[0]], survey, project)
        if not scaling:
            continue  # another program, which shares what gathers the states, and scales nothing itself
        path, part = min(scaling.items(), key=lambda pair: (pair[0] != module.path, not pair[1].sure, pair[0]))
        step = RawStep(path, part.scaler or 0, "the loss is scaled by this one")
        confidence = Confidence.HIGH if part.sure else Confidence.MEDIUM
        yield RawFinding(rule, place[0], place[1], detector.message, confidence, related=(step,))


def _scaling(module: ir.Module, survey: _Survey, project: Project) -> dict[str, _Part]:
    """The parts that scale a loss: in this module and those that import it, and in what these import by name.

    A library that can scale does not do it for everyone who imports another thing of it.
    """
    near = _closure({module.path}, survey.importers)
    found = {path: survey.part(path) for path in near}
    for path in near:
        if path.endswith("__init__.py"):
            continue  # it hands on what does not belong together
        for owner, words in _imported_things(project.modules[path], project):
            if not words.isdisjoint(_SCALING):
                found[owner.path] = survey.part(owner.path)
    return {path: part for path, part in found.items() if part.scaler is not None}


def _imported_things(module: ir.Module, project: Project) -> Iterator[tuple[ir.Module, frozenset[str]]]:
    """The functions, classes and modules of the project that a module imports, with the words in them; those that
    another module hands on count where they stand.
    """
    for node in module.imports:
        for _, target in node.bindings:
            thing = project.imported(module, target)
            if isinstance(thing, FunctionRef):
                yield thing.module, thing.function.words
            elif isinstance(thing, ClassRef):
                for owner in project.mro(thing):
                    yield owner.module, owner.cls.words
            elif isinstance(thing, ModuleRef) and thing.module is not None:
                yield thing.module, thing.module.words


def _places(path: str, own: _Part, parts: dict[str, _Part]) -> Iterator[tuple[str, int]]:
    """Where each checkpoint without the scaler's state is written; one that nobody is seen to write is left alone."""
    for checkpoint in own.checkpoints:
        if checkpoint.states & {_SCALER_STATE, _ANY_STATE}:
            continue
        if checkpoint.save is not None:
            yield path, checkpoint.save
        elif checkpoint.returned:
            calls = [(other, *call) for other, part in parts.items() for call in part.written]
            for other, function, save, states in calls:
                if function == checkpoint.function and not states & {_SCALER_STATE, _ANY_STATE}:
                    yield other, save


def _closure(paths: set[str], edges: dict[str, set[str]]) -> set[str]:
    found, queue = set(paths), list(paths)
    while queue:
        for path in edges.get(queue.pop(), ()):
            if path not in found:
                found.add(path)
                queue.append(path)
    return found


def _names_of_scalers(module: ir.Module) -> Iterator[str]:
    """What a module calls its scalers, whatever else that may name: they are built, or losses are scaled by them."""
    if module.words.isdisjoint(_SCALING):
        return
    for node in statements(module.body, into=True):
        if isinstance(node, ir.Assign) and isinstance(node.value, ir.Call) and last_word(node.value.func) in _SCALING:
            yield from filter(None, map(last_word, node.targets))
        for call in (part for expression in expressions(node) for part in walk(expression)):
            if isinstance(call, ir.Call) and isinstance(call.func, ir.Attr) and call.func.name == "unscale_":
                yield last_word(call.func.base)


class _Reader:
    """Reads the checkpoints and the loss scaling of one module. ``scalers``: what the project calls its scalers."""

    def __init__(self, module: ir.Module, project: Project, origins: Origins, scalers: frozenset[str]) -> None:
        self.module = module
        self.project = project
        self.origins = origins
        self.scalers = scalers
        self.where = Where(module)
        self.made: dict[str, ir.Call] = {}
        self.found = _Part()

    def part(self) -> _Part:
        """The module's part; nothing where its words say that nothing is there."""
        words = self.module.words
        scales = bool(words & {"unscale_", "scale_loss", "scale"}) or any("GradScaler" in word for word in words)
        if scales or "state_dict" in words:
            self._body(Where(self.module), self.module.body)
        return self.found

    def _body(self, where: Where, body: Sequence[ir.Stmt]) -> None:
        own: list[_Checkpoint] = []
        states: dict[str, set[str]] = {}
        outer, self.made = self.made, {}
        name = where.scope.function.name if where.scope is not None else ""
        apart = self.found.apart
        for node in statements(body):
            if isinstance(node, (ir.Function, ir.Class)):
                self._body(inside(where, node), node.body)
                continue
            self.where = where
            for expression in expressions(node):
                self._scaling(expression, where)
            self._statement(node, where, own, states)
        for checkpoint in own:
            checkpoint.function = _state_of(where.cls) if where.cls is not None and name == "state_dict" else name
        self.found.checkpoints += own
        self.made = outer
        if where.cls is not None and name in ("state_dict", "load_state_dict"):
            if _SCALER.search(where.cls.cls.name):
                self.found.apart = apart  # a scaler that hands its own state on has not been asked for it yet
            elif any(_SCALER_STATE in checkpoint.states for checkpoint in own):
                self.found.apart = True  # whoever saves this object saves the scaler

    # Loss scaling

    def _scaling(self, expression: ir.Expr, where: Where) -> None:
        for call in walk(expression):
            if not isinstance(call, ir.Call):
                continue
            name = self.project.qualified(self.module, call.func, where.scope)
            if name in SCALERS:
                if not self._is_off(call, where):
                    self._scaler(call.at, True)
            elif name == _APEX:
                self._scaler(call.at, True)
            elif name is None and last_word(call.func) == "unscale_" and len(call.args) == 1:
                self._scaler(call.at, False)
            elif last_word(call.func) == "load_state_dict" and self._is_scaler(_owner(call.func)):
                self.found.apart = True

    def _scaler(self, at: int, sure: bool) -> None:
        if self.found.scaler is None or (sure and not self.found.sure):
            self.found.scaler, self.found.sure = at, sure

    def _is_off(self, call: ir.Call, where: Where) -> bool:
        """Whether a scaler is switched off by what stands in the code and is never changed."""
        flag = next((arg.value for arg in call.args if arg.keyword == "enabled"), None)
        if flag is None:
            return False
        values = {self._constant(origin.expr, origin.where) for origin in self.origins.of(flag, where)}
        return values == {False} and self.module.words.isdisjoint({"exec", "globals"})

    def _constant(self, expr: ir.Expr | None, where: Where) -> object:
        if isinstance(expr, ir.Const):
            return expr.value
        if isinstance(expr, ir.Compare) and len(expr.rest) == 1 and expr.rest[0][0] in ("==", "!="):
            sides = [
                {o.expr.value if isinstance(o.expr, ir.Const) else o for o in self.origins.of(side, where)}
                for side in (expr.left, expr.rest[0][1])
            ]
            if all(len(side) == 1 and isinstance(next(iter(side)), str) for side in sides):
                return (sides[0] == sides[1]) is (expr.rest[0][0] == "==")
        return None

    # Checkpoints

    def _statement(self, node: ir.Stmt, where: Where, own: list[_Checkpoint], states: dict[str, set[str]]) -> None:
        names = _targets(node)
        for expression in expressions(node):
            for root in _roots(expression):
                self._root(root, node, names, own, states)
        returned = _spelled(node.value) if isinstance(node, ir.Return) and node.value is not None else ""
        for checkpoint in own:
            checkpoint.returned = checkpoint.returned or (returned != "" and returned in checkpoint.names)
        if isinstance(node, ir.Assign):
            self._items(node, own, states)
            value = node.value
            if isinstance(value, ir.Call):
                self.made.update((name, value) for name in names)
            direct = self._direct(value, states)
            if direct is not None:
                for name in names:
                    states[name] = {direct}

    def _items(self, node: ir.Assign, own: list[_Checkpoint], states: dict[str, set[str]]) -> None:
        """``checkpoint["scaler"] = ...``: the dict of that name holds it too."""
        for target in node.targets:
            name = _spelled(target.base) if isinstance(target, ir.Subscript) else ""
            if not isinstance(target, ir.Subscript) or not name:
                continue
            told = self._states(node.value, states)
            if not isinstance(target.index, ir.Const) and not told:
                told = {_ANY_STATE} if _is_state(node.value) else set()
            elif isinstance(target.index, ir.Const) and _SCALER.search(str(target.index.value)):
                told |= {_SCALER_STATE}
            held = [checkpoint for checkpoint in own if name in checkpoint.names]
            for checkpoint in held:
                checkpoint.states |= told
            if told & {_SCALER_STATE} and not held:
                self.found.apart = self.found.apart or not _is_checkpoint_name(name)
                states.setdefault(name, set()).update(told)
            elif _OPTIMIZER_STATE in told and not held:
                own.append(_Checkpoint(node.at, told | states.get(name, set()), {name}))

    def _root(
        self, root: ir.Expr, node: ir.Stmt, names: set[str], own: list[_Checkpoint], states: dict[str, set[str]]
    ) -> None:
        """One display or call that is not inside another: a checkpoint, the writing of one, or of a scaler alone."""
        told = self._states(root, states)
        save = root.at if isinstance(root, ir.Call) and _saves(root) else None
        if save is not None:
            assert isinstance(root, ir.Call)
            self._written(root, save, told, own)
        if _OPTIMIZER_STATE in told and (save is not None or _gathers(root)):
            made = _Checkpoint(root.at, told, names, save)
            made.returned = isinstance(node, ir.Return)
            own.append(made)
        elif _SCALER_STATE in told and not (isinstance(node, ir.Assign) and isinstance(node.targets[0], ir.Subscript)):
            gathered = names and isinstance(node, ir.Assign) and self._direct(node.value, states) is not None
            if not gathered:
                self.found.apart = True

    def _written(self, call: ir.Call, save: int, told: set[str], own: list[_Checkpoint]) -> None:
        for part in walk(call):
            spelled = _spelled(part)
            for checkpoint in own:
                if spelled and spelled in checkpoint.names:
                    checkpoint.save = checkpoint.save or save
                    checkpoint.states |= told
            made = part if isinstance(part, ir.Call) and part is not call else self.made.get(spelled)
            if made is not None and (name := self._returning(made)):
                self.found.written.append((name, save, frozenset(told)))

    def _returning(self, call: ir.Call) -> str:
        """The function of the project that a call may be of; ``state_dict`` only where its class is known."""
        name = last_word(call.func)
        if name != "state_dict" or not isinstance(call.func, ir.Attr):
            return name
        if self.origins.is_self(call.func.base, self.where) and self.where.cls is not None:
            return _state_of(self.where.cls)
        made = [(one.expr, one.where) for one in self.origins.of(call.func.base, self.where)]
        calls = [(expr.func, where) for expr, where in made if isinstance(expr, ir.Call)]
        classes = [self.project.resolve(where.module, func, where.scope) for func, where in calls]
        return next((_state_of(cls) for cls in classes if isinstance(cls, ClassRef)), "")

    def _states(self, root: ir.Expr, states: dict[str, set[str]]) -> set[str]:
        """Whose states an expression holds."""
        told: set[str] = set()
        for part in walk(root):
            if isinstance(part, ir.Call):
                told |= {kind} if (kind := self._direct(part, {})) is not None else set()
                named = [(arg.keyword, arg.value) for arg in part.args if arg.keyword]
                if any(self._holds_scaler(word, value) for word, value in named) and not self._is_read(part):
                    told.add(_SCALER_STATE)
                told |= {_ANY_STATE for arg in part.args if arg.star == "**" and _gathers(part)}
                if _saves(part):
                    told |= {
                        _SCALER_STATE for arg in part.args if self._is_scaler(last_word(arg.value) or _text(arg.value))
                    }
            elif isinstance(part, ir.Mapping):
                told |= self._held(part)
            elif isinstance(part, ir.Name):
                told |= states.get(part.id, set())
            elif isinstance(part, ir.Comprehension) and _is_state(part.element):
                told.add(_of_all(part))
        return told

    def _is_read(self, call: ir.Call) -> bool:
        """Whether a call is of a function of the project that writes nothing by its name: what becomes there of what it
        is given is seen there.
        """
        binding = self.project.resolve(self.module, call.func, self.where.scope)
        return isinstance(binding, FunctionRef) and not _SAVES.search(binding.function.name)

    def _direct(self, expr: ir.Expr, states: dict[str, set[str]]) -> str | None:
        """Whose state a value is: ``x.state_dict()``, or one of two things of which one is."""
        if isinstance(expr, ir.IfExp):
            return self._direct(expr.body, states) or self._direct(expr.orelse, states)
        if isinstance(expr, ir.Comprehension) and _is_state(expr.element):
            return _of_all(expr)
        if not isinstance(expr, ir.Call) or not isinstance(expr.func, ir.Attr) or expr.func.name != "state_dict":
            return None
        owner = _owner(expr.func)
        if self._is_scaler(owner):
            return _SCALER_STATE
        return _OPTIMIZER_STATE if _OPTIMIZER.search(owner) else None

    def _held(self, mapping: ir.Mapping) -> set[str]:
        """What a display says by its keys: ``{"optimizer": optimizer}`` is written whole, ``**more`` is anything."""
        told: set[str] = set()
        for key, value in mapping.items:
            word = str(key.value) if isinstance(key, ir.Const) else ""
            if key is None and not isinstance(value, ir.Mapping):
                told.add(_ANY_STATE)
            elif word and self._holds_scaler(word, value):
                told.add(_SCALER_STATE)
            elif _OPTIMIZER.search(word) and isinstance(value, (ir.Name, ir.Attr)) and _is_optimizer(value):
                told.add(_OPTIMIZER_STATE)
        return told

    def _holds_scaler(self, word: str, value: ir.Expr) -> bool:
        """Whether what goes by a name is a scaler or its state: by that name, or because it is one."""
        if isinstance(value, (ir.Name, ir.Attr)) and last_word(value) in self.scalers:
            return True
        return bool(_SCALER.search(word)) and not isinstance(value, ir.Const)

    def _is_scaler(self, name: str) -> bool:
        return bool(_SCALER.search(name)) or name in self.scalers


def _state_of(cls: ClassRef) -> str:
    return f"{cls.cls.name}.state_dict"


def _of_all(comprehension: ir.Comprehension) -> str:
    """Whose states ``{k: v.state_dict() for k, v in things.items()}`` gathers."""
    words = {last_word(part) for _, iterable, _ in comprehension.loops for part in walk(iterable)}
    if any(map(_SCALER.search, words)):
        return _SCALER_STATE
    if any(map(_OPTIMIZER.search, words)):
        return _OPTIMIZER_STATE
    return _MODEL_STATE if any(map(_MODEL.search, words)) else _ANY_STATE


def _is_optimizer(value: ir.Name | ir.Attr) -> bool:
    """Whether a value is an optimizer by its name, and not the name of one, or the setting that chooses one."""
    name = last_word(value)
    chosen = isinstance(value, ir.Attr) and is_settings(last_word(value.base))
    return bool(_OPTIMIZER.search(name)) and not _SAID_OF_ONE.search(name) and not chosen


def _is_state(expr: ir.Expr) -> bool:
    return any(isinstance(part, ir.Call) and last_word(part.func) == "state_dict" for part in walk(expr))


def _is_checkpoint_name(name: str) -> bool:
    return bool(_SAVES.search(name) or re.search(r"state|dict|^d$", name))


def _saves(call: ir.Call) -> bool:
    """Whether a call writes what it is given, by its name or that of a keyword (``to_save=``)."""
    name = last_word(call.func)
    if name == "state_dict" or name.startswith(("load", "torch_load")) or _owner(call.func) in _TEXTS:
        return False
    return bool(_SAVES.search(name)) or any(arg.keyword and _SAVES.search(arg.keyword) for arg in call.args)


def _gathers(root: ir.Expr) -> bool:
    """A display, ``dict(...)``, or the making of a record (``Snapshot(...)``)."""
    if isinstance(root, ir.Call):
        name = last_word(root.func)
        return name == "dict" or name[:1].isupper()
    return isinstance(root, ir.Mapping)


def _roots(expression: ir.Expr) -> Iterator[ir.Expr]:
    """The outermost calls and displays in an expression; ``f(x).g(y)`` is one call of ``g``."""
    if isinstance(expression, (ir.Call, ir.Mapping)):
        yield expression
        return
    for child in children(expression):
        yield from _roots(child)


def _targets(node: ir.Stmt) -> set[str]:
    targets: Iterable[ir.Expr] = node.targets if isinstance(node, ir.Assign) else ()
    return {spelled for target in targets if (spelled := _spelled(target))}


def _spelled(expr: ir.Expr) -> str:
    """A name, or an attribute of one, as written."""
    if isinstance(expr, ir.Name):
        return expr.id
    if isinstance(expr, ir.Attr) and isinstance(expr.base, ir.Name):
        return f"{expr.base.id}.{expr.name}"
    return ""


def _owner(func: ir.Expr) -> str:
    """The last word of what a method is called on."""
    base = func.base if isinstance(func, ir.Attr) else func
    while isinstance(base, (ir.Subscript, ir.Call)):
        base = base.base if isinstance(base, ir.Subscript) else base.func
    return last_word(base)


def _text(expr: ir.Expr) -> str:
    return expr.value if isinstance(expr, ir.Const) and isinstance(expr.value, str) else ""
