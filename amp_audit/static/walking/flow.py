"""Where the worlds are after some statements."""

from __future__ import annotations

from dataclasses import dataclass, field

from amp_audit.static.source import ir
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
