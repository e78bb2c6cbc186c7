"""Which code can matter: a screen on the identifiers in it, so that paths are walked only where they say something."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from amp_audit.static import ir
from amp_audit.static.traverse import bodies, expressions, statements, walk

STRONG = frozenset(
    {
        "backward",
        "GradScaler",
        "ShardedGradScaler",
        "autocast",
        "unscale_",
        "zero_grad",
        "clip_grad_norm_",
        "clip_grad_value_",
        "clip_grad_norm",
        "scale_loss",
        "dispatch_clip_grad",
        "nullcontext",
        "no_grad",
        "is_autocast_enabled",
        "enter_context",
        "load_state_dict",
        "set_autocast_enabled",
        "amp",
        "scaler",
        "grad_scaler",
        "loss_scaler",
        "GradScalerKwargs",
    }
)
_OPTIMIZER = re.compile(r"optim|^opt$|^opt_|_opt$|^Adam|^SGD", re.IGNORECASE)
_SCALER = re.compile(r"scaler", re.IGNORECASE)


def is_hot(words: Iterable[str]) -> bool:
    """Whether code with these identifiers can produce an event."""
    found = words if isinstance(words, (set, frozenset)) else frozenset(words)
    if found & STRONG:
        return True
    steps, saves = "step" in found, "save" in found or "state_dict" in found
    updates = "update" in found
    for word in found:
        if (steps or saves or "parameters" in found) and _OPTIMIZER.search(word):
            return True
        if (steps or updates or saves or "scale" in found) and _SCALER.search(word):
            return True
    return False


class Heat:
    """Answers for the modules of one project; what calls a hot function by name is hot as well."""

    def __init__(self, modules: Iterable[ir.Module]) -> None:
        functions = [found for module in modules for found, _ in definitions(module.body)]
        self._hot: set[int] = set()
        names: set[str] = set()
        for function in functions:
            if is_hot(function.words) or any(is_hot(_words(d)) for d in function.decorators):
                self._hot.add(id(function))
                names |= _called_by(function)
        waiting = [f for f in functions if id(f) not in self._hot]
        while True:
            warm = [f for f in waiting if not names.isdisjoint(f.words)]
            if not warm:
                break
            self._hot |= {id(f) for f in warm}
            waiting = [f for f in waiting if id(f) not in self._hot]
            names = set().union(*(_called_by(f) for f in warm))
        self._names = frozenset(n for f in functions if id(f) in self._hot for n in _called_by(f))
        self._memo: dict[int, tuple[object, bool, bool]] = {}

    def function(self, function: ir.Function) -> bool:
        return id(function) in self._hot

    def matters(self, body: tuple[ir.Stmt, ...]) -> bool:
        """Whether statements can produce an event or change where the path goes."""
        return any(self._judge(statement)[0] for statement in body)

    def forks(self, statement: ir.If) -> bool:
        """Whether the arms of an ``if`` deserve paths of their own."""
        return any(hot or leaves for hot, leaves in map(self._judge, (*statement.body, *statement.orelse)))

    def decorator(self, node: ir.Expr) -> bool:
        return is_hot(_words(node)) or not _words(node).isdisjoint({"no_grad", "inference_mode"})

    def _judge(self, statement: ir.Stmt) -> tuple[bool, bool]:
        known = self._memo.get(id(statement))
        if known is None or known[0] is not statement:
            words = _words_below(statement)
            hot = not isinstance(statement, ir.Import) and (is_hot(words) or not words.isdisjoint(self._names))
            known = (statement, hot, _leaves(statement))
            self._memo[id(statement)] = known
        return known[1], known[2]


def _called_by(function: ir.Function) -> frozenset[str]:
    """The names by which a function may be called; the class's for ``__init__`` and ``__call__``."""
    if function.name in ("__init__", "__call__", "__enter__", "forward"):
        owner = function.qualname.split(".")[-2:-1]
        return frozenset(owner) if function.name == "__init__" else frozenset()
    return frozenset({function.name})


def definitions(body: Iterable[ir.Stmt], cls: ir.Class | None = None) -> Iterator[tuple[ir.Function, ir.Class | None]]:
    """Every function below some statements, with the class whose body it stands in directly."""
    for statement in body:
        if isinstance(statement, ir.Function):
            yield statement, cls
            yield from definitions(statement.body)
        elif isinstance(statement, ir.Class):
            yield from definitions(statement.body, statement)
        else:
            for block in bodies(statement):
                yield from definitions(block, cls)


def _leaves(statement: ir.Stmt) -> bool:
    if isinstance(statement, (ir.Return, ir.Break, ir.Continue, ir.Raise)):
        return True
    return any(_leaves(inner) for block in bodies(statement) for inner in block)


def _words_below(node: ir.Stmt) -> frozenset[str]:
    """Every identifier and attribute name in a statement and below it."""
    found: set[str] = set()
    for statement in statements((node,)):
        if isinstance(statement, (ir.Function, ir.Class)):
            found |= statement.words
        for expression in expressions(statement):
            found |= _words(expression)
    return frozenset(found)


def _words(node: ir.Expr) -> frozenset[str]:
    """Every identifier and attribute name in an expression."""
    found: set[str] = set()
    for inner in walk(node):
        if isinstance(inner, ir.Name):
            found.add(inner.id)
        elif isinstance(inner, ir.Attr):
            found.add(inner.name)
        elif isinstance(inner, ir.Lambda):
            found |= inner.function.words
    return frozenset(found)


def methods_by_name(module: ir.Module) -> Mapping[str, frozenset[str]]:
    """By dotted name (``self.scaler``): the methods that the code of a module calls on it."""
    found: dict[str, set[str]] = {}
    for statement in statements(module.body, into=True):
        for expression in expressions(statement):
            for node in walk(expression):
                if isinstance(node, ir.Call) and isinstance(node.func, ir.Attr):
                    found.setdefault(dotted(node.func.base), set()).add(node.func.name)
    return {name: frozenset(methods) for name, methods in found.items() if name}


def dotted(node: ir.Expr) -> str:
    """``a.b.c`` for a chain of names, else an empty text."""
    parts: list[str] = []
    while isinstance(node, ir.Attr):
        parts.append(node.name)
        node = node.base
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ir.Name) else ""
