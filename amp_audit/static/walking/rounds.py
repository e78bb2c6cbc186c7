"""What a round of a loop finds left over from the one before."""

from __future__ import annotations

from collections.abc import Iterator

from amp_audit.static.source import ir
from amp_audit.static.source.traverse import expressions, statements, walk


def losses(loop: ir.For | ir.While) -> list[ir.Name]:
    """The names of losses that each round makes anew: a round that makes none would find that of the round before,
    whose graph is gone, so nobody takes such a path.
    """
    body = list(statements(loop.body))
    used = {name for node in body for each in expressions(node) for name in _backward_of(each)}
    made, kept = dict[str, ir.Name](), set[str]()
    for node in body if used else ():
        if isinstance(node, ir.Augment) and isinstance(node.target, ir.Name):
            kept.add(node.target.id)
        elif isinstance(node, ir.Assign):
            read = {part.id for part in walk(node.value) if isinstance(part, ir.Name)}
            targets = {target.id: target for target in node.targets if isinstance(target, ir.Name)}
            made |= targets
            kept |= read & targets.keys()
    return [target for name, target in made.items() if name in used - kept]


def _backward_of(expr: ir.Expr) -> Iterator[str]:
    """The names in what ``backward`` is called on."""
    for call in walk(expr):
        if isinstance(call, ir.Call) and isinstance(call.func, ir.Attr) and call.func.name == "backward":
            yield from (part.id for part in walk(call.func.base) if isinstance(part, ir.Name))
