"""Whether filters leave out any of a model's parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from amp_audit.records import replace
from amp_audit.static.binding.project import Project
from amp_audit.static.dtypes.values import Func, Params, Value
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import statements, walk

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
        return replace(given, partly=True, choices=0 if by_dtype or (given.partly and not given.choices) else 1)

    def is_whole(self, given: Params) -> bool:
        """Whether nothing of these models is left out: several choices that one optimizer gets make groups of all."""
        return not given.partly or (given.choices > 1 and given.fresh and not self.freezes)

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


def _asks_whether_trained(test: ir.Expr) -> bool:
    return isinstance(test, ir.Attr) and test.name == "requires_grad"


def tests_of(chooses: Value) -> list[ir.Expr]:
    """What the first argument of ``filter`` asks, should that be a lambda; else a test that says nothing."""
    body = chooses.function.body if isinstance(chooses, Func) else ()
    only = body[0] if len(body) == 1 else None
    asked = only.value if isinstance(only, ir.Return) else None
    return [asked if asked is not None else ir.Const(0, None)]
