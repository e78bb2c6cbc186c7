"""The words of code: its identifiers, which of them are called, and what these say of the events it may make."""

from __future__ import annotations

import re

from amp_audit.records import record
from amp_audit.static.source import ir
from amp_audit.static.source.names import is_scheduler
from amp_audit.static.source.traverse import expressions, root_name, statements, walk

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

HANDED = frozenset({"clip_grad_norm_", "clip_grad_value_"})
"""Functions that are chosen in one place, for another one to call."""

SCALERS = frozenset({"GradScaler", "ShardedGradScaler"})

_HOLDERS = frozenset({"parameters", "named_parameters", "param_groups"})
"""What code goes through to get at every gradient by hand."""

_COMMON = frozenset(
    name for kind in (str, bytes, dict, list, set, tuple) for name in dir(kind) if not name.startswith("_")
) - {"update"} | {"state_dict", "load_state_dict", "chunk", "unsqueeze", "reshape", "resize", "size", "view"}
"""Methods that nearly everything has: a call of one says little about whose it is."""

_OPTIMIZER = re.compile(r"optim|^opt$|^opt_|_opt$|^Adam|^SGD", re.IGNORECASE)
_MAKES_OPTIMIZER = re.compile(r"optim|^Adam|^SGD", re.IGNORECASE)
SCALER = re.compile(r"scaler", re.IGNORECASE)
OF_SCALERS = frozenset({"step", "update", "scale"})
_ALARMING = CALLED | MENTIONED | HANDED | {"step", "parameters", "grad", "requires_grad", "requires_grad_"}
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
        if self.called & CALLED or self.words & (MENTIONED | HANDED):
            return True
        if "step" in self.called and any(map(_OPTIMIZER.search, self.words)):
            return True
        if "parameters" in self.called and any(map(_MAKES_OPTIMIZER.search, self.words)):
            return True
        if not self.words.isdisjoint({"grad", "requires_grad", "requires_grad_"}) and self.words & _HOLDERS:
            return True
        if "step" in self.called and any(map(is_scheduler, self.words)):
            return True
        return bool(self.called & OF_SCALERS) and any(map(SCALER.search, self.words))

    def looks_on(self) -> bool:
        """Whether the code evaluates a model."""
        return "eval" in self.called and not self.words.isdisjoint({"no_grad", "inference_mode"})


def may_be_hot(words: frozenset[str], scalers: frozenset[str]) -> bool:
    """Whether code with these words, whatever it does with them, may be hot: what ``Vocabulary.is_hot`` asks for, less
    exactly, so that most code needs no vocabulary."""
    if not words.isdisjoint(_ALARMING):
        return True
    return not words.isdisjoint(OF_SCALERS) and (not scalers.isdisjoint(words) or any(map(SCALER.search, words)))


def makes_events(spoken: Vocabulary) -> bool:
    """Whether code does more than to open regions: it trains, or it decides whether there is a scaler."""
    if not spoken.called.isdisjoint(SCALERS):
        return True
    return Vocabulary(spoken.words - MENTIONED, spoken.called - MENTIONED).is_hot()


def vocabulary(node: ir.Stmt, libraries: frozenset[str] = frozenset()) -> Vocabulary:
    """The vocabulary of a statement and all below it, decorators and nested definitions included.

    ``libraries`` are names whose methods are not the project's.
    """
    spoken = _Spoken(libraries)
    spoken.statement(node)
    return spoken.vocabulary()


def vocabulary_in(node: ir.Expr, libraries: frozenset[str]) -> Vocabulary:
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
