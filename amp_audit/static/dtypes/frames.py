"""Calls in progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from amp_audit.static.binding import project
from amp_audit.static.dtypes.values import Value
from amp_audit.static.source import ir


@dataclass(slots=True)
class Frame:
    """One call in progress. ``outer`` are the names of the functions around; ``setup``: an object is made; ``guards``:
    the unknown conditions around the call; ``given``: the parameters, where other code calls it; ``name``: the
    function's; ``switches``: the conditions under which the regions that it has entered are on; ``body``: what is run.
    """

    module: ir.Module
    env: dict[str, Value]
    outer: Mapping[str, Value] = field(default_factory=dict)
    cls: project.ClassRef | None = None
    bound: Value | None = None
    setup: bool = False
    guards: int = 0
    given: frozenset[str] = frozenset()
    name: str = ""
    returns: list[Value] = field(default_factory=list)
    yields: list[Value] = field(default_factory=list)
    switches: set[tuple[str, bool]] = field(default_factory=set)
    body: Sequence[ir.Stmt] = ()

    @property
    def scope(self) -> tuple[str, int]:
        """The function, or the code of the module: its path, and where what is run begins."""
        return self.module.path, self.body[0].at if self.body else -1
