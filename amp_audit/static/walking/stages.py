"""Tests that ask how far a step has come: whether there are gradients, what the scaler has recorded of an optimizer."""

from __future__ import annotations

from collections.abc import Iterable

from amp_audit.static.binding import project
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import names_in
from amp_audit.static.walking.values import Condition, Literal, Scale, Value, key_of
from amp_audit.static.walking.world import World


def asks_for_gradient(node: ir.Expr) -> bool:
    """Whether a test is about ``parameter.grad``."""
    return isinstance(node, ir.Attr) and node.name == "grad"


def stage_test(op: str, left: Value, right: Value, world: World) -> Value | None:
    """A comparison of the scaler's own record of an optimizer with one of torch's stages, by what the path knows."""
    stage = right.dotted.rpartition(".OptState.")[2] if isinstance(right, project.External) else ""
    if stage not in ("READY", "UNSCALED", "STEPPED") or "_per_optimizer_states" not in key_of(left):
        return None
    phases = {phase for _, phase in world.state.phases} or {"ready"}
    if len(phases) != 1 or "unknown" in phases:
        return None
    return Literal.of((phases == {stage.lower()}) is (op in ("is", "==")))


def has_gradients(world: World) -> bool:
    """Whether a backward has left gradients: code that asks whether there are any finds them, then."""
    return any(held.value not in ("none", "unknown") for _, held in world.state.owners)


def asks_for_scale(tests: Iterable[ir.Expr], world: World) -> bool:
    """Whether one of these tests has a name that holds the loss scale, or what came of comparing it."""
    held = (world.env.get(word) for test in tests for word in names_in(test))
    return any(
        isinstance(value, Scale) or (isinstance(value, Condition) and ".get_scale() at " in value.key) for value in held
    )
