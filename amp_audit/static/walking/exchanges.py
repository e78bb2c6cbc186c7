"""Optimizers and schedules that are handed to other code and come back: perhaps with something around them."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import TYPE_CHECKING

from amp_audit.records import replace
from amp_audit.static.binding.project import External
from amp_audit.static.source import ir
from amp_audit.static.source.names import MOST_NAMES, is_scheduler, is_settings
from amp_audit.static.source.traverse import last_word
from amp_audit.static.walking.ducks import OPTIMIZER_NAME, SCALER_NAME, Ducks, builds
from amp_audit.static.walking.values import (
    NONE,
    Func,
    Giver,
    Instance,
    Items,
    Optimizer,
    Scaler,
    Scheduler,
    Symbol,
    Value,
    inside,
)
from amp_audit.static.walking.world import World

if TYPE_CHECKING:
    from amp_audit.static.walking.evaluate import Results

_KINDS: dict[type, str] = {Optimizer: "optimizer", Scheduler: "schedule"}
_SEEN = ("torch.", "builtins.")


class Exchanges(Ducks):
    """Knows of what was handed away whether the one that came back is still the bare one."""

    def given_back(
        self, callee: Value, node: ir.Call, args: list[Value], named: dict[str, Value], results: Results
    ) -> Results:
        """What a call gives that was handed an optimizer or a schedule: perhaps one around it, whose ``step`` is not
        torch's. What makes them makes those that the code shows.
        """
        seen = isinstance(callee, External) and callee.dotted.startswith(_SEEN)
        if seen or not (args or named) or not any(isinstance(value, (Symbol, Items)) for value, _ in results):
            return results
        if builds(callee, node):
            return results
        values = inside(*args, *named.values())
        before = results[0][1]
        handed = frozenset(kind for item in values if (kind := self._kind(item, before)))
        if any(is_scheduler(last_word(arg.value)) for arg in node.args):
            handed |= {"schedule"}
        if not handed:
            return results
        if any(self._may_scale(item, before) for item in values):
            handed |= {"scaler"}
        known = {item.key for item in values if isinstance(item, Symbol)}
        return [(_from(value, Giver(_source(callee), handed), known), world) for value, world in results]

    def _kind(self, value: Value, world: World) -> str:
        """Which kind of thing it is whose ``step`` a wrapper may take over; else empty."""
        if isinstance(value, Instance):
            return "optimizer" if value.cls is not None and OPTIMIZER_NAME.search(value.cls.cls.name) else ""
        if not isinstance(value, Symbol):
            return _KINDS.get(type(value), "")
        if _is_of_settings(value.text):
            return ""
        return "optimizer" if self.is_optimizer(value, world) else ""

    def _may_scale(self, value: Value, world: World) -> bool:
        """Whether it is a scaler by which a wrapper may step."""
        if not isinstance(value, Symbol):
            return isinstance(value, Scaler)
        return self.is_scaler(value, world) and not _is_of_settings(value.text) and not self.is_optimizer(value, world)

    def knows_scaler(self, prepared: Symbol, kind: str, world: World) -> bool:
        """Whether what gave an optimizer or a schedule had been handed one, and has a scaler or had been handed that,
        too: then an optimizer may step through it, and a schedule wait for it.
        """
        giver = prepared.giver
        if giver is None or kind not in giver.handed:
            return False
        if "scaler" in giver.handed:
            return True
        if isinstance(giver.id, str):
            return self.uses_scaler_of(giver.id, frozenset({"scale"}), world)
        return any(
            isinstance(value, Scaler) or (value != NONE and SCALER_NAME.search(name) is not None)
            for (owner, name), value in world.heap.items()
            if owner == giver.id
        )


@functools.lru_cache(maxsize=MOST_NAMES)
def _is_of_settings(text: str) -> bool:
    return any(map(is_settings, text.split(".")[:-1]))


def _source(callee: Value) -> Hashable:
    """The object whose method is called: the id of an instance, the name of a symbol; None for a function."""
    own = callee.bound if isinstance(callee, Func) else None
    if isinstance(own, Instance):
        return own.id
    if isinstance(own, Symbol):
        return own.text or None
    return callee.text.rpartition(".")[0] or None if isinstance(callee, Symbol) else None


def _from(value: Value, giver: Giver, handed: set[str]) -> Value:
    """A value with what gave it, if that was not just handed it."""
    if isinstance(value, Symbol) and value.key not in handed:
        return replace(value, giver=giver)
    return Items(tuple(_from(item, giver, handed) for item in value.items)) if isinstance(value, Items) else value
