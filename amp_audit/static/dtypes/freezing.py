"""Whether a filter on ``requires_grad`` leaves out any of a model's parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from amp_audit.static.binding.project import Project
from amp_audit.static.dtypes.values import Func, Params, Value
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import statements

_SPEAKS_OF_IT = re.compile(r"requires_grad_|freez|frozen|lora|peft|adapter|kbit|trainable", re.IGNORECASE)


class Freezing:
    """What a project says of parameters that are not to be trained."""

    def __init__(self, project: Project) -> None:
        self.project = project

    def leaves_out(self, given: Params, kept: Iterable[ir.Expr]) -> bool:
        """Whether the tests ``kept`` may leave out some of ``given``."""
        tests = list(kept)
        if not tests or given.partly:
            return given.partly
        alone = all(isinstance(test, ir.Attr) and test.name == "requires_grad" for test in tests)
        return not alone or self._freezes or not given.fresh

    @cached_property
    def _freezes(self) -> bool:
        """Whether any code sets ``requires_grad``, or speaks of parameters that stay as they are."""
        modules = self.project.modules.values()
        return any(_SPEAKS_OF_IT.search(word) for module in modules for word in module.words) or any(
            isinstance(target, ir.Attr) and target.name == "requires_grad"
            for module in modules
            for node in statements(module.body, into=True)
            if isinstance(node, ir.Assign)
            for target in node.targets
        )


def tests_of(chooses: Value) -> list[ir.Expr]:
    """What the first argument of ``filter`` asks, should that be a lambda; else a test that says nothing."""
    body = chooses.function.body if isinstance(chooses, Func) else ()
    only = body[0] if len(body) == 1 else None
    asked = only.value if isinstance(only, ir.Return) else None
    return [asked if asked is not None else ir.Const(0, None)]
