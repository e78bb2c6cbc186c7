"""Dtypes that a setting chooses from a dict: one path for each, that remembers what was chosen."""

from __future__ import annotations

from amp_audit.static.binding.project import External
from amp_audit.static.walking.lineage import dtype_of
from amp_audit.static.walking.values import Condition, Literal, Symbol, Table, Value, among, is_none, key_of, short
from amp_audit.static.walking.world import World, split

NAMED = Table(tuple((name, External(f"torch.{name}")) for name in ("float16", "bfloat16")))
"""The dtypes that ``getattr(torch, name)`` may mean, as far as they matter here."""


def is_choice(table: Table, index: Value) -> bool:
    """Whether an unknown setting picks one of several dtypes, or none, each known by name."""
    if table.open or not isinstance(index, (Symbol, External)):
        return False
    dtypes = {dtype_of(value) for _, value in table.items if not is_none(value)}
    several = len({value for _, value in table.items}) > 1
    return several and bool(dtypes) and None not in dtypes and all(isinstance(key, str) for key, _ in table.items)


def chosen(table: Table, index: Value, world: World) -> tuple[list[tuple[Value, World]], list[World]]:
    """What may be picked, each with its path; and the paths on which it is none of the dict's."""
    names: dict[Value, list[Value]] = {}
    for key, value in table.items:
        names.setdefault(value, []).append(Literal.of(key))
    picked: list[tuple[Value, World]] = []
    rest = [world]
    for value, keys in names.items():
        text = f" == {key_of(keys[0])}" if len(keys) == 1 else among(tuple(keys))
        test = Condition(short(f"{key_of(index)}{text}"))
        sides = [side for each in rest for side in split(each, test)]
        picked += [(value, side) for true, side in sides if true]
        rest = [side for true, side in sides if not true]
    return picked, rest
