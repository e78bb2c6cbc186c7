"""Bodies whose names belong together, and what lies in one without going into the definitions nested in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from amp_audit.static.binding.origins import Origins, Where
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import expressions, statements, walk
from amp_audit.static.spots.sites import inside

CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad_norm")


def spaces(module: ir.Module) -> Iterator[tuple[Where, Sequence[ir.Stmt]]]:
    """Every body whose names belong together: the module's own, and that of each function, outer first."""
    stack: list[tuple[Where, Sequence[ir.Stmt]]] = [(Where(module), module.body)]
    while stack:
        where, body = stack.pop()
        if where.scope is not None or where.cls is None:
            yield where, body
        definitions = (node for node in statements(body) if isinstance(node, (ir.Function, ir.Class)))
        stack.extend((inside(where, node), node.body) for node in definitions)


def calls(body: Iterable[ir.Stmt]) -> Iterator[ir.Call]:
    """The calls in a body, outside nested definitions."""
    for node in statements(body):
        if not isinstance(node, (ir.Function, ir.Class)):
            for expression in expressions(node):
                yield from (part for part in walk(expression) if isinstance(part, ir.Call))


def method(call: ir.Call) -> str:
    """The name of the method that is called; empty for a plain call."""
    return call.func.name if isinstance(call.func, ir.Attr) else ""


def own_method(call: ir.Call, where: Where) -> ir.Function | None:
    """The method that ``self.name()`` runs, if the class itself has it."""
    if where.cls is None or not isinstance(call.func, ir.Attr) or not Origins.is_self(call.func.base, where):
        return None
    own = (node for node in where.cls.cls.body if isinstance(node, ir.Function))
    return next((node for node in own if node.name == method(call)), None)
