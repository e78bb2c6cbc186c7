"""Which code can matter: a screen on the identifiers in it, so that paths are walked only where they say something."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy

from amp_audit.records import record
from amp_audit.static.source import ir
from amp_audit.static.source.conditions import Facts, facts_at
from amp_audit.static.source.literals import is_literally
from amp_audit.static.source.traverse import (
    bodies,
    expressions,
    last_word,
    names_in,
    parts,
    statements,
    statements_saying,
    walk,
)
from amp_audit.static.walking.helpers import GENERIC, called_names, dispatched, helps
from amp_audit.static.walking.vocabulary import (
    CALLED,
    MENTIONED,
    OF_SCALERS,
    SCALER,
    SCALERS,
    Vocabulary,
    makes_events,
    may_be_hot,
    vocabulary,
    vocabulary_in,
)

_SHARDS = frozenset({"FSDP", "FullyShardedDataParallel"})

_REQUIRED = frozenset({"requires_grad", "requires_grad_"})
_SHORT = 24
_CHOSEN = (ir.Name, ir.Attr, ir.IfExp, ir.Subscript, ir.Const)
"""What a function that chooses a dtype may return."""

_KEEPING = re.compile(r"(^|_)(keep|retain|preserve|reuse)", re.IGNORECASE)


@record(frozen=True, slots=True)
class _Said:
    """What a statement with all below it says, whatever can be called there. ``itself``: it can produce an event.
    ``reaching``: the names by which it may come to functions. ``leaves``: it may end the round or the call; a path that
    ends in an error goes nowhere. ``halves``: it speaks of a low-precision dtype. ``shards``: of FSDP. ``loads``: of
    weights that are loaded. The statement is kept, or another one could be taken for it.
    """

    statement: ir.Stmt
    itself: bool
    reaching: frozenset[str]
    leaves: bool
    halves: bool
    shards: bool
    loads: bool


class Heat:
    """Answers for the modules of one project, with the functions in them (None: looked for); what calls a hot function
    by name is hot as well.

    What code says is found out once, for the project and all ``within`` it. Nodes are known by their identity: they
    live as long as the project does.
    """

    def __init__(self, modules: Iterable[ir.Module], functions: Sequence[ir.Function] | None = None) -> None:
        modules = list(modules)
        if functions is None:
            functions = [found for module in modules for found, _ in module.definitions]
        self._libraries = _libraries(modules)
        self.aliases = aliases(modules, CALLED | MENTIONED)
        self._words = {id(each): each.words | each.around if each.around else each.words for each in functions}
        self._spoken: dict[int, Vocabulary] = {}
        self._scalers = _names_of_scalers(modules)
        self._itself = {id(function) for function in functions if self._makes(function)}
        self.models_cast = any(f.name == "forward" and _casts(f) for f in functions)
        self._said: dict[int, _Said] = {}
        self._counted: dict[int, tuple[ir.Expr, Vocabulary]] = {}
        self._methods: dict[str, Mapping[str, frozenset[str]]] = {}
        self._methods_in: dict[int, frozenset[tuple[str, str]]] = {}
        self._calls: dict[int, frozenset[str]] = {}
        self._dotted: dict[int, str] = {}
        self._asks: dict[tuple[int, str], bool] = {}
        self._facts: dict[tuple[int, int], Facts] = {}
        self.unfreezes = any(map(_unfreezes, modules))
        self._givers = frozenset(function.name for function in functions if gives_dtype(function))
        self._runs: dict[int, frozenset[tuple[str, str]]] = {}
        self._sizes: dict[int, int] = {}
        self._keeps: dict[int, bool] = {}
        generic = (module for module in modules if not module.words.isdisjoint(GENERIC))
        self._dispatched = dict(
            found
            for module in generic
            for body in (module.body, *(node.body for node in module.body if isinstance(node, ir.Class)))
            for found in dispatched(body)
        )
        self._settle(functions)

    def within(self, functions: Sequence[ir.Function]) -> Heat:
        """The same where nothing but these functions of the project can be called."""
        made = copy(self)
        made._settle(functions)
        return made

    def _settle(self, functions: Sequence[ir.Function]) -> None:
        """Find out which of the functions that can be called are hot."""
        self._hot = self._reaching(functions)
        self._calm = {id(f) for f in functions if id(f) in self._hot and not makes_events(self._vocabulary(f))}
        self._spectators = {id(f) for f in functions if id(f) not in self._hot and self._looks_on(f)}
        self._hot |= self._spectators
        self._calm |= self._spectators
        self._burning: dict[int, bool] = {}
        self._followed: dict[int, bool] = {}

    def _vocabulary(self, function: ir.Function) -> Vocabulary:
        """That of a function, of which most are never asked: their words alone say that they do nothing."""
        found = self._spoken.get(id(function))
        if found is None:
            found = self._spoken[id(function)] = vocabulary(function, self._libraries)
        return found

    def _makes(self, function: ir.Function) -> bool:
        """Whether a function is hot whatever the others are."""
        words = self._words[id(function)]
        if not may_be_hot(words, self._scalers) or not self._is_hot(Vocabulary(words, function.called)):
            return False
        return self._is_hot(self._vocabulary(function))

    def _looks_on(self, function: ir.Function) -> bool:
        return "eval" in self._words[id(function)] and self._vocabulary(function).looks_on()

    def _names_one(self, function: ir.Function, names: frozenset[str]) -> bool:
        """Whether a function names one of these."""
        if names.isdisjoint(self._words[id(function)]):
            return False
        return not names.isdisjoint(self._vocabulary(function).words)

    def _reaching(self, functions: Sequence[ir.Function]) -> set[int]:
        """The functions that are hot by themselves, and all that come to them by names."""
        names = self.aliases
        warm = [f for f in functions if id(f) in self._itself or self._names_one(f, names)]
        waiting = functions
        reached: dict[int, frozenset[str]] = {}
        hot: set[int] = set()
        while warm:
            hot |= {id(f) for f in warm}
            waiting = [f for f in waiting if id(f) not in hot]
            fresh = frozenset().union(*map(_called_by, warm))
            names |= fresh
            words = frozenset(name.removeprefix(".") for name in fresh)
            warm = []
            for function in waiting:
                if words.isdisjoint(self._words[id(function)] if "." in function.qualname else function.called):
                    continue
                if id(function) not in reached:
                    reached[id(function)] = _reached(function, self._vocabulary(function))
                if not fresh.isdisjoint(reached[id(function)]):
                    warm.append(function)
        self._names = names
        return hot

    def methods(self, module: ir.Module) -> Mapping[str, frozenset[str]]:
        """By dotted name: the methods that a module's code calls on it."""
        found = self._methods.get(module.path)
        if found is None:
            found = self._methods[module.path] = methods_by_name(module)
        return found

    def methods_in(self, function: ir.Function) -> frozenset[tuple[str, str]]:
        """What a function calls methods on, by its last word, and these methods."""
        found = self._methods_in.get(id(function))
        if found is None:
            called = (part.func for part in parts(function.body) if isinstance(part, ir.Call))
            methods = frozenset((last_word(func.base), func.name) for func in called if isinstance(func, ir.Attr))
            found = self._methods_in[id(function)] = methods
        return found

    def calls(self, function: ir.Function) -> frozenset[str]:
        """The names of the functions that a function calls, or one in it."""
        found = self._calls.get(id(function))
        if found is None:
            called = (part.func for part in parts(function.body, into=True) if isinstance(part, ir.Call))
            found = self._calls[id(function)] = frozenset(func.id for func in called if isinstance(func, ir.Name))
        return found

    def dotted(self, node: ir.Attr) -> str:
        """``dotted`` of an expression of the project, of which a walk asks in every world."""
        found = self._dotted.get(id(node))
        if found is None:
            found = self._dotted[id(node)] = dotted(node)
        return found

    def asks(self, test: ir.Expr, pattern: re.Pattern[str]) -> bool:
        """Whether a test of the project has a name that fits."""
        key = (id(test), pattern.pattern)
        found = self._asks.get(key)
        if found is None:
            found = self._asks[key] = any(map(pattern.search, names_in(test)))
        return found

    def facts_at(self, body: tuple[ir.Stmt, ...], at: int) -> Facts:
        """``facts_at`` of a body of the project."""
        found = self._facts.get((id(body), at))
        if found is None:
            found = self._facts[(id(body), at)] = facts_at(body, at)
        return found

    @staticmethod
    def scales(names: Iterable[str]) -> bool:
        """Whether some of these names speak of a loss scaler."""
        return any(map(SCALER.search, names))

    def itself(self, function: ir.Function) -> bool:
        """Whether a function can make an event without those it calls."""
        return id(function) in self._itself

    def function(self, function: ir.Function) -> bool:
        if function.name == "<lambda>":
            return self.matters(function.body)
        return id(function) in self._hot

    def followed(self, function: ir.Function) -> bool:
        """Whether a call of a function is followed whatever it is given."""
        known = self._followed.get(id(function))
        if known is None:
            known = self.function(function) or gives_dtype(function) or shards(function) or helps(function)
            known = known or sets_dtype(function, self._givers)
            self._followed[id(function)] = known
        return known

    def dispatched(self, function: ir.Function) -> tuple[ir.Function, ...]:
        """What else a call of a function may run: it is generic, and these are registered with it."""
        return self._dispatched.get(id(function), ())

    def runs(self, function: ir.Function) -> frozenset[tuple[str, str]]:
        """What a helper calls that may be a model."""
        known = self._runs.get(id(function))
        if known is None:
            known = self._runs[id(function)] = called_names(function)
        return known

    def size(self, function: ir.Function) -> int:
        """How many statements a function has, definitions in it not included."""
        known = self._sizes.get(id(function))
        if known is None:
            known = self._sizes[id(function)] = max(1, sum(1 for _ in statements(function.body)))
        return known

    def keeps(self, function: ir.Function | None) -> bool:
        """Whether a function has a switch by which gradients are cleared, or kept."""
        if function is None or "zero_grad" not in function.words:
            return False
        known = self._keeps.get(id(function))
        if known is None:
            params = frozenset(param.name for param in function.params)
            tests = (node for node in statements(function.body) if isinstance(node, ir.If))
            known = self._keeps[id(function)] = any(_keeps(node, params) for node in tests)
        return known

    def spectates(self, function: ir.Function) -> bool:
        """Whether a function only runs models without gradients: of interest to what trains them, not by itself."""
        return id(function) in self._spectators

    def calm(self, function: ir.Function) -> bool:
        """Whether a function is hot for its regions alone: nothing trains there, so its branches need no paths."""
        return id(function) in self._calm

    def is_quiet(self, function: ir.Function | None) -> bool:
        """Whether nothing trains in a function: where a call of it leaves matters for what it gives, if at all."""
        return function is not None and (self.calm(function) or not self.function(function))

    def _is_hot(self, spoken: Vocabulary) -> bool:
        return spoken.is_hot() or (bool(spoken.called & OF_SCALERS) and not self._scalers.isdisjoint(spoken.words))

    def counts(self, node: ir.Expr) -> bool:
        """Whether an expression can produce an event, or a value that events speak of."""
        if id(node) not in self._counted:
            self._counted[id(node)] = node, vocabulary_in(node, self._libraries)
        _, spoken = self._counted[id(node)]
        return self._is_hot(spoken) or not self._names.isdisjoint(spoken.reaching)

    def matters(self, body: tuple[ir.Stmt, ...]) -> bool:
        """Whether statements can produce an event."""
        return any(map(self._burns, body))

    def forks(self, body: tuple[ir.Stmt, ...]) -> bool:
        """Whether statements that run only now and then deserve a path: for what they do, or for where they go."""
        return any(self._says(each).leaves or self._says(each).shards or self._burns(each) for each in body)

    def loads(self, body: tuple[ir.Stmt, ...]) -> bool:
        """Whether statements load weights, which a region around them may have cached."""
        return any(self._says(statement).loads for statement in body)

    def tells(self, statement: ir.If) -> bool:
        """Whether it shows later which arm was taken: one may return, break or continue, choose a dtype, or shard."""
        arms = (*statement.body, *statement.orelse)
        return self.settles(arms) or any(self._says(each).leaves for each in arms)

    def settles(self, body: tuple[ir.Stmt, ...]) -> bool:
        """Whether statements may be about how a model is held: in a low-precision dtype, or in shards."""
        return any(each.halves or each.shards for each in map(self._says, body))

    def decorator(self, node: ir.Expr) -> bool:
        """Whether a decorator may be a region or no_grad."""
        found = vocabulary_in(node, self._libraries)
        return found.is_hot() or not found.words.isdisjoint({"no_grad", "inference_mode"})

    def _burns(self, statement: ir.Stmt) -> bool:
        """Whether a statement can produce an event, by itself or by what it may call."""
        known = self._burning.get(id(statement))
        if known is None:
            said = self._says(statement)
            known = self._burning[id(statement)] = said.itself or not self._names.isdisjoint(said.reaching)
        return known

    def _says(self, statement: ir.Stmt) -> _Said:
        known = self._said.get(id(statement))
        if known is None:
            spoken = vocabulary(statement, self._libraries)
            imports = isinstance(statement, ir.Import)
            known = self._said[id(statement)] = _Said(
                statement,
                not imports and self._is_hot(spoken),
                frozenset() if imports else spoken.reaching,
                _leaves(statement),
                not ir.HALF_TYPES.isdisjoint(spoken.words),
                not _SHARDS.isdisjoint(spoken.words),
                "load_state_dict" in spoken.words,
            )
        return known


def shards(function: ir.Function) -> bool:
    """Whether a function may give a model back whose parameters are FSDP's shards."""
    return not function.words.isdisjoint({"FSDP", "FullyShardedDataParallel"})


def gives_dtype(function: ir.Function) -> bool:
    """Whether a short function returns a low-precision dtype that its arguments choose."""
    if function.words.isdisjoint(ir.HALF_TYPES):
        return False
    body = list(statements(function.body))
    given = [node.value for node in body if isinstance(node, ir.Return) and node.value is not None]
    simple = all(isinstance(node, (ir.If, ir.Assign, ir.Return, ir.Raise, ir.Assert, ir.Evaluate)) for node in body)
    return simple and len(given) > 0 and len(body) <= _SHORT and all(isinstance(value, _CHOSEN) for value in given)


def sets_dtype(function: ir.Function, givers: frozenset[str]) -> bool:
    """Whether a method notes a low-precision dtype on its object, named or given by one of the functions ``givers``."""
    if not function.params or function.words.isdisjoint(ir.HALF_TYPES | givers):
        return False
    own = function.params[0].name
    return any(
        isinstance(node, ir.Assign)
        and any(isinstance(each, ir.Attr) and last_word(each.base) == own for each in node.targets)
        and any(_names_dtype(part, givers) for part in walk(node.value))
        for node in statements(function.body)
    )


def _names_dtype(part: ir.Expr, givers: frozenset[str]) -> bool:
    return last_word(part) in ir.HALF_TYPES or (isinstance(part, ir.Call) and last_word(part.func) in givers)


def aliases(modules: Iterable[ir.Module], wanted: frozenset[str]) -> frozenset[str]:
    """Other names under which the modules import what is called so."""
    return frozenset(
        local
        for module in modules
        for statement in module.imports
        for local, target in statement.bindings
        if target.rpartition(".")[2] in wanted and local != target.rpartition(".")[2]
    )


def _names_of_scalers(modules: Iterable[ir.Module]) -> frozenset[str]:
    """What the modules call the scalers that they build, where that does not say what they are."""
    return frozenset(
        word
        for module in modules
        if not module.words.isdisjoint(SCALERS)
        for node in statements(module.body, into=True)
        if isinstance(node, ir.Assign) and any(last_word(part.func) in SCALERS for part in _calls(node.value))
        for word in map(last_word, node.targets)
        if word and not SCALER.search(word)
    )


def _calls(value: ir.Expr) -> Iterator[ir.Call]:
    """A call that gives a value, be it in one arm of a choice."""
    if isinstance(value, ir.IfExp):
        yield from _calls(value.body)
        yield from _calls(value.orelse)
    elif isinstance(value, ir.Call):
        yield value


def _unfreezes(module: ir.Module) -> bool:
    """Whether parameters are made to require gradients, or may be: which ones, a part of a model, is not followed."""
    if module.words.isdisjoint(_REQUIRED):
        return False
    return any(
        not is_literally(given, False)
        for node in statements_saying(module.body, _REQUIRED)
        for given in _required(node)
    )


def _required(node: ir.Stmt) -> Iterator[ir.Expr | None]:
    """What ``requires_grad`` of something is set to."""
    if isinstance(node, ir.Assign):
        named = (target for target in node.targets if isinstance(target, ir.Attr))
        yield from (node.value for target in named if target.name == "requires_grad")
    for call in (part for expression in expressions(node) for part in walk(expression)):
        if isinstance(call, ir.Call) and isinstance(call.func, ir.Attr) and call.func.name == "requires_grad_":
            yield call.args[0].value if call.args else None


def _keeps(choice: ir.If, params: frozenset[str]) -> bool:
    if not any(_is_switch(part, params) for part in _terms(choice.test)):
        return False
    inner = statements((*choice.body, *choice.orelse))
    cleared = (part for node in inner for each in expressions(node) for part in walk(each))
    return any(isinstance(part, ir.Attr) and part.name == "zero_grad" for part in cleared)


def _terms(test: ir.Expr) -> Iterator[ir.Expr]:
    """The parts of a condition that ``and``, ``or`` and ``not`` join."""
    if isinstance(test, ir.BoolOp):
        yield from (*_terms(test.left), *_terms(test.right))
    elif isinstance(test, ir.Unary) and test.op == "not":
        yield from _terms(test.operand)
    else:
        yield test


def _is_switch(term: ir.Expr, params: frozenset[str]) -> bool:
    """Whether a part of a condition is a setting, rather than something that is counted or computed."""
    if isinstance(term, ir.Name):
        return term.id in params or _KEEPING.search(term.id) is not None
    return isinstance(term, ir.Attr)


def _casts(function: ir.Function) -> bool:
    """Whether a function enters a region of its own."""
    decorators = (word for decorator in function.decorators for word in names_in(decorator))
    return "autocast" in function.words or "autocast" in decorators


def _reached(function: ir.Function, spoken: Vocabulary) -> frozenset[str]:
    """The names by which a function may reach others: those it calls, and, in a class, those it may read. Those of
    functions that are defined in it mean these, whose code is its own.
    """
    found = spoken.reading if "." in function.qualname else spoken.reaching
    return found - {inner.name for inner in statements(function.body) if isinstance(inner, ir.Function)}


def _called_by(function: ir.Function) -> frozenset[str]:
    """The names by which a function may be called, marked as in ``reaching``; for ``__init__`` the class's."""
    if function.name in ("__call__", "__enter__", "forward"):
        return frozenset()
    owner, _, name = function.qualname.rpartition(".")
    if function.name == "__init__":
        name = owner.rpartition(".")[2]
        return frozenset({name, f".{name}"})
    if not owner:
        return frozenset({name, f".{name}"})
    return frozenset({name} if owner.endswith("<locals>") else {f".{name}"})


def _libraries(modules: Sequence[ir.Module]) -> frozenset[str]:
    """The local names of what is imported from outside of these modules."""
    own = {part.removesuffix(".py") for module in modules for part in module.path.replace("\\", "/").split("/")}
    outside: set[str] = set()
    inside: set[str] = set()
    for module in modules:
        for statement in module.imports:
            for local, target in statement.bindings:
                foreign = not target.startswith(".") and target.partition(".")[0] not in own
                (outside if foreign else inside).add(local)
    return frozenset(outside - inside)


def _leaves(statement: ir.Stmt) -> bool:
    if isinstance(statement, (ir.Return, ir.Break, ir.Continue)):
        return True
    return any(_leaves(inner) for block in bodies(statement) for inner in block)


STEPPED = "_stepped"
"""Stands among the methods called on a name that is handed to a ``step`` or an ``unscale_``."""


def methods_by_name(module: ir.Module) -> Mapping[str, frozenset[str]]:
    """By dotted name (``self.scaler``): the methods that the code of a module calls on it."""
    found: dict[str, set[str]] = {}
    for node in parts(module.body, into=True):
        if isinstance(node, ir.Call) and isinstance(node.func, ir.Attr):
            found.setdefault(dotted(node.func.base), set()).add(node.func.name)
            if node.func.name in ("step", "unscale_") and node.args:
                found.setdefault(dotted(node.args[0].value), set()).add(STEPPED)
    return {name: frozenset(methods) for name, methods in found.items() if name}


def dotted(node: ir.Expr) -> str:
    """``a.b.c`` for a chain of names, else an empty text."""
    parts: list[str] = []
    while isinstance(node, ir.Attr):
        parts.append(node.name)
        node = node.base
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ir.Name) else ""
