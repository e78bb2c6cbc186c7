"""Ways through lowered modules: what lies directly in an expression or statement, and all that lies below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

from amp_audit.static.source import ir

Found = tuple[Any, ...]


def children(node: ir.Expr) -> Sequence[ir.Expr]:
    """The expressions directly inside an expression, in order; a lambda's body is not among them."""
    handler = _CHILDREN.get(type(node))
    return [child for child in handler(node) if child is not None] if handler else []


def walk(node: ir.Expr) -> Iterator[ir.Expr]:
    """``node`` and all expressions in it, outer first, without the bodies of lambdas."""
    stack = [node]
    while stack:
        found = stack.pop()
        yield found
        if isinstance(found, ir.Attr):  # these two and the leaves are nearly all there is
            stack.append(found.base)
        elif isinstance(found, ir.Call):
            stack += [arg.value for arg in reversed(found.args)]
            stack.append(found.func)
        elif (handler := _CHILDREN.get(type(found))) is not None:
            stack += [child for child in reversed(handler(found)) if child is not None]


def names_in(node: ir.Expr) -> Iterator[str]:
    """The identifiers in an expression, those of attributes included."""
    for inner in walk(node):
        if isinstance(inner, (ir.Name, ir.Attr)):
            yield last_word(inner)


def words_in(node: ir.Expr) -> Iterator[str]:
    """The identifiers in an expression, and its texts."""
    for inner in walk(node):
        if isinstance(inner, (ir.Name, ir.Attr)):
            yield last_word(inner)
        elif isinstance(inner, ir.Const) and isinstance(inner.value, str):
            yield inner.value


def last_word(node: ir.Expr) -> str:
    """The word that a name or an attribute ends with; empty for all else."""
    return node.id if isinstance(node, ir.Name) else node.name if isinstance(node, ir.Attr) else ""


def expressions(node: ir.Stmt) -> Sequence[ir.Expr]:
    """The expressions that stand directly in a statement, in order, not those of statements nested in it.

    Decorators, defaults, annotations and bases belong to the statement that defines.
    """
    handler = _EXPRESSIONS.get(type(node))
    return [child for child in handler(node) if child is not None] if handler else []


def bodies(node: ir.Stmt) -> Sequence[tuple[ir.Stmt, ...]]:
    """The bodies of a compound statement; definitions have none here."""
    handler = _BODIES.get(type(node))
    return handler(node) if handler is not None else ()


def statements(body: Iterable[ir.Stmt], *, into: bool = False) -> Iterator[ir.Stmt]:
    """All statements of a body, outer first; those of nested definitions only with ``into``."""
    stack = [*body]
    stack.reverse()
    while stack:
        node = stack.pop()
        yield node
        handler = _BODIES.get(type(node))
        if handler is not None:
            for inner in reversed(handler(node)):
                stack += inner[::-1]
        elif into and isinstance(node, (ir.Function, ir.Class)):
            stack += node.body[::-1]


def statements_saying(body: Iterable[ir.Stmt], words: Set[str]) -> Iterator[ir.Stmt]:
    """The statements of a body, and of those definitions in it, however deep, that say one of some words."""
    stack = [*body]
    stack.reverse()
    while stack:
        node = stack.pop()
        yield node
        handler = _BODIES.get(type(node))
        if handler is not None:
            for inner in reversed(handler(node)):
                stack += inner[::-1]
        elif isinstance(node, (ir.Function, ir.Class)) and not words.isdisjoint(node.words):
            stack += node.body[::-1]


def imports_in(body: Iterable[ir.Stmt]) -> tuple[ir.Import, ...]:
    """The import statements of a body, those of nested definitions included."""
    return tuple(node for node in statements(body, into=True) if isinstance(node, ir.Import))


def parts(body: Iterable[ir.Stmt], *, into: bool = False) -> Iterator[ir.Expr]:
    """All expressions in the statements of a body, as of ``statements`` and ``walk``."""
    for node in statements(body, into=into):
        for expression in expressions(node):
            yield from walk(expression)


def definitions(body: Iterable[ir.Stmt], cls: ir.Class | None = None) -> Iterator[tuple[ir.Function, ir.Class | None]]:
    """Every function below some statements, with the class whose body it stands in directly."""
    stack: list[tuple[ir.Stmt, ir.Class | None]] = [(statement, cls) for statement in body]
    stack.reverse()
    while stack:
        statement, owner = stack.pop()
        if isinstance(statement, ir.Function):
            yield statement, owner
            stack += [(inner, None) for inner in reversed(statement.body)]
        elif isinstance(statement, ir.Class):
            stack += [(inner, statement) for inner in reversed(statement.body)]
        else:
            for block in reversed(bodies(statement)):
                stack += [(inner, owner) for inner in reversed(block)]


def _arguments(node: ir.Call) -> Found:
    return (node.func, *(arg.value for arg in node.args))


def _comprehension(node: ir.Comprehension) -> Found:
    loops = [part for target, iterable, tests in node.loops for part in (iterable, target, *tests)]
    return (*loops, node.key, node.element)


def _parameters(params: Sequence[ir.Param]) -> Found:
    return tuple(part for param in params for part in (param.default, param.annotation))


_CHILDREN: dict[type, Callable[[Any], Found]] = {
    ir.Attr: lambda n: (n.base,),
    ir.Call: _arguments,
    ir.Subscript: lambda n: (n.base, n.index),
    ir.Slice: lambda n: (n.lower, n.upper, n.step),
    ir.Binary: lambda n: (n.left, n.right),
    ir.Unary: lambda n: (n.operand,),
    ir.Compare: lambda n: (n.left, *(right for _, right in n.rest)),
    ir.BoolOp: lambda n: (n.left, n.right),
    ir.IfExp: lambda n: (n.test, n.body, n.orelse),
    ir.Sequence: lambda n: n.items,
    ir.Mapping: lambda n: tuple(part for pair in n.items for part in pair),
    ir.Starred: lambda n: (n.value,),
    ir.Lambda: lambda n: _parameters(n.function.params),
    ir.Comprehension: _comprehension,
    ir.Text: lambda n: n.parts,
    ir.Yield: lambda n: (n.value,),
    ir.Await: lambda n: (n.value,),
    ir.Walrus: lambda n: (n.value, n.target),
}
_EXPRESSIONS: dict[type, Callable[[Any], Found]] = {
    ir.Evaluate: lambda n: (n.value,),
    ir.Assign: lambda n: (n.value, *n.targets),
    ir.Declare: lambda n: (n.target, n.annotation),
    ir.Augment: lambda n: (n.value, n.target),
    ir.Return: lambda n: (n.value,),
    ir.Raise: lambda n: (n.value,),
    ir.Delete: lambda n: n.targets,
    ir.Assert: lambda n: (n.test,),
    ir.If: lambda n: (n.test,),
    ir.While: lambda n: (n.test,),
    ir.For: lambda n: (n.iterable, n.target),
    ir.With: lambda n: tuple(part for pair in n.items for part in pair),
    ir.Try: lambda n: tuple(handler.type for handler in n.handlers),
    ir.Match: lambda n: (n.subject, *(part for case in n.cases for part in (*(case.values or ()), case.guard))),
    ir.Function: lambda n: (*n.decorators, *_parameters(n.params)),
    ir.Class: lambda n: (*n.decorators, *(arg.value for arg in n.bases)),
}
_BODIES: dict[type, Callable[[Any], tuple[tuple[ir.Stmt, ...], ...]]] = {
    ir.If: lambda n: (n.body, n.orelse),
    ir.For: lambda n: (n.body, n.orelse),
    ir.While: lambda n: (n.body, n.orelse),
    ir.With: lambda n: (n.body,),
    ir.Try: lambda n: (n.body, *(handler.body for handler in n.handlers), n.orelse, n.final),
    ir.Match: lambda n: tuple(case.body for case in n.cases),
}


def dotted_text(node: ir.Expr) -> str:
    """The dotted name that an expression spells, without the arguments of calls."""
    if isinstance(node, ir.Call):
        return dotted_text(node.func)
    if isinstance(node, ir.Attr):
        return f"{dotted_text(node.base)}.{node.name}"
    return node.id if isinstance(node, ir.Name) else ""


def spelled_condition(node: ir.Expr) -> tuple[str, bool]:
    """A condition on names and constants as a text, and whether it is negated: ``x != "cpu"`` is not ``x == "cpu"``.
    The text is empty for any other condition.
    """
    if isinstance(node, ir.Unary) and node.op == "not":
        text, negated = spelled_condition(node.operand)
        return text, not negated
    if isinstance(node, ir.Compare) and len(node.rest) == 1 and node.rest[0][0] in ("==", "!=", "is", "is not"):
        op, right = node.rest[0]
        sides = [_spelled(node.left), _spelled(right)]
        return (" == ".join(sides), op in ("!=", "is not")) if all(sides) else ("", False)
    return _spelled(node), False


def _spelled(node: ir.Expr) -> str:
    if isinstance(node, ir.Const):
        return repr(node.value)
    return dotted_text(node) if _is_chain(node) else ""


def _is_chain(node: ir.Expr) -> bool:
    while isinstance(node, ir.Attr):
        node = node.base
    return isinstance(node, ir.Name)


def root_name(node: ir.Expr) -> str:
    """The name at the start of attributes, subscripts and calls; empty if there is none."""
    while isinstance(node, (ir.Attr, ir.Subscript, ir.Call)):
        node = node.func if isinstance(node, ir.Call) else node.base
    return node.id if isinstance(node, ir.Name) else ""
