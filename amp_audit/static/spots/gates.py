"""Version gates: code that only some versions of torch reach. What is deprecated there is deprecated on purpose."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from amp_audit.static.binding.origins import Where
from amp_audit.static.binding.project import External, Project, ValueRef
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import expressions, last_word, statements, walk

_GATE_NAME = re.compile(
    r"version|hasattr|find_spec|torch_?(?:\d|has_|(?:ge|gt|lt|le|new|old)(?:_|\d|$))"
    r"|(?:has|new|old|native)_?(?:torch|amp|grad_?scaler|autocast)|(?:amp|scaler|autocast)_(?:is_)?available",
    re.I,
)
_NEW_NAMES = frozenset(
    {"torch.amp.autocast", "torch.amp.GradScaler", "torch.amp.custom_fwd", "torch.amp.custom_bwd", "torch.amp"}
)

Gate: TypeAlias = ir.Expr | ir.Try
"""What may be a gate: the test of an ``if``, a ``while`` or a conditional expression, or a ``try``."""


def gate_of(node: ir.Stmt) -> Gate | None:
    """What may gate the inside of a statement."""
    if isinstance(node, (ir.If, ir.While)):
        return node.test
    return node if isinstance(node, ir.Try) and node.handlers else None


def gates_the_rest(node: ir.Stmt) -> bool:
    """Whether a statement can gate what follows it: ``if new: return ...`` and ``try: return ... except: pass``."""
    if not isinstance(node, (ir.If, ir.Try)) or not node.body:
        return False
    return isinstance(node.body[-1], (ir.Return, ir.Raise))


def is_gated(gates: Iterable[Gate], where: Where, project: Project) -> bool:
    """Whether one of the candidates around a place asks for a version, or for the new names."""
    return any(_is_gate(gate, where, project) for gate in gates)


def _is_gate(gate: Gate, where: Where, project: Project) -> bool:
    if isinstance(gate, ir.Try):
        return _names_the_new(gate, where, project)
    if _asks_for_amp_itself(gate):
        return False
    return any(_names_a_version(part, where, project) for part in _parts(gate))


def _asks_for_amp_itself(test: ir.Expr) -> bool:
    """Whether a test compares only with versions up to 1.6, which brought torch.cuda.amp: newer ones come here too."""
    asked = [found for part in walk(test) for found in (_version(part),) if found is not None]
    return bool(asked) and max(asked) <= (1, 6)


def _version(part: ir.Expr) -> tuple[int, int] | None:
    """``"1.6.0"`` or ``(1, 6)`` as major and minor."""
    if isinstance(part, ir.Const) and isinstance(part.value, str):
        match = re.match(r"(\d+)\.(\d+)", part.value)
        return (int(match[1]), int(match[2])) if match is not None else None
    items = part.items if isinstance(part, ir.Sequence) else ()
    numbers = [item.value for item in items if isinstance(item, ir.Const) and isinstance(item.value, int)]
    return (numbers[0], numbers[1]) if len(numbers) == len(items) > 1 else None


def _parts(test: ir.Expr) -> Iterable[ir.Name | ir.Attr]:
    return (part for part in walk(test) if isinstance(part, (ir.Name, ir.Attr)))


def _names_a_version(node: ir.Name | ir.Attr, where: Where, project: Project) -> bool:
    if _GATE_NAME.search(last_word(node)):
        return True
    if not isinstance(node, ir.Name):
        return False
    binding = project.resolve(where.module, node, where.scope)
    return isinstance(binding, ValueRef) and any(_GATE_NAME.search(last_word(part)) for part in _parts(binding.expr))


def _names_the_new(node: ir.Try, where: Where, project: Project) -> bool:
    """Whether some part of a ``try`` uses, or imports, what replaces the deprecated names."""
    for inner in statements([node]):
        if isinstance(inner, ir.Import):
            found = [project.imported(where.module, target) for _, target in inner.bindings]
            if any(isinstance(each, External) and each.dotted in _NEW_NAMES for each in found):
                return True
        for expression in expressions(inner):
            for part in _parts(expression):
                if project.qualified(where.module, part, where.scope) in _NEW_NAMES:
                    return True
    return False
