"""Errors that the code itself expects: what fails inside ``pytest.raises`` or before ``except AssertionError``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from amp_audit.model import Severity
from amp_audit.static.binding.project import Project
from amp_audit.static.raw import RawFinding
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import last_word, parts, statements, walk

_ASKING = frozenset({"raises", "assertRaises", "assertRaisesRegex"})
_MARKS = frozenset({"xfail", "expectedFailure"})
_CAUGHT = "AssertionError"
"""What GradScaler raises where its calls come in a wrong order. Wider handlers are there for errors of other kinds."""


def unexpected(found: Iterable[RawFinding], project: Project) -> Iterator[RawFinding]:
    """The findings without the errors that stand where a test asks for one."""
    places: dict[str, frozenset[int]] = {}
    for raw in found:
        if (raw.severity or raw.rule.severity) is Severity.ERROR and raw.path in project.modules:
            if raw.path not in places:
                places[raw.path] = _expected(project.modules[raw.path])
            if raw.at in places[raw.path]:
                continue
        yield raw


def _expected(module: ir.Module) -> frozenset[int]:
    """The ordinals of the expressions and statements that are expected to fail."""
    if module.words.isdisjoint({*_ASKING, *_MARKS, _CAUGHT}):
        return frozenset()
    return frozenset(at for body in _bodies(module) for at in _ordinals(body))


def _bodies(module: ir.Module) -> Iterator[tuple[ir.Stmt, ...]]:
    for node in statements(module.body, into=True):
        if isinstance(node, (ir.With, ir.Try, ir.Function)) and _fails(node):
            yield node.body


def _fails(node: ir.With | ir.Try | ir.Function) -> bool:
    if isinstance(node, ir.With):
        return any(_asks(context) for context, _ in node.items)
    if isinstance(node, ir.Try):
        return any(_catches(handler) for handler in node.handlers)
    return any(_MARKS & _words(mark) for mark in node.decorators)


def _asks(context: ir.Expr) -> bool:
    return isinstance(context, ir.Call) and last_word(context.func) in _ASKING


def _catches(handler: ir.Handler) -> bool:
    return handler.type is not None and _CAUGHT in _words(handler.type)


def _words(node: ir.Expr) -> set[str]:
    return {last_word(part) for part in walk(node)}


def _ordinals(body: tuple[ir.Stmt, ...]) -> Iterator[int]:
    yield from (node.at for node in statements(body, into=True))
    yield from (part.at for part in parts(body, into=True))
