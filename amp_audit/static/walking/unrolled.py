"""Comprehensions over a few things that are known: what is made for each of them is another one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from amp_audit.static.source import ir
from amp_audit.static.source.traverse import names_in
from amp_audit.static.walking.algebra import with_item
from amp_audit.static.walking.values import Items, Optimizer, Scaler, Table, Value
from amp_audit.static.walking.world import World

if TYPE_CHECKING:
    from amp_audit.static.walking.evaluate import Evaluator, Results


_MAKER = re.compile(r"^((build_|make_|create_)?optim|Ada|SGD|RMSprop|Lion|Lamb|GradScaler|ShardedGradScaler)")


def unrolled(evaluator: Evaluator, node: ir.Comprehension, world: World) -> Results | None:
    """The list or dict that a comprehension makes of optimizers or scalers, one for each item of what it goes over;
    None where that is not known, or it makes something else.
    """
    if len(node.loops) != 1 or node.kind not in ("list", "dict") or not _makes(node.element):
        return None
    target, iterable, tests = node.loops[0]
    before = evaluator.eval(iterable, world.fork())
    items = evaluator.known_items(before[0][0]) if len(before) == 1 and not tests else None
    if items is None or len(items) < 2:
        return None
    after, outer, made = before[0][1], world.stamp, list[list[Value]]()
    for number, item in enumerate(items):
        after.stamp = (*outer, number)
        evaluator.bind(target, item, after)
        parts = (node.element,) if node.key is None else (node.key, node.element)
        results = evaluator.each(parts, after)
        if len(results) != 1 or not isinstance(results[0][0][-1], (Optimizer, Scaler)):
            return None
        made.append(results[0][0])
        after = results[0][1]
    after.stamp = outer
    if node.key is None:
        return [(Items(tuple(value for (value,) in made)), after)]
    table = Table()
    for key, value in made:
        table = with_item(table, key, value)
    return [(table, after)]


def _makes(element: ir.Expr) -> bool:
    """Whether it is a call of what is called a maker of optimizers or scalers, or stands in torch.optim."""
    return isinstance(element, ir.Call) and any(map(_MAKER.match, names_in(element.func)))
