"""Which names can choose a path that matters, so that paths which differ only in other switches become one.

A name decides when a test that forks speaks of it, when it switches a region or a scaler, or when the value of a name
that decides is made from it: by assignments, arguments, defaults and returns. Local names are kept apart by function,
attributes and module-level names are taken by their spelling; so are functions. What calls of libraries give is no
switch, whatever they are given: it has no truth that is known before the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field

from amp_audit.records import record
from amp_audit.static.binding.names import collect
from amp_audit.static.binding.options import exclusive
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, expressions, walk
from amp_audit.static.walking.hot import Heat
from amp_audit.static.walking.vocabulary import MENTIONED

_SWITCHED = MENTIONED | {"set_grad_enabled", "inference_mode", "requires_grad_", "scale_loss"}
"""What a switch among its arguments turns on or off."""

_TRANSPARENT = frozenset({"bool", "int", "float", "str", "any", "all", "not_", "isinstance"})
"""Calls whose result is as known as what they are given."""

_BITS = frozenset({8, 16, 32, 64})

_ATTRIBUTE, _GLOBAL, _RETURNED, _KEYWORD = -1, -2, -3, -4
Key = tuple[int, str]
"""A local name with the ``id`` of its function; or what kind of other name it is, with its spelling."""


def is_word(value: object) -> bool:
    """Whether a constant may be what code calls a precision by: a text, or a number of bits."""
    return bool(value) if isinstance(value, str) else type(value) is int and value in _BITS


@record(frozen=True, slots=True)
class Choosing:
    """Deciding names of one kind; ``words``: those of them that are held against words, or say which item is taken."""

    names: frozenset[str]
    words: frozenset[str]

    def __contains__(self, name: object) -> bool:
        return name in self.names


NOTHING = Choosing(frozenset(), frozenset())


@record(frozen=True, slots=True)
class Deciding:
    """The names in whose truth, None-ness or equality two paths must agree to be one.

    ``branches``: the ``id`` of each ``if`` that sets one of them to a constant. ``settling``: that of each that does so
    for an attribute or an item, of the function around, and of functions that refuse some of them together or give a
    word that decides. ``exclusive``: by a switch of the command line, those that cannot be given together with it.
    """

    locals: Mapping[int, Choosing] = field(default_factory=dict)
    attributes: Choosing = field(default_factory=lambda: NOTHING)
    globals: Choosing = field(default_factory=lambda: NOTHING)
    branches: frozenset[int] = frozenset()
    settling: frozenset[int] = frozenset()
    exclusive: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def chosen_by(self, statement: ir.If) -> bool:
        """Whether an ``if`` sets a deciding name to one constant or another."""
        return id(statement) in self.branches

    def settles(self, node: ir.Function | ir.If) -> bool:
        """Whether a function, or an ``if`` in one, settles what decides elsewhere, though nothing trains in it."""
        return id(node) in self.settling

    def local(self, function: ir.Function | None) -> Choosing | None:
        """Those of a function; None, which stands for all, where it was not read."""
        return None if function is None else self.locals.get(id(function))


class Readings:
    """What the code of modules says of their names, read once for all the programs that they belong to."""

    def __init__(self) -> None:
        self._read: dict[str, _Reading] = {}

    def deciding(self, modules: Iterable[ir.Module], heat: Heat) -> Deciding:
        """The deciding names of these modules, where ``heat`` says what matters."""
        return _closed([self._of(module) for module in modules], heat)

    def _of(self, module: ir.Module) -> _Reading:
        found = self._read.get(module.path)
        if found is None:
            found = self._read[module.path] = _Reading()
            found.module(module)
        return found


def deciding(modules: Iterable[ir.Module], heat: Heat) -> Deciding:
    """The deciding names of a project."""
    return Readings().deciding(modules, heat)


@record(frozen=True, slots=True)
class _Scope:
    function: ir.Function
    bound: frozenset[str]


_Scopes = tuple[_Scope, ...]


@record(frozen=True, slots=True)
class _Passed:
    """The names whose known truth arguments may have theirs from."""

    by_position: list[set[Key]] = field(default_factory=list)
    anyhow: set[Key] = field(default_factory=set)

    def add(self, arguments: Iterable[_Argument]) -> None:
        """Add those of one call."""
        position = 0
        for keyword, sources in arguments:
            self.anyhow.update(sources)
            if keyword is None:
                if position == len(self.by_position):
                    self.by_position.append(set())
                self.by_position[position].update(sources)
                position += 1


@record(frozen=True, slots=True)
class _Setting:
    """Where a function sets an attribute or an item to a word, if some tests are true."""

    key: Key
    function: ir.Function
    ifs: tuple[ir.If, ...]


@record(frozen=True, slots=True)
class _Exclusion:
    """Where a function does not let some switches be on together, within some tests that ask for some of them."""

    switches: tuple[frozenset[Key], ...]
    function: ir.Function
    ifs: tuple[ir.If, ...]


@record(frozen=True, slots=True)
class _Choice:
    """A test, by the names in it. It chooses a path that matters if one of some bodies or expressions does; or if one
    of the arms that it ``forks`` into leaves, unless nothing trains ``within`` the function around and it is not about
    how a model is held either.
    """

    names: frozenset[Key]
    within: ir.Function | None = None
    forks: tuple[ir.Stmt, ...] = ()
    matters: tuple[ir.Stmt, ...] = ()
    counts: tuple[ir.Expr, ...] = ()

    def counts_for(self, heat: Heat) -> bool:
        if heat.matters(self.matters) or heat.matters(self.forks) or any(map(heat.counts, self.counts)):
            return True
        return heat.forks(self.forks) and (not heat.is_quiet(self.within) or heat.settles(self.forks))


_Argument = tuple[str | None, frozenset[Key]]
"""The keyword of an argument, and the names whose known truth it may have its own from."""


class _Reading:
    """What one module says. ``seeds`` decide whatever matters, ``choices`` where it does. ``calls``: what is passed, by
    the name of what is called."""

    def __init__(self) -> None:
        self.seeds: set[Key] = set()
        self.choices: list[_Choice] = []
        self.flows: dict[Key, set[Key]] = {}
        self.functions: dict[str, list[ir.Function]] = {}
        self.calls: dict[str, list[tuple[_Argument, ...]]] = {}
        self.read: set[int] = set()
        self.constants: list[tuple[Key, tuple[ir.If, ...]]] = []
        self.settings: list[_Setting] = []
        self.exclusions: list[_Exclusion] = []
        self.spelling: list[ir.Function] = []
        self.exclusive: list[frozenset[str]] = []
        self.spelt: list[tuple[frozenset[Key], ir.If | None]] = []
        self._ifs: tuple[ir.If, ...] = ()

    # Statements

    def module(self, module: ir.Module) -> None:
        """Read all that a module says."""
        self.block(module.body, ())
        self.exclusive = exclusive(module)

    def block(self, body: Iterable[ir.Stmt], scopes: _Scopes, cls: ir.Class | None = None) -> None:
        """Read statements; those of a class body bind attributes."""
        for node in body:
            for expression in expressions(node):
                for part in walk(expression):
                    self._expression(part, scopes)
                    self._held(part, node, scopes)
            if isinstance(node, ir.Function):
                self._function(node, scopes)
            elif isinstance(node, ir.Class):
                self._class(node, scopes)
            else:
                self._statement(node, scopes, cls)
                outer = self._ifs
                self._ifs = (*outer, node) if isinstance(node, ir.If) else outer
                for inner in bodies(node):
                    self.block(inner, scopes, cls)
                self._ifs = outer

    def _statement(self, node: ir.Stmt, scopes: _Scopes, cls: ir.Class | None) -> None:
        if isinstance(node, ir.Assign):
            for target in node.targets:
                keys = self._targets(target, scopes, cls)
                self._flow(keys, node.value, scopes)
                if self._ifs and _is_constant(node.value):
                    self._constant(target, keys, _is_word(node.value), scopes)
        elif isinstance(node, ir.Augment):
            self._flow(self._targets(node.target, scopes, cls), node.value, scopes)
        elif isinstance(node, ir.For):
            self._flow(self._targets(node.target, scopes, cls), node.iterable, scopes)
        elif isinstance(node, ir.Return) and node.value is not None and scopes:
            self._flow([(_RETURNED, scopes[-1].function.name)], node.value, scopes)
            if _is_word(node.value):
                self.spelling.append(scopes[-1].function)
        elif isinstance(node, ir.If):
            within = scopes[-1].function if scopes else None
            self.choices.append(_Choice(self._names(node.test, scopes), within, forks=(*node.body, *node.orelse)))
            if within is not None and any(map(_ends, node.body)):
                self._exclusion([*(each.test for each in self._ifs), node.test], frozenset(), scopes)
        elif isinstance(node, ir.Assert) and scopes:
            self._exclusion([*(each.test for each in self._ifs), node.test], frozenset(), scopes)
        elif isinstance(node, ir.While):
            self.choices.append(_Choice(self._names(node.test, scopes), matters=node.body))
        elif isinstance(node, ir.Match):
            arms = tuple(statement for case in node.cases for statement in case.body)
            self.choices.append(_Choice(self._names(node.subject, scopes), matters=arms))

    def _constant(self, target: ir.Expr, keys: list[Key], word: bool, scopes: _Scopes) -> None:
        """Note what is set to a constant where some tests are true: what is held against a word there chooses it."""
        self.constants += [(key, self._ifs) for key in keys]
        spelt = {name for each in self._ifs for part in walk(each.test) for name in self._spelt(part, scopes)}
        for key in keys if spelt else ():
            self.flows.setdefault(key, set()).update(spelt)
        if scopes and isinstance(target, (ir.Attr, ir.Subscript)):
            function = scopes[-1].function
            if word:
                self.settings += [_Setting(key, function, self._ifs) for key in keys]
            elif _is_given(target, function):
                self._exclusion([each.test for each in self._ifs], frozenset(keys), scopes)

    def _exclusion(self, tests: Iterable[ir.Expr], target: frozenset[Key], scopes: _Scopes) -> None:
        """Note which switches a function does not let be on together: it raises an error, or sets one to a constant."""
        switches = [frozenset(self._own(each, scopes)) for test in tests for each in _switches(test)]
        switches += [target] if target else []
        if len(switches) > 1:
            self.exclusions.append(_Exclusion(tuple(switches), scopes[-1].function, self._ifs))

    def _function(self, node: ir.Function, scopes: _Scopes) -> None:
        self.functions.setdefault(node.name, []).append(node)
        self.read.add(id(node))
        names = collect(node.body, node.params, node.words)
        inner = (*scopes, _Scope(node, frozenset(names.bound) - frozenset(names.outer)))
        for param in node.params:
            self.flows.setdefault((id(node), param.name), set()).add((_KEYWORD, param.name))
            if param.default is not None:
                self._flow([(id(node), param.name)], param.default, scopes)
        outer, self._ifs = self._ifs, ()
        self.block(node.body, inner)
        self._ifs = outer

    def _class(self, node: ir.Class, scopes: _Scopes) -> None:
        for inner in node.body:
            if isinstance(inner, ir.Function) and inner.name == "__init__":
                self.functions.setdefault(node.name, []).append(inner)
            elif isinstance(inner, ir.Declare) and isinstance(inner.target, ir.Name):
                self.flows.setdefault((_ATTRIBUTE, inner.target.id), set()).add((_KEYWORD, inner.target.id))
        self.block(node.body, scopes, node)

    def _targets(self, target: ir.Expr, scopes: _Scopes, cls: ir.Class | None) -> list[Key]:
        if isinstance(target, ir.Name):
            return [(_ATTRIBUTE, target.id) if cls is not None else self._name(target.id, scopes)]
        if isinstance(target, ir.Attr):
            return [(_ATTRIBUTE, target.name)]
        if isinstance(target, ir.Sequence):
            return [key for item in target.items for key in self._targets(item, scopes, cls)]
        if isinstance(target, ir.Subscript):
            item = _text(target.index)
            return [*self._targets(target.base, scopes, cls), *([(_ATTRIBUTE, item)] if item else [])]
        if isinstance(target, ir.Starred):
            return self._targets(target.value, scopes, cls)
        return []

    # Expressions

    def _expression(self, node: ir.Expr, scopes: _Scopes) -> None:
        if isinstance(node, ir.Call):
            given = tuple((arg.keyword, frozenset(self._sources(arg.value, scopes))) for arg in node.args)
            if any(sources for _, sources in given):
                self.calls.setdefault(_called(node), []).append(given)
            for keyword, sources in given:
                if keyword is not None and sources:
                    self.flows.setdefault((_KEYWORD, keyword), set()).update(sources)
            if _called(node) in _SWITCHED:
                self.seeds.update(key for arg in node.args for key in self._names(arg.value, scopes))
        elif isinstance(node, ir.IfExp):
            self.choices.append(_Choice(self._names(node.test, scopes), counts=(node.body, node.orelse)))
        elif isinstance(node, ir.BoolOp):
            self.choices.append(_Choice(self._names(node.left, scopes), counts=(node.right,)))
        elif isinstance(node, ir.Walrus):
            self._flow(self._targets(node.target, scopes, None), node.value, scopes)
        elif isinstance(node, ir.Lambda):
            self._function(node.function, scopes)

    def _held(self, node: ir.Expr, statement: ir.Stmt, scopes: _Scopes) -> None:
        spelt = self._spelt(node, scopes)
        if spelt:
            self.spelt.append((spelt, statement if isinstance(statement, ir.If) else None))

    def _flow(self, targets: list[Key], value: ir.Expr, scopes: _Scopes) -> None:
        sources = set(self._sources(value, scopes))
        for target in targets if sources else ():
            self.flows.setdefault(target, set()).update(sources)

    def _names(self, node: ir.Expr, scopes: _Scopes) -> frozenset[Key]:
        """All names in a test."""
        return frozenset(key for part in walk(node) for key in self._own(part, scopes))

    def _spelt(self, node: ir.Expr, scopes: _Scopes) -> frozenset[Key]:
        """The names in an expression that are held against a word, or say which item is taken."""
        if isinstance(node, ir.Compare):
            return self._names(node, scopes) if any(map(_is_word, walk(node))) else frozenset()
        if isinstance(node, ir.Call) and _called(node) == "get":
            return self._names(node.args[0].value, scopes) if node.args else frozenset()
        return self._names(node.index, scopes) if isinstance(node, ir.Subscript) else frozenset()

    def _sources(self, node: ir.Expr, scopes: _Scopes) -> Iterator[Key]:
        """The names whose known truth a value may have its own from."""
        yield from self._own(node, scopes)
        if isinstance(node, ir.IfExp):
            parts: tuple[ir.Expr, ...] = (node.test, node.body, node.orelse)
        elif isinstance(node, (ir.BoolOp, ir.Binary)):
            parts = (node.left, node.right)
        elif isinstance(node, ir.Compare):
            parts = (node.left, *(right for _, right in node.rest))
        elif isinstance(node, ir.Unary):
            parts = (node.operand,)
        elif isinstance(node, ir.Sequence):
            parts = node.items
        elif isinstance(node, ir.Mapping):
            parts = tuple(value for _, value in node.items)
        elif isinstance(node, ir.Subscript):
            parts = (node.base, node.index)
        elif isinstance(node, ir.Call) and isinstance(node.func, ir.Attr) and node.func.name == "get":
            parts = (node.func.base, *(arg.value for arg in node.args))
        elif isinstance(node, ir.Call) and _called(node) in _TRANSPARENT:
            parts = tuple(arg.value for arg in node.args)
        elif isinstance(node, (ir.Walrus, ir.Starred)):
            parts = (node.value,)
        else:
            return
        for part in parts:
            yield from self._sources(part, scopes)

    def _own(self, node: ir.Expr, scopes: _Scopes) -> Iterator[Key]:
        if isinstance(node, ir.Name):
            yield self._name(node.id, scopes)
        elif isinstance(node, ir.Attr):
            yield (_ATTRIBUTE, node.name)
            yield (_GLOBAL, node.name)
            yield (_RETURNED, node.name)  # a property
        elif isinstance(node, ir.Subscript) and (item := _text(node.index)):
            yield (_ATTRIBUTE, item)
        elif isinstance(node, ir.Call):
            yield (_RETURNED, _called(node))
            if _called(node) in ("getattr", "get", "hasattr"):
                yield from ((_ATTRIBUTE, text) for arg in node.args if (text := _text(arg.value)))

    def _name(self, name: str, scopes: _Scopes) -> Key:
        for scope in reversed(scopes):
            if name in scope.bound:
                return id(scope.function), name
        return _GLOBAL, name


def _closed(readings: Sequence[_Reading], heat: Heat) -> Deciding:
    """All names that the deciding ones are made from, over some modules."""
    flows: dict[Key, list[Set[Key]]] = {}
    found = set[Key]()
    for reading in readings:
        found.update(reading.seeds)
        found.update(*(choice.names for choice in reading.choices if choice.counts_for(heat)))
        for key, sources in reading.flows.items():
            flows.setdefault(key, []).append(sources)
    for key, passed in _passed(readings):
        flows.setdefault(key, []).append(passed)
    found = _reached(found, flows)
    branches = frozenset(
        id(node) for reading in readings for key, ifs in reading.constants if key in found for node in ifs
    )
    spelt = (
        names for reading in readings for names, test in reading.spelt if test is None or _acts(test, branches, heat)
    )
    words = _reached(found & frozenset[Key]().union(*spelt), flows)
    names: dict[int, tuple[set[str], set[str]]] = {
        each: (set(), set()) for reading in readings for each in reading.read
    }
    for kind, name in found:
        names.setdefault(kind, (set(), set()))[0].add(name)
    for kind, name in words:
        names[kind][1].add(name)
    kinds = {kind: Choosing(frozenset(own), frozenset(spelt)) for kind, (own, spelt) in names.items()}
    settling = set[int]()
    for reading in readings:
        for each in reading.settings:
            if each.key in words:
                settling.update([id(each.function), *map(id, each.ifs)])
        for exclusion in reading.exclusions:
            if not any(map(found.isdisjoint, exclusion.switches)):
                settling.update([id(exclusion.function), *map(id, exclusion.ifs)])
        settling.update(id(function) for function in reading.spelling if (_RETURNED, function.name) in words)
    return Deciding(
        kinds,
        kinds.get(_ATTRIBUTE, NOTHING),
        kinds.get(_GLOBAL, NOTHING),
        branches,
        frozenset(settling),
        _others(readings),
    )


def _others(readings: Sequence[_Reading]) -> Mapping[str, frozenset[str]]:
    """The switches that exclude one another, by each of them."""
    found: dict[str, frozenset[str]] = {}
    for group in (each for reading in readings for each in reading.exclusive):
        for name in group:
            found[name] = found.get(name, frozenset()) | group - {name}
    return found


def _reached(names: set[Key], flows: Mapping[Key, Iterable[Set[Key]]]) -> set[Key]:
    """The names, and all that they are made from."""
    found, queue = {*names}, [*names]
    while queue:
        for each in flows.get(queue.pop(), ()):
            queue += each - found
            found.update(each)
    return found


def _acts(test: ir.If, branches: Set[int], heat: Heat) -> bool:
    """Whether an ``if`` chooses more than where the code goes on."""
    arms = (*test.body, *test.orelse)
    return id(test) in branches or heat.matters(arms) or heat.settles(arms)


def _passed(readings: Sequence[_Reading]) -> Iterator[tuple[Key, Set[Key]]]:
    """What the parameters of functions get from all calls of what has their name."""
    functions: dict[str, list[ir.Function]] = {}
    for reading in readings:
        for name, defined in reading.functions.items():
            functions.setdefault(name, []).extend(defined)
    found: dict[str, _Passed] = {}
    for reading in readings:
        for name in reading.calls.keys() & functions.keys():
            passed = found.setdefault(name, _Passed())
            for arguments in reading.calls[name]:
                passed.add(arguments)
    for name, passed in found.items():
        for function in functions[name]:
            yield from _of_parameters(passed, function)


def _of_parameters(passed: _Passed, function: ir.Function) -> Iterator[tuple[Key, Set[Key]]]:
    """What is passed by position, to a method with or without its ``self``."""
    params = [param.name for param in function.params if param.kind == "positional"]
    skip = 1 if params[:1] in (["self"], ["cls"]) else 0
    for name, sources in zip(params[skip:], passed.by_position):
        yield (id(function), name), sources
    for param in function.params:
        if param.kind in ("args", "kwargs"):
            yield (id(function), param.name), passed.anyhow


def _ends(statement: ir.Stmt) -> bool:
    """Whether a statement may end the program."""
    if isinstance(statement, ir.Evaluate) and isinstance(statement.value, ir.Call):
        return _called(statement.value) in ("exit", "error")
    return isinstance(statement, ir.Raise)


def _switches(test: ir.Expr) -> Iterator[ir.Expr]:
    """What a test asks the truth of: names, attributes and items most often."""
    if isinstance(test, ir.BoolOp):
        yield from _switches(test.left)
        yield from _switches(test.right)
    elif isinstance(test, ir.Unary):
        yield from _switches(test.operand)
    else:
        yield test


def _is_constant(node: ir.Expr) -> bool:
    """Whether a value may be a switch or a dtype, known as it stands."""
    if isinstance(node, ir.Sequence):
        return any(map(_is_constant, node.items))
    if isinstance(node, ir.Mapping):
        return any(_is_constant(value) for _, value in node.items)
    return isinstance(node, ir.Attr) or (isinstance(node, ir.Const) and not isinstance(node.value, (float, bytes)))


def _is_given(target: ir.Expr, function: ir.Function) -> bool:
    """Whether a target is part of a parameter."""
    while isinstance(target, (ir.Attr, ir.Subscript)):
        target = target.base
    return isinstance(target, ir.Name) and any(param.name == target.id != "self" for param in function.params)


def _is_word(node: ir.Expr) -> bool:
    """Whether it is a constant by which code may call a precision: a text, or a number of bits."""
    return isinstance(node, ir.Const) and is_word(node.value)


def _called(call: ir.Call) -> str:
    return call.func.name if isinstance(call.func, ir.Attr) else call.func.id if isinstance(call.func, ir.Name) else ""


def _text(node: ir.Expr) -> str:
    return node.value if isinstance(node, ir.Const) and isinstance(node.value, str) else ""
