"""libcst tree -> facts of one module (``static.ir``): for what Python's own parser refuses (``abstract``).

Computing positions costs more than the walk, so they are not kept: ``positions`` lowers a source again.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import libcst as cst

from amp_audit.static.source import ir
from amp_audit.static.source.deep import with_deep_stack
from amp_audit.static.source.expressions import BadLiteral, Expressions, identifier
from amp_audit.static.source.literals import alive
from amp_audit.static.source.position import LoweringError, Position
from amp_audit.static.source.spans import ranges
from amp_audit.static.source.traverse import definitions, imports_in

_GUARDED_LENGTH = 16_384
"""Above this many characters Python's own parser, which has limits on nesting and is eight times faster, goes first."""

_GUARD_RECURSION = 1_000


def lower(path: str, source: str) -> ir.Module:
    """As ``lowering.lower``."""
    return with_deep_stack(lambda: _lower(path, source)[0])


def positions(source: str) -> Callable[[int], Position]:
    """As ``lowering.positions``."""
    return with_deep_stack(lambda: _positions(source))


def _positions(source: str) -> Callable[[int], Position]:
    _, walk, tree = _lower("", source)
    place = ranges(tree)

    def find(at: int) -> Position:
        node = walk.nodes[at]
        last = _header_end(node)
        parentheses = getattr(last, "rpar", ())  # of a With: one or none, of an expression: several
        closing = parentheses[-1] if isinstance(parentheses, Sequence) and parentheses and last is not node else last
        start, end = place(node), place(closing)
        return Position(start.line, start.column, end.end_line, end.end_column)

    return find


def _header_end(node: cst.CSTNode) -> cst.CSTNode:
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        return node.name
    if isinstance(node, (cst.If, cst.While)):
        return node.test
    if isinstance(node, cst.For):
        return node.iter
    if isinstance(node, cst.With):
        return node.items[-1].asname.name if node.items[-1].asname else node.items[-1].item
    if isinstance(node, cst.Match):
        return node.subject
    return node


def _lower(path: str, source: str) -> tuple[ir.Module, _Lowering, cst.Module]:
    try:
        tree = _parse(source)
        walk = _Lowering()
        return walk.module(path, tree), walk, tree
    except BadLiteral as error:
        place = ranges(tree)(error.node)
        raise LoweringError(str(error), place.line, place.column) from None
    except (RecursionError, MemoryError):
        raise LoweringError("nested too deeply") from None


def _parse(source: str) -> cst.Module:
    if len(source) > _GUARDED_LENGTH:
        _refuse_deep_nesting(source)
    try:
        return cst.parse_module(source)
    except (cst.ParserSyntaxError, cst.CSTValidationError) as error:
        raise _syntax_error(source, error) from None
    except (UnicodeDecodeError, LookupError, SyntaxError) as error:
        raise LoweringError(f"cannot be decoded: {error}") from None


def _syntax_error(source: str, error: cst.ParserSyntaxError | cst.CSTValidationError) -> LoweringError:
    """What is wrong, in Python's own words where it agrees: libcst names no place for some errors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except SyntaxError as own:
        return LoweringError(own.msg, own.lineno or 1, max(own.offset or 1, 1))
    except (ValueError, RecursionError, MemoryError):
        pass
    if isinstance(error, cst.CSTValidationError):
        return LoweringError(str(error))
    return LoweringError(error.message.strip().split("\n")[0], max(error.raw_line, 1), error.raw_column + 1)


def _refuse_deep_nesting(source: str) -> None:
    """Raises LoweringError where libcst would exhaust the stack, or need minutes (it is quadratic in the depth)."""
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(_GUARD_RECURSION)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except (RecursionError, MemoryError):
        raise LoweringError("nested too deeply") from None
    except SyntaxError as error:
        if "too many nested" in str(error):
            raise LoweringError(str(error.msg), error.lineno or 1, error.offset or 1) from None
    except ValueError:  # null bytes: libcst names their place
        pass
    finally:
        sys.setrecursionlimit(limit)


class _Lowering(Expressions):
    """The statements of a module, on top of its expressions."""

    def module(self, path: str, tree: cst.Module) -> ir.Module:
        body = self.block(tree.body)
        return ir.Module(path, body, frozenset(self.words), imports_in(body), tuple(definitions(body)))

    def block(self, nodes: Iterable[cst.CSTNode]) -> tuple[ir.Stmt, ...]:
        found: list[ir.Stmt] = []
        for node in nodes:
            if type(node) is cst.SimpleStatementLine:
                found.extend([_TABLE[type(small)](self, small) for small in node.body])
            else:
                found.append(_TABLE[type(node)](self, node))
        return tuple(found)

    def suite(self, node: cst.BaseSuite) -> tuple[ir.Stmt, ...]:
        if isinstance(node, cst.SimpleStatementSuite):
            return tuple([_TABLE[type(small)](self, small) for small in node.body])
        return self.block(cast("cst.IndentedBlock", node).body)

    def orelse(self, node: cst.If | cst.Else | None) -> tuple[ir.Stmt, ...]:
        if node is None:
            return ()
        return self.suite(node.body) if isinstance(node, cst.Else) else (self.branch(node),)

    # Simple statements

    def assign(self, node: cst.Assign) -> ir.Stmt:
        at = self.at(node)
        value = self.expr(node.value)
        return ir.Assign(at, tuple([self.expr(target.target) for target in node.targets]), value)

    def annotated(self, node: cst.AnnAssign) -> ir.Stmt:
        at = self.at(node)
        if node.value is None:
            target = self.expr(node.target)
            return ir.Declare(at, target, self.expr(node.annotation.annotation))
        value = self.expr(node.value)
        return ir.Assign(at, (self.expr(node.target),), value)

    def augment(self, node: cst.AugAssign) -> ir.Stmt:
        at = self.at(node)
        op = _AUGMENTED[type(node.operator)]
        value = self.expr(node.value)
        return ir.Augment(at, self.expr(node.target), op, value)

    def deleted(self, node: cst.Del) -> ir.Stmt:
        at = self.at(node)
        place: cst.BaseExpression = node.target
        if isinstance(place, cst.Tuple) and not place.lpar and len(place.elements) == 1:
            place = place.elements[0].value  # `del x,`
        target = self.expr(place)
        return ir.Delete(at, target.items if isinstance(target, ir.Sequence) else (target,))

    def scope(self, node: cst.Global | cst.Nonlocal) -> ir.Stmt:
        kind = "global" if isinstance(node, cst.Global) else "nonlocal"
        return ir.Scope(self.at(node), kind, tuple(identifier(item.name) for item in node.names))

    def imported(self, node: cst.Import) -> ir.Stmt:
        bindings, loads = [], []
        for alias in node.names:
            dotted = _dotted(alias.name)
            local = _local_name(alias)
            bindings.append((local, dotted) if local else (dotted.partition(".")[0],) * 2)
            loads.append(dotted)
            self.words.update(dotted.split("."))
            self.words.add(bindings[-1][0])
        return ir.Import(self.at(node), tuple(bindings), tuple(loads))

    def imported_from(self, node: cst.ImportFrom) -> ir.Stmt:
        dots = "." * len(node.relative)
        source = dots + (_dotted(node.module) if node.module is not None else "")
        self.words.update(word for word in source.split(".") if word)
        if isinstance(node.names, cst.ImportStar):
            return ir.Import(self.at(node), (("*", source),), (source,))
        bindings = []
        for alias in node.names:
            name = _dotted(alias.name)
            target = f"{source}{name}" if source == dots else f"{source}.{name}"
            bindings.append((_local_name(alias) or name, target))
            self.words.update((name, bindings[-1][0]))
        return ir.Import(self.at(node), tuple(bindings), (source, *(target for _, target in bindings)))

    # Compound statements

    def branch(self, node: cst.If) -> ir.Stmt:
        at = self.at(node)
        test = self.expr(node.test)
        body = self.suite(node.body)
        return alive(ir.If(at, test, body, self.orelse(node.orelse)))

    def loop(self, node: cst.For) -> ir.Stmt:
        at = self.at(node)
        iterable = self.expr(node.iter)
        target = self.expr(node.target)
        body = self.suite(node.body)
        return ir.For(at, target, iterable, body, self.orelse(node.orelse))

    def while_loop(self, node: cst.While) -> ir.Stmt:
        at = self.at(node)
        test = self.expr(node.test)
        body = self.suite(node.body)
        return ir.While(at, test, body, self.orelse(node.orelse))

    def with_block(self, node: cst.With) -> ir.Stmt:
        at = self.at(node)
        items = []
        for item in node.items:
            context = self.expr(item.item)
            items.append((context, self.expr(item.asname.name) if item.asname else None))
        return ir.With(at, tuple(items), self.suite(node.body))

    def try_block(self, node: cst.Try | cst.TryStar) -> ir.Stmt:
        at = self.at(node)
        body = self.suite(node.body)
        handlers = tuple(self._handler(handler) for handler in node.handlers)
        orelse = self.orelse(node.orelse)
        return ir.Try(at, body, handlers, orelse, self.suite(node.finalbody.body) if node.finalbody else ())

    def _handler(self, node: cst.ExceptHandler | cst.ExceptStarHandler) -> ir.Handler:
        at = self.at(node)
        kind = self.optional(node.type)
        name = identifier(cast("cst.Name", node.name.name)) if node.name else None
        return ir.Handler(at, kind, name, self.suite(node.body))

    def match(self, node: cst.Match) -> ir.Stmt:
        at = self.at(node)
        subject = self.expr(node.subject)
        cases = []
        for case in node.cases:
            names = tuple(_bound_names(case.pattern))
            values = self._values(case.pattern)
            guard = self.optional(case.guard)
            cases.append(ir.Case(names, values, guard, self.suite(case.body)))
        return ir.Match(at, subject, tuple(cases))

    def _values(self, pattern: cst.MatchPattern) -> tuple[ir.Expr, ...] | None:
        """What a pattern wants the subject to equal one of; None where it takes anything."""
        if isinstance(pattern, cst.MatchAs):
            return None if pattern.pattern is None else self._values(pattern.pattern)
        if isinstance(pattern, cst.MatchOr):
            parts = [self._values(part.pattern) for part in pattern.patterns]
            if None in parts:
                return None
            return () if () in parts else tuple(value for part in parts for value in part or ())
        return (self.expr(pattern.value),) if isinstance(pattern, (cst.MatchValue, cst.MatchSingleton)) else ()

    def function(self, node: cst.FunctionDef) -> ir.Stmt:
        at = self.at(node)
        with self.around():
            decorators = self._decorators(node.decorators)
            params = self.parameters(node.params)
            around, called = frozenset(self.words), frozenset(self.called)
        name = identifier(node.name)
        outside = self.enter(name, is_function=True)
        body = self.suite(node.body)
        words, called, is_generator = frozenset(self.words), called | self.called, self.yields
        qualname = self.leave(outside)
        self.words.add(name)
        is_async = node.asynchronous is not None
        return ir.Function(at, name, qualname, params, body, decorators, is_async, is_generator, words, around, called)

    def class_definition(self, node: cst.ClassDef) -> ir.Stmt:
        at = self.at(node)
        decorators = self._decorators(node.decorators)
        bases = self.arguments((*node.bases, *node.keywords))
        name = identifier(node.name)
        outside = self.enter(name, is_function=False)
        body = self.suite(node.body)
        words = frozenset(self.words)
        qualname = self.leave(outside)
        self.words.add(name)
        return ir.Class(at, name, qualname, bases, body, decorators, words)

    def _decorators(self, nodes: Sequence[cst.Decorator]) -> tuple[ir.Expr, ...]:
        return tuple(self.expr(node.decorator) for node in nodes)


def _dotted(node: cst.CSTNode) -> str:
    names: list[str] = []
    while isinstance(node, cst.Attribute):
        names.append(identifier(node.attr))
        node = node.value
    names.append(identifier(cast("cst.Name", node)))
    return ".".join(reversed(names))


def _local_name(alias: cst.ImportAlias) -> str | None:
    return identifier(cast("cst.Name", alias.asname.name)) if alias.asname else None


def _bound_names(node: cst.CSTNode) -> Iterable[str]:
    name = getattr(node, "name", None) if isinstance(node, (cst.MatchAs, cst.MatchStar)) else None
    if isinstance(node, cst.MatchMapping):
        name = node.rest
    if isinstance(name, cst.Name):
        yield identifier(name)
    if isinstance(node, (cst.MatchValue, cst.MatchSingleton)):
        return
    for child in node.children:
        if isinstance(child, _PATTERN_PARTS):
            yield from _bound_names(child)


_PATTERN_PARTS = (
    cst.MatchPattern,
    cst.MatchStar,
    cst.MatchOrElement,
    cst.MatchSequenceElement,
    cst.MatchMappingElement,
    cst.MatchKeywordElement,
)
_AUGMENTED = {
    cst.AddAssign: "+",
    cst.SubtractAssign: "-",
    cst.MultiplyAssign: "*",
    cst.DivideAssign: "/",
    cst.FloorDivideAssign: "//",
    cst.ModuloAssign: "%",
    cst.PowerAssign: "**",
    cst.MatrixMultiplyAssign: "@",
    cst.BitAndAssign: "&",
    cst.BitOrAssign: "|",
    cst.BitXorAssign: "^",
    cst.LeftShiftAssign: "<<",
    cst.RightShiftAssign: ">>",
}
_TABLE: dict[type[cst.CSTNode], Callable[[Any, Any], ir.Stmt]] = {
    cst.Expr: _Lowering.evaluate,
    cst.Assign: _Lowering.assign,
    cst.AnnAssign: _Lowering.annotated,
    cst.AugAssign: _Lowering.augment,
    cst.TypeAlias: _Lowering.type_alias,
    cst.Return: _Lowering.returned,
    cst.Raise: _Lowering.raised,
    cst.Del: _Lowering.deleted,
    cst.Assert: _Lowering.asserted,
    cst.Break: _Lowering.broken,
    cst.Continue: _Lowering.continued,
    cst.Pass: _Lowering.passed,
    cst.Global: _Lowering.scope,
    cst.Nonlocal: _Lowering.scope,
    cst.Import: _Lowering.imported,
    cst.ImportFrom: _Lowering.imported_from,
    cst.If: _Lowering.branch,
    cst.For: _Lowering.loop,
    cst.While: _Lowering.while_loop,
    cst.With: _Lowering.with_block,
    cst.Try: _Lowering.try_block,
    cst.TryStar: _Lowering.try_block,
    cst.Match: _Lowering.match,
    cst.FunctionDef: _Lowering.function,
    cst.ClassDef: _Lowering.class_definition,
}
