"""AMP605: tests of a GPU's capability that choose a dtype which that GPU only emulates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_audit.model import Confidence
from amp_audit.rulebook import Detector, Rule
from amp_audit.static.binding.origins import Origins, Where
from amp_audit.static.binding.project import Project
from amp_audit.static.raw import RawFinding
from amp_audit.static.source import ir
from amp_audit.static.source.literals import number
from amp_audit.static.source.traverse import expressions, statements, walk
from amp_audit.static.spots.spaces import spaces

_CAPABILITY = "get_device_capability"
_FIRST_WITH_BFLOAT16 = 8.0
"""Ampere. NVIDIA's programming guide, table of arithmetic by compute capability."""

_BFLOAT16 = frozenset({"bfloat16", "bf16"})


def capability(
    rule: Rule, detector: Detector, module: ir.Module, project: Project, origins: Origins
) -> Iterator[RawFinding]:
    """bfloat16 in the arm of a test that lets GPUs before Ampere through."""
    if _CAPABILITY not in module.words:
        return
    for where, body in spaces(module):
        look = _Look(where, _majors(body), origins)
        for test, arm in _choices(body):
            if any(_says_bfloat16(expr) for expr in arm):
                for compare in look.comparisons(test):
                    message, severity = detector.message, detector.severity
                    yield RawFinding(rule, module.path, compare.at, message, Confidence.HIGH, severity)


def _choices(body: Sequence[ir.Stmt]) -> Iterator[tuple[ir.Expr, list[ir.Expr]]]:
    """The tests in a body, each with the expressions of the arm that is taken where it holds."""
    for node in statements(body):
        if isinstance(node, (ir.Function, ir.Class)):
            continue
        if isinstance(node, ir.If):
            yield node.test, [each for inner in statements(node.body) for each in expressions(inner)]
        for expression in expressions(node):
            yield from ((part.test, [part.body]) for part in walk(expression) if isinstance(part, ir.IfExp))


def _says_bfloat16(expr: ir.Expr) -> bool:
    return any(
        (isinstance(part, ir.Attr) and part.name in _BFLOAT16)
        or (isinstance(part, ir.Const) and isinstance(part.value, str) and part.value in _BFLOAT16)
        for part in walk(expr)
    )


def _majors(body: Sequence[ir.Stmt]) -> frozenset[str]:
    """The names that ``major, minor = torch.cuda.get_device_capability()`` binds to the first number."""
    found = set()
    for node in statements(body):
        if isinstance(node, ir.Assign) and _is_capability(node.value):
            for target in node.targets:
                if isinstance(target, ir.Sequence) and target.items and isinstance(target.items[0], ir.Name):
                    found.add(target.items[0].id)
    return frozenset(found)


def _is_capability(expr: ir.Expr | None) -> bool:
    """A call of ``get_device_capability``, or the first number of what one returns."""
    if isinstance(expr, ir.Subscript) and isinstance(expr.index, ir.Const) and expr.index.value == 0:
        expr = expr.base
    return isinstance(expr, ir.Call) and isinstance(expr.func, ir.Attr) and expr.func.name == _CAPABILITY


class _Look:
    """Comparisons of a capability in one body."""

    def __init__(self, where: Where, majors: frozenset[str], origins: Origins) -> None:
        self._where = where
        self._majors = majors
        self._origins = origins

    def comparisons(self, test: ir.Expr) -> Iterator[ir.Compare]:
        """Those in a conjunction that a GPU before Ampere meets."""
        if isinstance(test, ir.BoolOp) and test.op == "and":
            sides = [list(self.comparisons(side)) for side in (test.left, test.right)]
            if not self._excludes_old(test.left) and not self._excludes_old(test.right):
                yield from (each for side in sides for each in side)
        elif isinstance(test, ir.Compare) and self._lowest(test) is not None and not self._excludes_old(test):
            yield test

    def _excludes_old(self, test: ir.Expr) -> bool:
        """Whether a test lets no GPU before Ampere through, or may not."""
        if not isinstance(test, ir.Compare):
            return any(isinstance(part, ir.Call) for part in walk(test))  # is_bf16_supported(), say
        lowest = self._lowest(test)
        return lowest is not None and lowest >= _FIRST_WITH_BFLOAT16

    def _lowest(self, test: ir.Compare) -> float | None:
        """The least capability that meets ``capability >= n`` or ``capability > n``."""
        if len(test.rest) != 1 or not self._is_read(test.left):
            return None
        op, right = test.rest[0]
        first = right.items[0] if isinstance(right, ir.Sequence) and right.items else right
        value = number(first)
        if value is None or op not in (">=", ">"):
            return None
        return value + 1 if op == ">" and not isinstance(right, ir.Sequence) else value

    def _is_read(self, expr: ir.Expr) -> bool:
        if isinstance(expr, ir.Name) and expr.id in self._majors:
            return True
        if isinstance(expr, ir.Subscript) and isinstance(expr.index, ir.Const) and expr.index.value == 0:
            expr = expr.base
        made = [origin.expr for origin in self._origins.of(expr, self._where)]
        return bool(made) and all(_is_capability(each) for each in made)
