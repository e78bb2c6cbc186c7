"""libcst expressions -> ``static.ir`` expressions. ``concrete`` adds the statements."""

from __future__ import annotations

import ast
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst

from amp_audit.static.source import ir
from amp_audit.static.source.alike import Alike
from amp_audit.static.source.traverse import last_word

_CONSTANT_NAMES = {"None": None, "True": True, "False": False}
_BINARY = {
    cst.Add: "+",
    cst.Subtract: "-",
    cst.Multiply: "*",
    cst.Divide: "/",
    cst.FloorDivide: "//",
    cst.Modulo: "%",
    cst.Power: "**",
    cst.MatrixMultiply: "@",
    cst.BitAnd: "&",
    cst.BitOr: "|",
    cst.BitXor: "^",
    cst.LeftShift: "<<",
    cst.RightShift: ">>",
}
_UNARY = {cst.Minus: "-", cst.Plus: "+", cst.BitInvert: "~", cst.Not: "not"}
_COMPARE = {
    cst.Equal: "==",
    cst.LessThan: "<",
    cst.LessThanEqual: "<=",
    cst.GreaterThan: ">",
    cst.GreaterThanEqual: ">=",
    cst.In: "in",
    cst.Is: "is",
}


class BadLiteral(Exception):
    """A literal that the grammar allows and Python refuses; ``node`` is where it stands."""

    def __init__(self, node: cst.CSTNode, message: str) -> None:
        super().__init__(message)
        self.node = node


class Expressions(Alike[cst.CSTNode]):
    """One walk over the expressions of a module."""

    def expr(self, node: cst.CSTNode) -> ir.Expr:
        found: ir.Expr = _TABLE[type(node)](self, node)
        return found

    # Names and literals

    def name(self, node: cst.Name) -> ir.Expr:
        word = identifier(node)
        if word in _CONSTANT_NAMES:
            return ir.Const(self.at(node), _CONSTANT_NAMES[word])
        self.words.add(word)
        return ir.Name(self.at(node), word)

    def attribute(self, node: cst.Attribute) -> ir.Expr:
        at = self.at(node)
        word = identifier(node.attr)
        self.words.add(word)
        return ir.Attr(at, self.expr(node.value), word)

    def integer(self, node: cst.Integer) -> ir.Expr:
        try:
            value = int(node.value, 0)
        except ValueError as error:  # more digits than Python converts
            raise BadLiteral(node, str(error)) from None
        return ir.Const(self.at(node), value)

    def float(self, node: cst.Float) -> ir.Expr:
        return ir.Const(self.at(node), float(node.value))

    def imaginary(self, node: cst.Imaginary) -> ir.Expr:
        return ir.Const(self.at(node), complex(node.value))

    def ellipsis(self, node: cst.Ellipsis) -> ir.Expr:
        return ir.Const(self.at(node), ...)

    def string(self, node: cst.SimpleString) -> ir.Expr:
        value = _string_value(node)
        if value in ir.HALF_TYPES:
            self.words.add(value)
        return ir.Const(self.at(node), value)

    def concatenated(self, node: cst.ConcatenatedString) -> ir.Expr:
        at = self.at(node)
        pieces = _string_pieces(node)
        if all(isinstance(piece, cst.SimpleString) for piece in pieces):
            return ir.Const(at, _joined(node, [_string_value(piece) for piece in pieces]))
        formatted = [piece for piece in pieces if not isinstance(piece, cst.SimpleString)]
        return ir.Text(at, tuple(part for piece in formatted for part in self._parts(piece.parts)))

    def formatted(self, node: Any) -> ir.Expr:
        at = self.at(node)
        return ir.Text(at, tuple(self._parts(node.parts)))

    def _parts(self, parts: Sequence[Any]) -> list[ir.Expr]:
        found: list[ir.Expr] = []
        for part in parts:
            expression = getattr(part, "expression", None)
            if expression is not None:
                found.append(self.expr(expression))
                found.extend(self._parts(part.format_spec or ()))
        return found

    # Operators

    def binary(self, node: cst.BinaryOperation) -> ir.Expr:
        at = self.at(node)
        left = self.expr(node.left)
        return ir.Binary(at, _BINARY[type(node.operator)], left, self.expr(node.right))

    def unary(self, node: cst.UnaryOperation) -> ir.Expr:
        at = self.at(node)
        op = _UNARY[type(node.operator)]
        return self.signed(at, op, self.expr(node.expression))

    def boolean(self, node: cst.BooleanOperation) -> ir.Expr:
        at = self.at(node)
        left = self.expr(node.left)
        return ir.BoolOp(at, "and" if isinstance(node.operator, cst.And) else "or", left, self.expr(node.right))

    def comparison(self, node: cst.Comparison) -> ir.Expr:
        at = self.at(node)
        left = self.expr(node.left)
        rest = tuple((_comparison_word(c.operator), self.expr(c.comparator)) for c in node.comparisons)
        return ir.Compare(at, left, rest)

    # Calls and subscripts

    def call(self, node: cst.Call) -> ir.Expr:
        at = self.at(node)
        func = self.expr(node.func)
        self.called.add(last_word(func))
        return ir.Call(at, func, self.arguments(node.args))

    def arguments(self, nodes: Sequence[cst.Arg]) -> tuple[ir.Arg, ...]:
        found = []
        for node in nodes:
            keyword = None
            if node.keyword is not None:
                keyword = identifier(node.keyword)
                self.words.add(keyword)
            found.append(ir.Arg(self.expr(node.value), keyword, node.star))
        return tuple(found)

    def subscript(self, node: cst.Subscript) -> ir.Expr:
        at = self.at(node)
        base = self.expr(node.value)
        elements = node.slice
        if len(elements) == 1 and not isinstance(elements[0].comma, cst.Comma) and not _is_starred(elements[0].slice):
            return ir.Subscript(at, base, self._index(elements[0].slice))
        several = self.at(elements[0])
        items = tuple(self._index(element.slice) for element in elements)
        return ir.Subscript(at, base, ir.Sequence(several, "tuple", items))

    def _index(self, node: cst.BaseSlice) -> ir.Expr:
        if isinstance(node, cst.Index):
            if node.star:
                return ir.Starred(self.at(node), self.expr(node.value))
            return self.expr(node.value)
        assert isinstance(node, cst.Slice)
        return self.slice(node)

    # Displays, comprehensions and the rest

    def sequence(self, node: Any) -> ir.Expr:
        at = self.at(node)
        return ir.Sequence(at, _SEQUENCE[type(node)], tuple([self._element(element) for element in node.elements]))

    def _element(self, node: cst.BaseElement) -> ir.Expr:
        return self.starred(node) if isinstance(node, cst.StarredElement) else self.expr(node.value)

    def mapping(self, node: cst.Dict) -> ir.Expr:
        at = self.at(node)
        items = []
        for element in node.elements:
            key = self.expr(element.key) if isinstance(element, cst.DictElement) else None
            items.append((key, self.expr(element.value)))
        return ir.Mapping(at, tuple(items))

    def comprehension(self, node: Any) -> ir.Expr:
        at = self.at(node)
        kind = _COMPREHENSION[type(node)]
        loops = tuple(self._loops(node.for_in))
        if isinstance(node, cst.DictComp):
            key = self.expr(node.key)
            return ir.Comprehension(at, kind, self.expr(node.value), key, loops)
        return ir.Comprehension(at, kind, self.expr(node.elt), None, loops)

    def _loops(self, node: cst.CompFor | None) -> list[tuple[ir.Expr, ir.Expr, tuple[ir.Expr, ...]]]:
        found = []
        while node is not None:
            iterable = self.expr(node.iter)
            target = self.expr(node.target)
            found.append((target, iterable, tuple(self.expr(condition.test) for condition in node.ifs)))
            node = node.inner_for_in
        return found

    def yielded(self, node: cst.Yield) -> ir.Expr:
        self.yields = True
        at = self.at(node)
        if isinstance(node.value, cst.From):
            return ir.Yield(at, self.expr(node.value.item), True)
        return ir.Yield(at, self.optional(node.value))

    def awaited(self, node: cst.Await) -> ir.Expr:
        at = self.at(node)
        return ir.Await(at, self.expr(node.expression))

    def function_expression(self, node: cst.Lambda) -> ir.Expr:
        return self.anonymous(node, node.params)

    # What statements and lambdas share

    def parameters(self, node: cst.Parameters) -> tuple[ir.Param, ...]:
        found = [self._parameter(p, "positional") for p in (*node.posonly_params, *node.params)]
        if isinstance(node.star_arg, cst.Param):
            found.append(self._parameter(node.star_arg, "args"))
        found.extend(self._parameter(p, "keyword") for p in node.kwonly_params)
        if node.star_kwarg is not None:
            found.append(self._parameter(node.star_kwarg, "kwargs"))
        return tuple(found)

    def _parameter(self, node: cst.Param, kind: str) -> ir.Param:
        default = self.optional(node.default)
        annotation = self.optional(node.annotation.annotation) if node.annotation else None
        return ir.Param(identifier(node.name), kind, default, annotation)


def identifier(node: cst.Name) -> str:
    """A name as Python reads it: some characters are other ways to write the same one."""
    return node.value if node.value.isascii() else unicodedata.normalize("NFKC", node.value)


def _is_starred(node: cst.BaseSlice) -> bool:
    return isinstance(node, cst.Index) and bool(node.star)


def _string_pieces(node: cst.ConcatenatedString) -> list[Any]:
    pieces: list[Any] = []
    rest: Any = node
    while isinstance(rest, cst.ConcatenatedString):
        pieces.append(rest.left)
        rest = rest.right
    return [*pieces, rest]


def _joined(node: cst.CSTNode, values: Sequence[str | bytes]) -> str | bytes:
    texts = [value for value in values if isinstance(value, str)]
    if texts and len(texts) < len(values):
        raise BadLiteral(node, "cannot mix bytes and nonbytes literals")
    return "".join(texts) if texts else b"".join(value for value in values if isinstance(value, bytes))


def _string_value(node: cst.SimpleString) -> str | bytes:
    text = node.value
    prefix = node.prefix
    width = len(node.quote)
    body = text[len(prefix) + width : -width]
    if "b" not in prefix and "\r" not in body and ("r" in prefix or "\\" not in body):
        return body
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" is the program's business, not ours
            value = ast.literal_eval(text)
    except (SyntaxError, ValueError) as error:
        raise BadLiteral(node, str(getattr(error, "msg", error))) from None
    assert isinstance(value, (str, bytes))
    return value


def _comparison_word(node: cst.BaseCompOp) -> str:
    if isinstance(node, cst.NotIn):
        return "not in"
    if isinstance(node, cst.IsNot):
        return "is not"
    return "!=" if isinstance(node, cst.NotEqual) else _COMPARE[type(node)]


_SEQUENCE: dict[type[cst.CSTNode], str] = {cst.Tuple: "tuple", cst.List: "list", cst.Set: "set"}
_COMPREHENSION: dict[type[cst.CSTNode], str] = {
    cst.ListComp: "list",
    cst.SetComp: "set",
    cst.DictComp: "dict",
    cst.GeneratorExp: "generator",
}
_TABLE: dict[type[cst.CSTNode], Callable[[Any, Any], ir.Expr]] = {
    cst.Name: Expressions.name,
    cst.Attribute: Expressions.attribute,
    cst.Integer: Expressions.integer,
    cst.Float: Expressions.float,
    cst.Imaginary: Expressions.imaginary,
    cst.Ellipsis: Expressions.ellipsis,
    cst.SimpleString: Expressions.string,
    cst.ConcatenatedString: Expressions.concatenated,
    cst.FormattedString: Expressions.formatted,
    cst.BinaryOperation: Expressions.binary,
    cst.UnaryOperation: Expressions.unary,
    cst.BooleanOperation: Expressions.boolean,
    cst.Comparison: Expressions.comparison,
    cst.IfExp: Expressions.conditional,
    cst.NamedExpr: Expressions.walrus,
    cst.Call: Expressions.call,
    cst.Subscript: Expressions.subscript,
    cst.Tuple: Expressions.sequence,
    cst.List: Expressions.sequence,
    cst.Set: Expressions.sequence,
    cst.StarredElement: Expressions.starred,
    cst.Dict: Expressions.mapping,
    cst.ListComp: Expressions.comprehension,
    cst.SetComp: Expressions.comprehension,
    cst.DictComp: Expressions.comprehension,
    cst.GeneratorExp: Expressions.comprehension,
    cst.Yield: Expressions.yielded,
    cst.Await: Expressions.awaited,
    cst.Lambda: Expressions.function_expression,
}
if hasattr(cst, "TemplatedString"):  # Python 3.14, libcst 1.8.3
    _TABLE[cst.TemplatedString] = Expressions.formatted
