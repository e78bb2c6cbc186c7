"""Lowering of the nodes whose parts have the same names in Python's own syntax tree and in libcst's."""

from __future__ import annotations

import abc
from typing import Any

from amp_audit.static.source import ir
from amp_audit.static.source.scoping import N, Scoping


class Alike(Scoping[N], abc.ABC):
    """One walk over a module, of either tree; ordinals are given in the order in which these methods ask for them."""

    @abc.abstractmethod
    def expr(self, node: Any) -> ir.Expr:
        """The facts of an expression."""

    def optional(self, node: Any) -> ir.Expr | None:
        return None if node is None else self.expr(node)

    # Expressions

    def signed(self, at: int, op: str, operand: ir.Expr) -> ir.Expr:
        """A unary operation; a number with a sign is a number."""
        if op in "-+" and isinstance(operand, ir.Const) and type(operand.value) in (int, float, complex):
            number: Any = operand.value
            return ir.Const(at, -number if op == "-" else number)
        return ir.Unary(at, op, operand)

    def conditional(self, node: Any) -> ir.Expr:
        at = self.at(node)
        test = self.expr(node.test)
        body = self.expr(node.body)
        return ir.IfExp(at, test, body, self.expr(node.orelse))

    def walrus(self, node: Any) -> ir.Expr:
        at = self.at(node)
        self.words.add(ir.WALRUS)
        target = self.expr(node.target)
        return ir.Walrus(at, target, self.expr(node.value))

    def starred(self, node: Any) -> ir.Expr:
        at = self.at(node)
        return ir.Starred(at, self.expr(node.value))

    def slice(self, node: Any) -> ir.Expr:
        at = self.at(node)
        lower, upper = self.optional(node.lower), self.optional(node.upper)
        return ir.Slice(at, lower, upper, self.optional(node.step))

    def anonymous(self, node: Any, params: Any) -> ir.Expr:
        """A lambda; ``params``: the node of its parameters."""
        at = self.at(node)
        own = self.parameters(params)
        inner = self.at(node)
        outside = self.enter("<lambda>", is_function=True)
        returned = self.at(node.body)
        body = (ir.Return(returned, self.expr(node.body)),)
        words, is_generator = frozenset(self.words), self.yields
        qualname = self.leave(outside)
        made = ir.Function(inner, "<lambda>", qualname, own, body, is_generator=is_generator, words=words)
        return ir.Lambda(at, made)

    @abc.abstractmethod
    def parameters(self, node: Any) -> tuple[ir.Param, ...]:
        """The parameters of a function or lambda."""

    # Statements

    def evaluate(self, node: Any) -> ir.Stmt:
        at = self.at(node)
        return ir.Evaluate(at, self.expr(node.value))

    def type_alias(self, node: Any) -> ir.Stmt:
        at = self.at(node)
        value = self.expr(node.value)
        return ir.Assign(at, (self.expr(node.name),), value)

    def returned(self, node: Any) -> ir.Stmt:
        at = self.at(node)
        return ir.Return(at, self.optional(node.value))

    def raised(self, node: Any) -> ir.Stmt:
        at = self.at(node)
        return ir.Raise(at, self.optional(node.exc))

    def asserted(self, node: Any) -> ir.Stmt:
        at = self.at(node)
        return ir.Assert(at, self.expr(node.test))

    def broken(self, node: N) -> ir.Stmt:
        return ir.Break(self.at(node))

    def continued(self, node: N) -> ir.Stmt:
        return ir.Continue(self.at(node))

    def passed(self, node: N) -> ir.Stmt:
        return ir.Pass(self.at(node))
