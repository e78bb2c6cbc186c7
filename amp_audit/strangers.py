"""Optimizers of which nobody knows whose parameters they have: what was done last that may concern their gradients.

Gradients are kept by owner (``gradients.py``). Of a function's argument ``optimizer`` no owner is known; that it was
cleared and then stepped without a backward in between is known all the same, whoever owns what it holds.

What a stranger is in: ``empty`` (cleared), ``wasted`` (cleared while gradients waited for a step), ``scaled``,
``plain`` or ``unknown`` (a backward came after that, of such a loss), ``late`` (and then the scale changed),
``unscaled``, ``stepped``, ``again`` (a backward came after that, and nothing cleared it).
"""

from __future__ import annotations

from amp_audit.events import Event, Id, Via
from amp_audit.records import replace
from amp_audit.state import State, get, put

_FRESH = frozenset({"plain", "scaled", "late", "unscaled", "unknown"})
"""What an optimizer is in that has not stepped since it was cleared."""

_MAY_HAVE = _FRESH | {"again"}
"""What an optimizer is in that may have gradients no step has used."""


def is_stranger(state: State, event: Event) -> bool:
    return not event.owners and event.optimizer is not None and get(state.links, event.optimizer) is None


def told(state: State, event: Event) -> dict[str, object]:
    """Facts about the gradients of the optimizer of an event, where its owners are not known and this is."""
    known = is_stranger(state, event) and event.optimizer is not None
    held = get(state.strangers, event.optimizer) if known else None
    if held == "wasted" and event.via is not Via.PLAIN:
        return {"gradients": "none", "cleared": True, "assumed": False}
    if held == "late" and event.via is not Via.PLAIN:
        return {"gradients": "scaled", "rescaled": True, "consumed": False, "assumed": False, "leftover": False}
    return {"leftover": False} if held in _FRESH else {}


def put_in(state: State, event: Event, value: str) -> State:
    """The state after the optimizer of an event, if it is a stranger, has come to be in ``value``."""
    if event.optimizer is None or not is_stranger(state, event):
        return state
    if value == "unscaled" and get(state.strangers, event.optimizer) == "again":
        return state
    return replace(state, strangers=put(state.strangers, event.optimizer, value))


def after_backward(state: State, event: Event) -> State:
    """Any of them may have gradients now. Which scaler's scale they carry is for ``after_update`` to compare."""
    value = "unknown" if event.scaled is None else "scaled" if event.scaled else "plain"
    become = dict.fromkeys(_FRESH - {value}, "unknown")
    return _all(state, {**become, "empty": value, "wasted": value, "stepped": "again"})


def after_write(state: State) -> State:
    """Gradients were written by hand, perhaps where there were none."""
    return _all(state, {"empty": "unknown", "wasted": "unknown", "stepped": "again"})


def after_update(state: State, scaler: Id | None) -> State:
    """Gradients with this scaler's scale carry an old one: all that are scaled, where there is no other scaler."""
    known = {name for name, _ in state.scalers} | {scaler}
    return _all(state, {"scaled": "late"}) if len(known) == 1 else state


def others_wait(state: State) -> bool:
    """Whether some of them may still have gradients that no step has used."""
    return any(held in _MAY_HAVE for _, held in state.strangers)


def _all(state: State, become: dict[str, str]) -> State:
    if not state.strangers or all(become.get(held, held) == held for _, held in state.strangers):
        return state
    return replace(state, strangers=tuple((name, become.get(held, held)) for name, held in state.strangers))
