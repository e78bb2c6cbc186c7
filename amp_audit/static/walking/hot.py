"""Which code can matter: a screen on the identifiers in it, so that paths are walked only where they say something."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from amp_audit.records import record
from amp_audit.static.source import ir
from amp_audit.static.source.literals import is_literally
from amp_audit.static.source.names import is_scheduler
from amp_audit.static.source.traverse import (
    bodies,
    definitions,
    expressions,
    last_word,
    names_in,
    parts,
    root_name,
    statements,
    walk,
)
from amp_audit.static.walking.helpers import GENERIC, called_names, dispatched, helps

CALLED = frozenset(
    {
        "backward",
        "unscale_",
        "zero_grad",
        "clip_grad_norm_",
        "clip_grad_value_",
        "clip_grad_norm",
        "dispatch_clip_grad",
        "scale_loss",
        "manual_backward",
        "grad",
        "register_comm_hook",
        "register_hook",
        "register_post_accumulate_grad_hook",
    }
)
"""Calls that make an event whatever else is there."""

MENTIONED = frozenset({"GradScaler", "ShardedGradScaler", "autocast"})
"""Names that matter even where they are not called."""

_HANDED = frozenset({"clip_grad_norm_", "clip_grad_value_"})
"""Functions that are chosen in one place, for another one to call."""

_SCALERS = frozenset({"GradScaler", "ShardedGradScaler"})

_HOLDERS = frozenset({"parameters", "named_parameters", "param_groups"})
"""What code goes through to get at every gradient by hand."""

_COMMON = frozenset(
    name for kind in (str, bytes, dict, list, set, tuple) for name in dir(kind) if not name.startswith("_")
) - {"update"} | {"state_dict", "load_state_dict", "chunk", "unsqueeze", "reshape", "resize", "size", "view"}
"""Methods that nearly everything has: a call of one says little about whose it is."""

_HALVES = frozenset({"float16", "bfloat16", "half"})
_SHARDS = frozenset({"FSDP", "FullyShardedDataParallel"})

_SHORT = 24
_CHOSEN = (ir.Name, ir.Attr, ir.IfExp, ir.Subscript, ir.Const)
"""What a function that chooses a dtype may return."""

_OPTIMIZER = re.compile(r"optim|^opt$|^opt_|_opt$|^Adam|^SGD", re.IGNORECASE)
_MAKES_OPTIMIZER = re.compile(r"optim|^Adam|^SGD", re.IGNORECASE)
_SCALER = re.compile(r"scaler", re.IGNORECASE)
_KEEPING = re.compile(r"(^|_)(keep|retain|preserve|reuse)", re.IGNORECASE)
_OF_SCALERS = frozenset({"step", "update", "scale"})
_ALARMING = CALLED | MENTIONED | _HANDED | {"step", "parameters", "grad", "requires_grad", "requires_grad_"}
"""Words of which hot code has one, unless it has something to do with a scaler."""
_LOGGER = re.compile(r"_?log(ger|ging)?", re.IGNORECASE)


@record(frozen=True, slots=True)
class Vocabulary:
    """The identifiers of some code: all of them, and those that are called.

    ``reaching`` are the calls that may reach functions of the project, ``reading`` is all that is named, but for calls
    that cannot. In both a dot marks what is named as an attribute: ``print(x)`` reaches no method of that name.
    """

    words: frozenset[str]
    called: frozenset[str]
    reaching: frozenset[str] = frozenset()
    reading: frozenset[str] = frozenset()

    def is_hot(self) -> bool:
        """Whether the code can produce an event, or a value that events speak of."""
        if self.called & CALLED or self.words & (MENTIONED | _HANDED):
            return True
        if "step" in self.called and any(map(_OPTIMIZER.search, self.words)):
            return True
        if "parameters" in self.called and any(map(_MAKES_OPTIMIZER.search, self.words)):
            return True
        if not self.words.isdisjoint({"grad", "requires_grad", "requires_grad_"}) and self.words & _HOLDERS:
            return True
        if "step" in self.called and any(map(is_scheduler, self.words)):
            return True
        return bool(self.called & _OF_SCALERS) and any(map(_SCALER.search, self.words))

    def looks_on(self) -> bool:
        """Whether the code evaluates a model."""
        return "eval" in self.called and not self.words.isdisjoint({"no_grad", "inference_mode"})


@record(frozen=True, slots=True)
class _Judged:
    """A statement with all below it. ``hot``: it can produce an event. ``leaves``: it may end the round or the call;
    a path that ends in an error goes nowhere. ``halves``: it speaks of a low-precision dtype. ``shards``: of FSDP.
    """

    statement: ir.Stmt
    hot: bool
    leaves: bool
    halves: bool
    shards: bool


class Heat:
    """Answers for the modules of one project, with the functions in them (None: looked for); what calls a hot function
    by name is hot as well."""

    def __init__(self, modules: Iterable[ir.Module], functions: Sequence[ir.Function] | None = None) -> None:
        modules = list(modules)
        if functions is None:
            functions = [found for module in modules for found, _ in definitions(module.body)]
        self._libraries = _libraries(modules)
        self.aliases = aliases(modules, CALLED | MENTIONED)
        self._words = {id(function): _words(function) for function in functions}
        self._spoken: dict[int, Vocabulary] = {}
        self._scalers = _names_of_scalers(modules)
        self._itself = {id(function) for function in functions if self._makes(function)}
        self._hot = self._reaching(functions)
        self.models_cast = any(f.name == "forward" and _casts(f) for f in functions)
        self._calm = {id(f) for f in functions if id(f) in self._hot and not _makes_events(self._vocabulary(f))}
        self._spectators = {id(f) for f in functions if id(f) not in self._hot and self._looks_on(f)}
        self._hot |= self._spectators
        self._calm |= self._spectators
        self._memo: dict[int, _Judged] = {}
        self._methods: dict[str, Mapping[str, frozenset[str]]] = {}
        self._dotted: dict[int, str] = {}
        self.unfreezes = any(map(_unfreezes, modules))
        self._givers = frozenset(function.name for function in functions if gives_dtype(function))
        self._followed: dict[int, bool] = {}
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

    def _vocabulary(self, function: ir.Function) -> Vocabulary:
        """That of a function, of which most are never asked: their words alone say that they do nothing."""
        found = self._spoken.get(id(function))
        if found is None:
            found = self._spoken[id(function)] = vocabulary(function, self._libraries)
        return found

    def _makes(self, function: ir.Function) -> bool:
        """Whether a function is hot whatever the others are."""
        return _may_be_hot(self._words[id(function)], self._scalers) and self._is_hot(self._vocabulary(function))

    def _looks_on(self, function: ir.Function) -> bool:
        return "eval" in self._words[id(function)] and self._vocabulary(function).looks_on()

    def _says(self, function: ir.Function, names: frozenset[str]) -> bool:
        """Whether a function names one of these."""
        if names.isdisjoint(self._words[id(function)]):
            return False
        return not names.isdisjoint(self._vocabulary(function).words)

    def _reaching(self, functions: Sequence[ir.Function]) -> set[int]:
        """The functions that are hot by themselves, and all that come to them by names."""
        names = self.aliases
        warm = [f for f in functions if id(f) in self._itself or self._says(f, names)]
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
                if words.isdisjoint(self._words[id(function)]):
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

    def dotted(self, node: ir.Attr) -> str:
        """``dotted`` of an expression of the project, of which a walk asks in every world."""
        found = self._dotted.get(id(node))
        if found is None:
            found = self._dotted[id(node)] = dotted(node)
        return found

    @staticmethod
    def scales(names: Iterable[str]) -> bool:
        """Whether some of these names speak of a loss scaler."""
        return any(map(_SCALER.search, names))

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

    def _is_hot(self, spoken: Vocabulary) -> bool:
        return spoken.is_hot() or (bool(spoken.called & _OF_SCALERS) and not self._scalers.isdisjoint(spoken.words))

    def counts(self, node: ir.Expr) -> bool:
        """Whether an expression can produce an event, or a value that events speak of."""
        spoken = _spoken_in(node, self._libraries)
        return self._is_hot(spoken) or not self._names.isdisjoint(spoken.reaching)

    def matters(self, body: tuple[ir.Stmt, ...]) -> bool:
        """Whether statements can produce an event."""
        return any(self._judge(statement).hot for statement in body)

    def forks(self, body: tuple[ir.Stmt, ...]) -> bool:
        """Whether statements that run only now and then deserve a path: for what they do, or for where they go."""
        return any(each.hot or each.leaves or each.shards for each in map(self._judge, body))

    def tells(self, statement: ir.If) -> bool:
        """Whether it shows later which arm was taken: one may return, break or continue, choose a dtype, or shard."""
        arms = map(self._judge, (*statement.body, *statement.orelse))
        return any(each.leaves or each.halves or each.shards for each in arms)

    def decorator(self, node: ir.Expr) -> bool:
        """Whether a decorator may be a region or no_grad."""
        found = _spoken_in(node, self._libraries)
        return found.is_hot() or not found.words.isdisjoint({"no_grad", "inference_mode"})

    def _judge(self, statement: ir.Stmt) -> _Judged:
        known = self._memo.get(id(statement))
        if known is None or known.statement is not statement:
            spoken = vocabulary(statement, self._libraries)
            hot = not isinstance(statement, ir.Import) and (
                self._is_hot(spoken) or not self._names.isdisjoint(spoken.reaching)
            )
            known = _Judged(
                statement,
                hot,
                _leaves(statement),
                not _HALVES.isdisjoint(spoken.words),
                not _SHARDS.isdisjoint(spoken.words),
            )
            self._memo[id(statement)] = known
        return known


def _may_be_hot(words: frozenset[str], scalers: frozenset[str]) -> bool:
    """Whether code with these words, whatever it does with them, may be hot: what ``Vocabulary.is_hot`` asks for, less
    exactly, so that most code needs no vocabulary."""
    if not words.isdisjoint(_ALARMING):
        return True
    return not words.isdisjoint(_OF_SCALERS) and (not scalers.isdisjoint(words) or any(map(_SCALER.search, words)))


def _words(function: ir.Function) -> frozenset[str]:
    """The words of a function, those of its decorators, defaults and annotations among them."""
    found: set[str] = set()
    for part in (part for expression in expressions(function) for part in walk(expression)):
        if isinstance(part, ir.Lambda):
            found |= part.function.words
        elif word := last_word(part):
            found.add(word)
    return function.words | found if found else function.words


def shards(function: ir.Function) -> bool:
    """Whether a function may give a model back whose parameters are FSDP's shards."""
    return not function.words.isdisjoint({"FSDP", "FullyShardedDataParallel"})


def gives_dtype(function: ir.Function) -> bool:
    """Whether a short function returns a low-precision dtype that its arguments choose."""
    if function.words.isdisjoint(_HALVES):
        return False
    body = list(statements(function.body))
    given = [node.value for node in body if isinstance(node, ir.Return) and node.value is not None]
    simple = all(isinstance(node, (ir.If, ir.Assign, ir.Return, ir.Raise, ir.Assert, ir.Evaluate)) for node in body)
    return simple and len(given) > 0 and len(body) <= _SHORT and all(isinstance(value, _CHOSEN) for value in given)


def sets_dtype(function: ir.Function, givers: frozenset[str]) -> bool:
    """Whether a method notes a low-precision dtype on its object, named or given by one of the functions ``givers``."""
    if not function.params or function.words.isdisjoint(_HALVES | givers):
        return False
    own = function.params[0].name
    return any(
        isinstance(node, ir.Assign)
        and any(isinstance(each, ir.Attr) and last_word(each.base) == own for each in node.targets)
        and any(_names_dtype(part, givers) for part in walk(node.value))
        for node in statements(function.body)
    )


def _names_dtype(part: ir.Expr, givers: frozenset[str]) -> bool:
    return last_word(part) in _HALVES or (isinstance(part, ir.Call) and last_word(part.func) in givers)


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
        if not module.words.isdisjoint(_SCALERS)
        for node in statements(module.body, into=True)
        if isinstance(node, ir.Assign) and any(last_word(part.func) in _SCALERS for part in _calls(node.value))
        for word in map(last_word, node.targets)
        if word and not _SCALER.search(word)
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
    if module.words.isdisjoint({"requires_grad", "requires_grad_"}):
        return False
    return any(
        not is_literally(given, False) for node in statements(module.body, into=True) for given in _required(node)
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


def _makes_events(spoken: Vocabulary) -> bool:
    """Whether code does more than to open regions: it trains, or it decides whether there is a scaler."""
    if not spoken.called.isdisjoint(_SCALERS):
        return True
    return Vocabulary(spoken.words - MENTIONED, spoken.called - MENTIONED).is_hot()


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


def vocabulary(node: ir.Stmt, libraries: frozenset[str] = frozenset()) -> Vocabulary:
    """The vocabulary of a statement and all below it, decorators and nested definitions included.

    ``libraries`` are names whose methods are not the project's.
    """
    spoken = _Spoken(libraries)
    spoken.statement(node)
    return spoken.vocabulary()


def _spoken_in(node: ir.Expr, libraries: frozenset[str]) -> Vocabulary:
    spoken = _Spoken(libraries)
    spoken.expression(node)
    return spoken.vocabulary()


class _Spoken:
    """A vocabulary while it is gathered."""

    def __init__(self, libraries: frozenset[str]) -> None:
        self.libraries = libraries
        self.words: set[str] = set()
        self.called: set[str] = set()
        self.reaching: set[str] = set()
        self.reading: set[str] = set()

    def vocabulary(self) -> Vocabulary:
        return Vocabulary(*map(frozenset, (self.words, self.called, self.reaching, self.reading)))

    def statement(self, node: ir.Stmt) -> None:
        for each in statements((node,), into=True):
            for expression in expressions(each):
                self.expression(expression)

    def expression(self, node: ir.Expr) -> None:
        words, called = self.words, self.called
        reaching: set[str] = set()
        reading: set[str] = set()
        foreign: set[str] = set()
        for inner in walk(node):
            if isinstance(inner, ir.Name):
                words.add(inner.id)
                reading.add(inner.id)
            elif isinstance(inner, ir.Attr):
                words.add(inner.name)
                reading.add(f".{inner.name}")
            elif isinstance(inner, ir.Call):
                func = inner.func
                if isinstance(func, ir.Attr):
                    called.add(func.name)
                    (reaching if _may_be_own(func, self.libraries) else foreign).add(f".{func.name}")
                elif isinstance(func, ir.Name):
                    called.add(func.id)
                    reaching.add(func.id)
            elif isinstance(inner, ir.Lambda):
                words |= inner.function.words
                for each in inner.function.body:
                    self.statement(each)
        self.reaching |= reaching
        self.reading |= reading - (foreign - reaching)


def _may_be_own(func: ir.Attr, libraries: frozenset[str]) -> bool:
    """Whether a method that is called may be one of the project's."""
    if _is_self(func.base):
        return True
    root = root_name(func.base)
    return func.name not in _COMMON and root not in libraries and _LOGGER.fullmatch(root) is None


def _is_self(node: ir.Expr) -> bool:
    if isinstance(node, ir.Call):
        return isinstance(node.func, ir.Name) and node.func.id == "super"
    return isinstance(node, ir.Name) and node.id in ("self", "cls")


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
