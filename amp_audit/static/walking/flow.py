"""Where the worlds are after some statements."""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field

from amp_audit.static.source import ir
from amp_audit.static.source.traverse import last_word
from amp_audit.static.walking.values import Value
from amp_audit.static.walking.world import World


@dataclass(slots=True)
class Flow:
    """Where the worlds are after some statements. ``raised``: at a ``raise`` that something around it may catch."""

    fall: list[World] = field(default_factory=list)
    broken: list[World] = field(default_factory=list)
    continued: list[World] = field(default_factory=list)
    returned: list[tuple[Value, World]] = field(default_factory=list)
    raised: list[tuple[ir.Raise, World]] = field(default_factory=list)

    def leave(self, other: Flow) -> None:
        """Take over the worlds of ``other`` that left early."""
        self.broken += other.broken
        self.continued += other.continued
        self.returned += other.returned
        self.raised += other.raised


def catches(handler: ir.Handler, statement: ir.Raise) -> bool:
    """Whether a handler takes what is raised, as far as the names of both tell."""
    if handler.type is None:
        return True
    kinds = handler.type.items if isinstance(handler.type, ir.Sequence) else (handler.type,)
    error = statement.value.func if isinstance(statement.value, ir.Call) else statement.value
    raised = last_word(error) if error is not None else ""
    return any(_is_kind(raised, last_word(kind)) for kind in kinds)


def _is_kind(raised: str, caught: str) -> bool:
    if caught in ("Exception", "BaseException", raised):
        return True
    one, two = getattr(builtins, raised, None), getattr(builtins, caught, None)
    return isinstance(one, type) and isinstance(two, type) and issubclass(one, two)
