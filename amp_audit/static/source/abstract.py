"""Python's own syntax tree -> facts of one module (``static.ir``).

Eight times faster than libcst, which reads what this Python refuses (``concrete``): the syntax of newer ones. Both give
the same facts with the same ordinals; a test holds them against each other.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from amp_audit.static.source import ir
from amp_audit.static.source.alike import Alike
from amp_audit.static.source.literals import alive
from amp_audit.static.source.traverse import definitions, imports_in, last_word

Spot = ast.AST | tuple[ast.AST, ast.AST]
"""A node, or from the beginning of one to the end of another."""

_BINARY = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
_UNARY = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not"}
_COMPARE = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}
_SEQUENCE = {ast.Tuple: "tuple", ast.List: "list", ast.Set: "set"}
_COMPREHENSION = {ast.ListComp: "list", ast.SetComp: "set", ast.GeneratorExp: "generator"}


class Lowering(Alike[Spot]):
    """One walk over a module. ``texts``: of each f-string its ordinal and the first one after it."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[int, int]] = []

    def module(self, path: str, tree: ast.Module) -> ir.Module:
        body = self.block(tree.body)
        return ir.Module(path, body, frozenset(self.words), imports_in(body), tuple(definitions(body)))

    def block(self, nodes: Iterable[ast.stmt]) -> tuple[ir.Stmt, ...]:
        return tuple([_STATEMENTS[type(node)](self, node) for node in nodes])

    def expr(self, node: ast.AST) -> ir.Expr:
        found: ir.Expr = _EXPRESSIONS[type(node)](self, node)
        return found

    # Names and literals

    def name(self, node: ast.Name) -> ir.Expr:
        self.words.add(node.id)
        return ir.Name(self.at(node), node.id)

    def attribute(self, node: ast.Attribute) -> ir.Expr:
        at = self.at(node)
        self.words.add(node.attr)
        return ir.Attr(at, self.expr(node.value), node.attr)

    def constant(self, node: ast.Constant) -> ir.Expr:
        if node.value in ir.HALF_TYPES:
            self.words.add(node.value)
        return ir.Const(self.at(node), node.value)

    def formatted(self, node: Any) -> ir.Expr:
        at = self.at(node)
        parts = tuple(self._parts(node.values))
        self.texts.append((at, len(self.nodes)))
        return ir.Text(at, parts)

    def _parts(self, parts: Iterable[Any]) -> list[ir.Expr]:
        found: list[ir.Expr] = []
        for part in parts:
            if not isinstance(part, ast.Constant):
                found.append(self.expr(part.value))
                found.extend(self._parts(part.format_spec.values if part.format_spec is not None else ()))
        return found

    # Operators

    def binary(self, node: ast.BinOp) -> ir.Expr:
        at = self.at(node)
        left = self.expr(node.left)
        return ir.Binary(at, _BINARY[type(node.op)], left, self.expr(node.right))

    def unary(self, node: ast.UnaryOp) -> ir.Expr:
        at = self.at(node)
        op = _UNARY[type(node.op)]
        return self.signed(at, op, self.expr(node.operand))

    def boolean(self, node: ast.BoolOp) -> ir.Expr:
        """``a and b and c`` is one node here and two operations, the left one inside the other."""
        first, *rest = node.values
        places = [self.at((first, last)) for last in reversed(rest)]
        op = "and" if isinstance(node.op, ast.And) else "or"
        found = self.expr(first)
        for at, value in zip(reversed(places), rest):
            found = ir.BoolOp(at, op, found, self.expr(value))
        return found

    def comparison(self, node: ast.Compare) -> ir.Expr:
        at = self.at(node)
        left = self.expr(node.left)
        rest = tuple([(_COMPARE[type(op)], self.expr(right)) for op, right in zip(node.ops, node.comparators)])
        return ir.Compare(at, left, rest)

    # Calls and subscripts

    def call(self, node: ast.Call) -> ir.Expr:
        at = self.at(node)
        func = self.expr(node.func)
        self.called.add(last_word(func))
        if node.args and node.keywords and _place(node.args[-1]) > _place(node.keywords[0]):
            return ir.Call(at, func, self.arguments(sorted([*node.args, *node.keywords], key=_place)))
        return ir.Call(at, func, self.arguments([*node.args, *node.keywords]))

    def arguments(self, nodes: Iterable[ast.expr | ast.keyword]) -> tuple[ir.Arg, ...]:
        found = []
        for node in nodes:
            if isinstance(node, ast.keyword):
                if node.arg is not None:
                    self.words.add(node.arg)
                found.append(ir.Arg(self.expr(node.value), node.arg, "" if node.arg is not None else "**"))
            elif isinstance(node, ast.Starred):
                found.append(ir.Arg(self.expr(node.value), None, "*"))
            else:
                found.append(ir.Arg(self.expr(node)))
        return tuple(found)

    def subscript(self, node: ast.Subscript) -> ir.Expr:
        at = self.at(node)
        base = self.expr(node.value)
        return ir.Subscript(at, base, self.expr(node.slice))

    # Displays, comprehensions and the rest

    def sequence(self, node: Any) -> ir.Expr:
        at = self.at(node)
        return ir.Sequence(at, _SEQUENCE[type(node)], tuple([self.expr(item) for item in node.elts]))

    def mapping(self, node: ast.Dict) -> ir.Expr:
        at = self.at(node)
        return ir.Mapping(at, tuple([(self.optional(k), self.expr(value)) for k, value in zip(node.keys, node.values)]))

    def comprehension(self, node: Any) -> ir.Expr:
        at = self.at(node)
        loops = tuple([self._loop(loop) for loop in node.generators])
        return ir.Comprehension(at, _COMPREHENSION[type(node)], self.expr(node.elt), None, loops)

    def mapping_comprehension(self, node: ast.DictComp) -> ir.Expr:
        at = self.at(node)
        loops = tuple([self._loop(loop) for loop in node.generators])
        key = self.expr(node.key)
        return ir.Comprehension(at, "dict", self.expr(node.value), key, loops)

    def _loop(self, node: ast.comprehension) -> tuple[ir.Expr, ir.Expr, tuple[ir.Expr, ...]]:
        iterable = self.expr(node.iter)
        target = self.expr(node.target)
        return target, iterable, tuple([self.expr(test) for test in node.ifs])

    def yielded(self, node: ast.Yield) -> ir.Expr:
        self.yields = True
        at = self.at(node)
        return ir.Yield(at, self.optional(node.value))

    def delegated(self, node: ast.YieldFrom) -> ir.Expr:
        self.yields = True
        at = self.at(node)
        return ir.Yield(at, self.expr(node.value), True)

    def awaited(self, node: ast.Await) -> ir.Expr:
        at = self.at(node)
        return ir.Await(at, self.expr(node.value))

    def function_expression(self, node: ast.Lambda) -> ir.Expr:
        return self.anonymous(node, node.args)

    def parameters(self, node: ast.arguments) -> tuple[ir.Param, ...]:
        plain = [*node.posonlyargs, *node.args]
        defaults = [*([None] * (len(plain) - len(node.defaults))), *node.defaults]
        found = [self._parameter(arg, "positional", default) for arg, default in zip(plain, defaults)]
        if node.vararg is not None:
            found.append(self._parameter(node.vararg, "args", None))
        found += [self._parameter(arg, "keyword", default) for arg, default in zip(node.kwonlyargs, node.kw_defaults)]
        if node.kwarg is not None:
            found.append(self._parameter(node.kwarg, "kwargs", None))
        return tuple(found)

    def _parameter(self, node: ast.arg, kind: str, default: ast.expr | None) -> ir.Param:
        value = self.optional(default)
        return ir.Param(node.arg, kind, value, self.optional(node.annotation))

    # Simple statements

    def assign(self, node: ast.Assign) -> ir.Stmt:
        at = self.at(node)
        value = self.expr(node.value)
        return ir.Assign(at, tuple([self.expr(target) for target in node.targets]), value)

    def annotated(self, node: ast.AnnAssign) -> ir.Stmt:
        at = self.at(node)
        if node.value is None:
            target = self.expr(node.target)
            return ir.Declare(at, target, self.expr(node.annotation))
        value = self.expr(node.value)
        return ir.Assign(at, (self.expr(node.target),), value)

    def augment(self, node: ast.AugAssign) -> ir.Stmt:
        at = self.at(node)
        value = self.expr(node.value)
        return ir.Augment(at, self.expr(node.target), _BINARY[type(node.op)], value)

    def deleted(self, node: ast.Delete) -> ir.Stmt:
        at = self.at(node)
        if len(node.targets) > 1:
            self.at((node.targets[0], node.targets[-1]))  # what is written there is a tuple
            return ir.Delete(at, tuple([self.expr(target) for target in node.targets]))
        target = self.expr(node.targets[0])
        return ir.Delete(at, target.items if isinstance(target, ir.Sequence) else (target,))

    def scope(self, node: ast.Global | ast.Nonlocal) -> ir.Stmt:
        kind = "global" if isinstance(node, ast.Global) else "nonlocal"
        return ir.Scope(self.at(node), kind, tuple(node.names))

    def imported(self, node: ast.Import) -> ir.Stmt:
        bindings = []
        for alias in node.names:
            top = alias.name.partition(".")[0]
            bindings.append((alias.asname, alias.name) if alias.asname else (top, top))
            self.words.update(alias.name.split("."))
            self.words.add(bindings[-1][0])
        return ir.Import(self.at(node), tuple(bindings), tuple([alias.name for alias in node.names]))

    def imported_from(self, node: ast.ImportFrom) -> ir.Stmt:
        dots = "." * node.level
        source = dots + (node.module or "")
        self.words.update(word for word in source.split(".") if word)
        if node.names[0].name == "*":
            return ir.Import(self.at(node), (("*", source),), (source,))
        bindings = []
        for alias in node.names:
            target = f"{source}{alias.name}" if source == dots else f"{source}.{alias.name}"
            bindings.append((alias.asname or alias.name, target))
            self.words.update((alias.name, bindings[-1][0]))
        return ir.Import(self.at(node), tuple(bindings), (source, *(target for _, target in bindings)))

    # Compound statements

    def branch(self, node: ast.If) -> ir.Stmt:
        at = self.at(node)
        test = self.expr(node.test)
        body = self.block(node.body)
        return alive(ir.If(at, test, body, self.block(node.orelse)))

    def loop(self, node: ast.For | ast.AsyncFor) -> ir.Stmt:
        at = self.at(node)
        iterable = self.expr(node.iter)
        target = self.expr(node.target)
        body = self.block(node.body)
        return ir.For(at, target, iterable, body, self.block(node.orelse))

    def while_loop(self, node: ast.While) -> ir.Stmt:
        at = self.at(node)
        test = self.expr(node.test)
        body = self.block(node.body)
        return ir.While(at, test, body, self.block(node.orelse))

    def with_block(self, node: ast.With | ast.AsyncWith) -> ir.Stmt:
        at = self.at(node)
        items = []
        for item in node.items:
            context = self.expr(item.context_expr)
            items.append((context, self.optional(item.optional_vars)))
        return ir.With(at, tuple(items), self.block(node.body))

    def try_block(self, node: Any) -> ir.Stmt:
        at = self.at(node)
        body = self.block(node.body)
        handlers = tuple([self._handler(handler) for handler in node.handlers])
        orelse = self.block(node.orelse)
        return ir.Try(at, body, handlers, orelse, self.block(node.finalbody))

    def _handler(self, node: ast.ExceptHandler) -> ir.Handler:
        at = self.at(node)
        kind = self.optional(node.type)
        return ir.Handler(at, kind, node.name, self.block(node.body))

    def match(self, node: ast.Match) -> ir.Stmt:
        at = self.at(node)
        subject = self.expr(node.subject)
        cases = []
        for case in node.cases:
            names = tuple(_bound_names(case.pattern))
            values = self._values(case.pattern)
            guard = self.optional(case.guard)
            cases.append(ir.Case(names, values, guard, self.block(case.body)))
        return ir.Match(at, subject, tuple(cases))

    def _values(self, pattern: ast.pattern) -> tuple[ir.Expr, ...] | None:
        """What a pattern wants the subject to equal one of; None where it takes anything."""
        if isinstance(pattern, ast.MatchAs):
            return None if pattern.pattern is None else self._values(pattern.pattern)
        if isinstance(pattern, ast.MatchOr):
            parts = [self._values(part) for part in pattern.patterns]
            if None in parts:
                return None
            return () if () in parts else tuple(value for part in parts for value in part or ())
        if isinstance(pattern, ast.MatchValue):
            return (self.expr(pattern.value),)
        return (ir.Const(self.at(pattern), pattern.value),) if isinstance(pattern, ast.MatchSingleton) else ()

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ir.Stmt:
        at = self.at(node)
        with self.around():
            decorators = self._decorators(node.decorator_list)
            params = self.parameters(node.args)
            around, called = frozenset(self.words), frozenset(self.called)
        outside = self.enter(node.name, is_function=True)
        body = self.block(node.body)
        words, called, is_generator = frozenset(self.words), called | self.called, self.yields
        qualname = self.leave(outside)
        self.words.add(node.name)
        is_async = isinstance(node, ast.AsyncFunctionDef)
        return ir.Function(
            at, node.name, qualname, params, body, decorators, is_async, is_generator, words, around, called
        )

    def class_definition(self, node: ast.ClassDef) -> ir.Stmt:
        at = self.at(node)
        decorators = self._decorators(node.decorator_list)
        bases = self.arguments([*node.bases, *node.keywords])
        outside = self.enter(node.name, is_function=False)
        body = self.block(node.body)
        words = frozenset(self.words)
        qualname = self.leave(outside)
        self.words.add(node.name)
        return ir.Class(at, node.name, qualname, bases, body, decorators, words)

    def _decorators(self, nodes: Sequence[ast.expr]) -> tuple[ir.Expr, ...]:
        return tuple([self.expr(node) for node in nodes])


def _place(node: ast.expr | ast.keyword) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _bound_names(node: ast.pattern) -> Iterable[str]:
    name = node.rest if isinstance(node, ast.MatchMapping) else getattr(node, "name", None)
    if name is not None:
        yield name
    for part in (*getattr(node, "patterns", ()), *getattr(node, "kwd_patterns", ())):
        yield from _bound_names(part)
    if isinstance(node, ast.MatchAs) and node.pattern is not None:
        yield from _bound_names(node.pattern)


_EXPRESSIONS: dict[type[ast.AST], Callable[[Any, Any], ir.Expr]] = {
    ast.Name: Lowering.name,
    ast.Attribute: Lowering.attribute,
    ast.Constant: Lowering.constant,
    ast.JoinedStr: Lowering.formatted,
    ast.BinOp: Lowering.binary,
    ast.UnaryOp: Lowering.unary,
    ast.BoolOp: Lowering.boolean,
    ast.Compare: Lowering.comparison,
    ast.IfExp: Lowering.conditional,
    ast.NamedExpr: Lowering.walrus,
    ast.Call: Lowering.call,
    ast.Subscript: Lowering.subscript,
    ast.Slice: Lowering.slice,
    ast.Tuple: Lowering.sequence,
    ast.List: Lowering.sequence,
    ast.Set: Lowering.sequence,
    ast.Starred: Lowering.starred,
    ast.Dict: Lowering.mapping,
    ast.ListComp: Lowering.comprehension,
    ast.SetComp: Lowering.comprehension,
    ast.GeneratorExp: Lowering.comprehension,
    ast.DictComp: Lowering.mapping_comprehension,
    ast.Yield: Lowering.yielded,
    ast.YieldFrom: Lowering.delegated,
    ast.Await: Lowering.awaited,
    ast.Lambda: Lowering.function_expression,
}
_STATEMENTS: dict[type[ast.AST], Callable[[Any, Any], ir.Stmt]] = {
    ast.Expr: Lowering.evaluate,
    ast.Assign: Lowering.assign,
    ast.AnnAssign: Lowering.annotated,
    ast.AugAssign: Lowering.augment,
    ast.Return: Lowering.returned,
    ast.Raise: Lowering.raised,
    ast.Delete: Lowering.deleted,
    ast.Assert: Lowering.asserted,
    ast.Break: Lowering.broken,
    ast.Continue: Lowering.continued,
    ast.Pass: Lowering.passed,
    ast.Global: Lowering.scope,
    ast.Nonlocal: Lowering.scope,
    ast.Import: Lowering.imported,
    ast.ImportFrom: Lowering.imported_from,
    ast.If: Lowering.branch,
    ast.For: Lowering.loop,
    ast.AsyncFor: Lowering.loop,
    ast.While: Lowering.while_loop,
    ast.With: Lowering.with_block,
    ast.AsyncWith: Lowering.with_block,
    ast.Try: Lowering.try_block,
    ast.Match: Lowering.match,
    ast.FunctionDef: Lowering.function,
    ast.AsyncFunctionDef: Lowering.function,
    ast.ClassDef: Lowering.class_definition,
}
for _newer, _lower in {"TryStar": Lowering.try_block, "TypeAlias": Lowering.type_alias}.items():  # 3.11, 3.12
    if hasattr(ast, _newer):
        _STATEMENTS[getattr(ast, _newer)] = _lower
if hasattr(ast, "TemplateStr"):  # 3.14
    _EXPRESSIONS[ast.TemplateStr] = Lowering.formatted
