"""Which attributes a function takes to be there: it uses what they hold, and asks nowhere whether there is anything.

What ``__init__`` has put None in such a place is filled out of sight before the function runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from amp_audit.static.source import ir
from amp_audit.static.source.traverse import bodies, children, dotted_text, expressions, last_word, statements, walk

_LEAVES = (ir.Return, ir.Raise, ir.Continue, ir.Break)


@dataclass(slots=True)
class Granted:
    """Answers for functions, each read when it is first asked for."""

    _used: dict[int, tuple[ir.Function, frozenset[str]]] = field(default_factory=dict)
    _filled: dict[str, frozenset[str]] = field(default_factory=dict)

    def of(self, function: ir.Function, module: ir.Module) -> frozenset[str]:
        """The attributes as they are spelled: ``self.model``.

        Where its own module fills an attribute, a test of another thing may tell whether it has done so: then only what
        is used under no test counts.
        """
        known = self._used.get(id(function))
        if known is None:
            if module.path not in self._filled:
                self._filled[module.path] = frozenset(_filled(module))
            found = {
                spelled
                for spelled, chosen in _used(function.body, frozenset(), False)
                if not chosen or spelled.rpartition(".")[2] not in self._filled[module.path]
            }
            known = self._used[id(function)] = (function, frozenset(found) - {*_doubted(function.body)})
        return known[1]


def _filled(module: ir.Module) -> Iterator[str]:
    """The names of the attributes that a module sets to something."""
    for node in statements(module.body, into=True):
        if isinstance(node, ir.Assign) and not (isinstance(node.value, ir.Const) and node.value.value is None):
            for target in node.targets:
                yield from (last_word(part) for part in walk(target) if isinstance(part, ir.Attr))


def _doubted(body: Iterable[ir.Stmt]) -> Iterator[str]:
    """The attributes that some statements set themselves, or that decide whether they are left early."""
    for node in statements(body):
        if isinstance(node, (ir.Assign, ir.Augment, ir.Delete)):
            targets = (node.target,) if isinstance(node, ir.Augment) else node.targets
            yield from (dotted_text(part) for target in targets for part in walk(target) if isinstance(part, ir.Attr))
        elif isinstance(node, ir.If) and any(isinstance(inner, _LEAVES) for inner in statements(node.body)):
            yield from _attributes(node.test)


def _used(body: Sequence[ir.Stmt], asked: frozenset[str], chosen: bool) -> Iterator[tuple[str, bool]]:
    """The attributes whose own attributes are read under no test that speaks of them, each with whether there is
    another test around. What is tried may fail.
    """
    for node in body:
        for expression in expressions(node):
            yield from ((spelled, chosen or deeper) for spelled, deeper in _read(expression, asked, False))
        if isinstance(node, ir.Try) and node.handlers:
            continue
        tests = isinstance(node, (ir.If, ir.While))
        tested = asked.union(_attributes(node.test)) if isinstance(node, (ir.If, ir.While)) else asked
        for inner in bodies(node):
            yield from _used(inner, tested, chosen or tests)


def _read(node: ir.Expr, asked: frozenset[str], chosen: bool) -> Iterator[tuple[str, bool]]:
    if isinstance(node, ir.Attr) and isinstance(node.base, ir.Attr):
        spelled = dotted_text(node.base)
        if spelled not in asked:
            yield spelled, chosen
    tested = node.test if isinstance(node, ir.IfExp) else node.left if isinstance(node, ir.BoolOp) else None
    for child in children(node):
        free = tested is None or child is tested
        yield from _read(child, asked if free else asked.union(_attributes(tested or node)), chosen or not free)


def _attributes(node: ir.Expr) -> Iterator[str]:
    return (dotted_text(part) for part in walk(node) if isinstance(part, ir.Attr))
