"""Symbols for what the code leaves open: a counter, a switch, an expression that is not followed."""

from __future__ import annotations

from amp_audit.records import replace
from amp_audit.static.source import ir
from amp_audit.static.walking.hot import dotted
from amp_audit.static.walking.values import NONE, Condition, Literal, Symbol, Value, short, tag
from amp_audit.static.walking.world import World


def counter(key: str, number: int, world: World) -> Symbol:
    """A loop counter from 0. It is decided whether it is 0, all else about it is open."""
    symbol = Symbol(short(f"{key}[{number}]"), "", True)
    world.decide(Condition(symbol.key, volatile=True), number > 0)
    world.decide(Condition(f"{symbol.key} == 0", volatile=True), number == 0)
    world.decide(Condition(f"{symbol.key} > 0", volatile=True), number > 0)
    world.decide(Condition(f"{symbol.key} >= 1", volatile=True), number > 0)
    return symbol


def settle_remainder(count: Value, remainder: Value, world: World) -> None:
    """What is left of a counter in its first round, whatever it is divided by, is 0.

    This is said where a round begins. Once it has made gradients, the first round stands for all that begin a window.
    """
    if not isinstance(count, Symbol) or not isinstance(remainder, Symbol):
        return
    if any(held.fresh for _, held in world.state.owners):
        return
    if world.known(Condition(f"{count.key} == 0", volatile=True)):
        world.decide(Condition(f"{remainder.key} == 0", volatile=remainder.volatile), True)
        world.decide(Condition(remainder.key, volatile=remainder.volatile), False)


def setting(value: Value, key: str, name: str) -> Value:
    """A constant that is off (False, None) is a switch that somebody turns on: both sides of it are looked at."""
    return Symbol(key, name) if value in (Literal.of(False), NONE) else value


def fresh(node: ir.Expr, world: World) -> Symbol:
    return fresh_at(node.at, world)


def fresh_at(at: int, world: World) -> Symbol:
    """Something unknown that is made at a place."""
    return Symbol(f"{tag(world.frame.module.path)}:{at}", volatile=True)


def named_after(value: Value, node: ir.Expr) -> Value:
    """Something unknown that has no name, by the one that the code at hand has for it."""
    return replace(value, text=dotted(node)) if isinstance(value, Symbol) and not value.text else value
