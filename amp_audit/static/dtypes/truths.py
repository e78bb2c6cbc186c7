"""Conditions whose truth is known: constants, dtypes, None, flags that a call is given."""

from __future__ import annotations

import abc

from amp_audit.static.binding import project
from amp_audit.static.dtypes.arguments import dtype_of
from amp_audit.static.dtypes.frames import Frame
from amp_audit.static.dtypes.models import Models
from amp_audit.static.dtypes.values import (
    UNKNOWN,
    Const,
    DType,
    Func,
    Items,
    Layer,
    Object,
    Tensor,
    Value,
    is_none,
)
from amp_audit.static.source import ir

_NEVER_EAGER = frozenset({"torch.jit.is_scripting", "torch.jit.is_tracing", "torch.onnx.is_in_onnx_export"})
"""What is false while a program trains."""


class Truths(Models):
    """Answers for the frame at hand."""

    @property
    @abc.abstractmethod
    def frame(self) -> Frame:
        """The innermost call in progress."""

    @abc.abstractmethod
    def eval(self, node: ir.Expr | None) -> Value:
        """The value of an expression."""

    def truth(self, node: ir.Expr) -> bool | None:
        """Whether a condition holds, where that is known."""
        if isinstance(node, ir.Unary) and node.op == "not":
            inner = self.truth(node.operand)
            return None if inner is None else not inner
        if isinstance(node, ir.BoolOp):
            left, right = self.truth(node.left), self.truth(node.right)
            decisive = node.op == "or"
            if decisive in (left, right):
                return decisive
            return (not decisive) if left is right is (not decisive) else None
        if isinstance(node, ir.Compare) and len(node.rest) == 1:
            op, right_node = node.rest[0]
            return self._compared(op, self.eval(node.left), self.eval(right_node))
        if isinstance(node, ir.Call):
            return self._called_truth(node)
        if isinstance(node, ir.Const):
            return bool(node.value)
        return self._given_truth(node) if isinstance(node, ir.Name) else None

    def _given_truth(self, node: ir.Name) -> bool | None:
        """The truth of a flag that this call of the function is given; one that a program sets may be set otherwise."""
        value = self.frame.env.get(node.id) if node.id in self.frame.given else None
        told = isinstance(value, Const) and isinstance(value.value, bool) and not value.assumed
        return bool(value.value) if isinstance(value, Const) and told else None

    def _compared(self, op: str, left: Value, right: Value) -> bool | None:
        negated = op in ("!=", "is not", "not in")
        if op in ("is", "is not") and is_none(right):
            if is_none(left):
                return None if isinstance(left, Const) and left.assumed else not negated
            return negated if isinstance(left, (Tensor, Layer, Object)) else None
        if isinstance(left, DType) and op in ("==", "!=", "is", "is not") and isinstance(right, DType):
            return _same_dtype(left, right, negated)
        if isinstance(left, DType) and op in ("in", "not in") and isinstance(right, Items):
            found = [_same_dtype(left, dtype_of(item), False) for item in right.items]
            answer = True if True in found else None if None in found else False
            return None if answer is None else answer is not negated
        return None

    def _called_truth(self, node: ir.Call) -> bool | None:
        func = self.eval(node.func) if isinstance(node.func, (ir.Attr, ir.Name)) else None
        name = (
            func.dotted if isinstance(func, project.External) else func.function.name if isinstance(func, Func) else ""
        )
        if name.endswith("is_autocast_enabled"):
            return self.live is not None if self.regions else None
        return False if name in _NEVER_EAGER else None


def _same_dtype(left: DType, right: DType, negated: bool) -> bool | None:
    if UNKNOWN in left.dtypes | right.dtypes or (left.dtypes | right.dtypes) & {"low"}:
        return None
    if not left.dtypes & right.dtypes:
        return negated
    return not negated if len(left.dtypes) == len(right.dtypes) == 1 else None
