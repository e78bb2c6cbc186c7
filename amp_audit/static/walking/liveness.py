"""Which names may still be read: paths that differ in names that nobody reads again become one.

The textbook analysis over structured code (Aho et al., Compilers, 9.2.5), backwards over the statements of one
definition or of a module's own code. It errs on the side of life: a name that a nested definition mentions lives as
long as that may run, and one that a handler mentions throughout the body that is tried. Names of modules are those that
their own code reads; other modules, which take a script's names from its definitions, do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import TypeAlias

from amp_audit.records import record
from amp_audit.static.binding.names import collect
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import children, expressions, parts, statements, walk

Names: TypeAlias = frozenset[str]

_NONE: Names = frozenset()
_ANYWHERE = frozenset({"locals", "globals", "vars", "eval", "exec"})
"""What reads names that are not spelled."""


@record(frozen=True, slots=True)
class Lives:
    """The names that may be read later, by the ``id`` of the statement: from where it begins, from where it has ended,
    and, of a loop, from where a round begins. Where a statement is not among them, any may be.
    """

    before: dict[int, Names] = field(default_factory=dict)
    after: dict[int, Names] = field(default_factory=dict)
    round: dict[int, Names] = field(default_factory=dict)


class Liveness:
    """Answers for definitions, each read when it is first asked for."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ir.Function | ir.Module, Lives]] = {}

    def of(self, body: ir.Function | ir.Module) -> Lives:
        """The lives of the names in a function, or of those that a module's own code reads."""
        known = self._known.get(id(body))
        if known is None:
            known = self._known[id(body)] = (body, _lives(body))
        return known[1]


def _lives(definition: ir.Function | ir.Module) -> Lives:
    if _reads_unspelled(definition):
        return Lives()
    kept = set(_captured(definition.body))
    if isinstance(definition, ir.Function):
        kept.update(param.name for param in definition.params[:1])  # ``super()`` speaks of it
    reader = _Reader(frozenset(kept))
    reader.block(definition.body, frozenset(kept), _Around())
    return reader.lives


def _reads_unspelled(definition: ir.Function | ir.Module) -> bool:
    """Whether it calls one of the builtins that read names by texts, and not a method of the same name."""
    if definition.words.isdisjoint(_ANYWHERE):
        return False
    return any(isinstance(part, ir.Name) and part.id in _ANYWHERE for part in parts(definition.body, into=True))


def _captured(body: Sequence[ir.Stmt]) -> Iterator[str]:
    """The names from around that the definitions and lambdas in some statements read, whenever they run."""
    for statement in statements(body):
        if isinstance(statement, ir.Function):
            yield from _free(statement)
        elif isinstance(statement, ir.Class):
            yield from _mentioned(statement.body)
            yield from _captured(statement.body)
        for expression in expressions(statement):
            for part in walk(expression):
                if isinstance(part, ir.Lambda):
                    yield from _free(part.function)


def _free(function: ir.Function) -> set[str]:
    """The names that a function reads and does not bind."""
    names = collect(function.body, function.params, function.words)
    return {*_mentioned(function.body), *_captured(function.body)} - names.bound.keys()


def _mentioned(body: Sequence[ir.Stmt]) -> Iterator[str]:
    """The names in some statements, but those that comprehensions bind."""
    for statement in statements(body):
        for expression in expressions(statement):
            yield from _read(expression)


@record(frozen=True, slots=True)
class _Around:
    """What is live where ``break`` and ``continue`` lead to, and what handlers and ``finally`` may read."""

    leave: Names = _NONE
    go_on: Names = _NONE
    caught: Names = _NONE


class _Reader:
    """Reads a definition backwards; ``kept`` lives throughout."""

    def __init__(self, kept: Names) -> None:
        self.kept = kept
        self.lives = Lives()

    def block(self, body: Sequence[ir.Stmt], after: Names, around: _Around) -> Names:
        """What is live before some statements, given what is after them."""
        for statement in reversed(body):
            self.lives.after[id(statement)] = after | around.caught
            after = self._before(statement, after, around) | self.kept
            self.lives.before[id(statement)] = after | around.caught
        return after

    def _before(self, node: ir.Stmt, after: Names, around: _Around) -> Names:
        read = frozenset(name for expression in _evaluated(node) for name in _read(expression))
        if isinstance(node, ir.If):
            return read | self.block(node.body, after, around) | self.block(node.orelse, after, around)
        if isinstance(node, (ir.For, ir.While)):
            return self._loop(node, read, after, around)
        if isinstance(node, ir.With):
            targets = (target for _, target in node.items if target is not None)
            return read | (self.block(node.body, after, around) - _bound(targets))
        if isinstance(node, ir.Try):
            return read | self._try(node, after, around)
        if isinstance(node, ir.Match):
            arms = (self.block(case.body, after, around) - frozenset(case.names) for case in node.cases)
            return read | after.union(*arms)
        if isinstance(node, (ir.Return, ir.Raise)):
            return read
        if isinstance(node, (ir.Break, ir.Continue)):
            return around.leave if isinstance(node, ir.Break) else around.go_on
        return (after - _killed(node)) | read

    def _loop(self, node: ir.For | ir.While, read: Names, after: Names, around: _Around) -> Names:
        done = self.block(node.orelse, after, around)
        tested = read if isinstance(node, ir.While) else _NONE
        head = done | tested
        while True:
            body = self.block(node.body, head, _Around(after, head, around.caught))
            grown = head | (body - _bound([node.target]) if isinstance(node, ir.For) else body)
            if grown == head:
                break
            head = grown
        self.lives.round[id(node)] = head | around.caught
        return read | head

    def _try(self, node: ir.Try, after: Names, around: _Around) -> Names:
        final = self.block(node.final, after, around)
        around = _Around(around.leave | final, around.go_on | final, around.caught | final)
        handlers = _NONE
        for handler in node.handlers:
            handlers |= self.block(handler.body, final, around) - frozenset(filter(None, (handler.name,)))
        orelse = self.block(node.orelse, final, around)
        tried = _Around(around.leave, around.go_on, around.caught | handlers)
        return self.block(node.body, orelse, tried) | handlers | final


def _evaluated(node: ir.Stmt) -> Iterator[ir.Expr]:
    """The expressions that a statement reads: without the names that it binds."""
    if isinstance(node, (ir.Assign, ir.For, ir.With, ir.Delete)):
        yield from _values(node)
    else:
        yield from expressions(node)


def _values(node: ir.Assign | ir.For | ir.With | ir.Delete) -> Iterator[ir.Expr]:
    targets: Iterable[ir.Expr]
    if isinstance(node, ir.With):
        yield from (context for context, _ in node.items)
        targets = (target for _, target in node.items if target is not None)
    elif isinstance(node, ir.For):
        yield node.iterable
        targets = (node.target,)
    else:
        targets = node.targets
        if isinstance(node, ir.Assign):
            yield node.value
    for target in targets:
        yield from _places(target)


def _places(target: ir.Expr) -> Iterator[ir.Expr]:
    """What a target reads: the owners of attributes and items that are set."""
    if isinstance(target, (ir.Sequence, ir.Starred)):
        for item in children(target):
            yield from _places(item)
    elif not isinstance(target, ir.Name):
        yield target


def _bound(targets: Iterable[ir.Expr]) -> Names:
    """The names that targets bind for certain."""
    found = set[str]()
    for target in targets:
        if isinstance(target, ir.Name):
            found.add(target.id)
        elif isinstance(target, (ir.Sequence, ir.Starred)):
            found |= _bound(children(target))
    return frozenset(found)


def _killed(node: ir.Stmt) -> Names:
    """The names whose value a simple statement replaces."""
    if isinstance(node, (ir.Assign, ir.Delete)):
        return _bound(node.targets)
    if isinstance(node, ir.Import):
        return frozenset(name for name, _ in node.bindings)
    return frozenset({node.name}) if isinstance(node, (ir.Function, ir.Class)) else _NONE


def _read(expression: ir.Expr) -> Iterator[str]:
    """The names that an expression reads; those that a comprehension binds are its own."""
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ir.Name):
            yield part.id
        elif isinstance(part, ir.Comprehension):
            own = _bound(target for target, _, _ in part.loops)
            first = part.loops[0][1] if part.loops else None
            inside = (name for child in children(part) if child is not first for name in _read(child))
            yield from (name for name in inside if name not in own)
            waiting += [first] if first is not None else []
        else:
            waiting += children(part)
