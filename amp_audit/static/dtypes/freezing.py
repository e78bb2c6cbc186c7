"""Whether filters leave out any of a model's parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from amp_audit.records import replace
from amp_audit.static.binding.project import Project
from amp_audit.static.dtypes.values import UNASKED, Func, Params, Value
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import last_word, statements, walk

_SPEAKS_OF_IT = re.compile(r"requires_grad_|freez|frozen|lora|peft|adapter|kbit|trainable", re.IGNORECASE)


class Freezing:
    """What a project says of parameters that are not to be trained."""

    def __init__(self, project: Project) -> None:
        self.project = project

    def kept(self, given: Params, asked: Iterable[ir.Expr]) -> Params:
        """Those of ``given`` that the tests ``asked`` keep."""
        tests = list(asked)
        others = [test for test in tests if not _asks_whether_trained(test)]
        if not tests:
            return given
        if not others:
            return replace(given, partly=given.partly or self.freezes or not given.fresh)
        by_dtype = any(isinstance(part, ir.Attr) and part.name == "dtype" for test in others for part in walk(test))
        if by_dtype or (given.partly and not given.choices):
            return replace(given, partly=True, choices=())
        choice = _choice(others[0]) if len(others) == 1 else (repr(sorted(test.at for test in others)), True)
        return replace(given, partly=True, choices=(choice,))

    def is_whole(self, given: Params) -> bool:
        """Whether nothing of these models is left out: what one test chooses and what it leaves make groups of all."""
        if not given.partly:
            return True
        both = any((text, not holds) in given.choices for text, holds in given.choices)
        return (both or given.choices.count(UNASKED) > 1) and given.fresh and not self.freezes

    @cached_property
    def freezes(self) -> bool:
        """Whether any code sets ``requires_grad``, or speaks of parameters that stay as they are."""
        modules = self.project.modules.values()
        return any(_SPEAKS_OF_IT.search(word) for module in modules for word in module.words) or any(
            isinstance(target, ir.Attr) and target.name == "requires_grad"
            for module in modules
            for node in statements(module.body, into=True)
            if isinstance(node, ir.Assign)
            for target in node.targets
        )


_OPPOSITE = {"not in": "in", "!=": "==", "is not": "is", "<=": ">", ">=": "<"}


def _choice(test: ir.Expr) -> tuple[str, bool]:
    """What a test asks, whatever its place and whichever way round, and whether that is to hold."""
    if isinstance(test, ir.Unary) and test.op == "not":
        text, holds = _choice(test.operand)
        return text, not holds
    op, right = test.rest[0] if isinstance(test, ir.Compare) and len(test.rest) == 1 else ("", None)
    if isinstance(test, ir.Compare) and right is not None:
        asked = ir.Compare(test.at, test.left, ((_OPPOSITE.get(op, op), right),))
        return _spelled(asked), op not in _OPPOSITE
    return _spelled(test), True


def _spelled(test: ir.Expr) -> str:
    said = []
    for part in walk(test):
        ops = [op for op, _ in part.rest] if isinstance(part, ir.Compare) else getattr(part, "op", None)
        value = repr(part.value) if isinstance(part, ir.Const) else last_word(part)
        said.append(f"{type(part).__name__} {ops} {value}")
    return "; ".join(said)


def _asks_whether_trained(test: ir.Expr) -> bool:
    return isinstance(test, ir.Attr) and test.name == "requires_grad"


def tests_of(chooses: Value) -> list[ir.Expr]:
    """What the first argument of ``filter`` asks, should that be a lambda; else a test that says nothing."""
    body = chooses.function.body if isinstance(chooses, Func) else ()
    only = body[0] if len(body) == 1 else None
    asked = only.value if isinstance(only, ir.Return) else None
    return [asked if asked is not None else ir.Const(0, None)]
