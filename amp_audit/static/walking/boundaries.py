"""Boundary tests: ``(i + 1) % n == 0`` and its like, by which code steps once every so many micro-batches."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Set

from amp_audit.events import Boundary
from amp_audit.records import record, replace
from amp_audit.static.source import ir
from amp_audit.static.source.names import MOST_NAMES
from amp_audit.static.source.traverse import walk
from amp_audit.static.walking.algebra import factor
from amp_audit.static.walking.hot import dotted
from amp_audit.static.walking.values import Condition, Literal, Symbol, Value, key_of, short
from amp_audit.static.walking.world import World

_ACCUMULATION = re.compile(r"accum|(^|_)acc(_|$)|micro_?(batch|step)|update_freq|subdivision", re.IGNORECASE)
"""What code calls the number of micro-batches in a step."""


@record(frozen=True, slots=True)
class _Remainder:
    """``(counter + offset) % modulus``, and the key of the modulus as a value."""

    boundary: Boundary
    offset: int
    key: str


@functools.lru_cache(maxsize=MOST_NAMES)
def accumulates(name: str) -> bool:
    """Whether something is called after the accumulation of gradients."""
    return _ACCUMULATION.search(name) is not None


class Boundaries:
    """The boundary tests that were met in one walk, by the keys of their conditions."""

    def __init__(self) -> None:
        self._remainders: dict[str, _Remainder] = {}
        self._tests: dict[str, tuple[Boundary, bool]] = {}
        self._rounds: dict[str, set[tuple[int, ...]]] = {}  # in which rounds of the loops around a test was met
        self._lasts: dict[str, tuple[int, str]] = {}  # tests for the last round of a loop, and what counts its rounds

    def copy(self) -> Boundaries:
        """The same tests; what is met from now on is met there alone."""
        copied = Boundaries()
        copied._remainders, copied._tests = dict(self._remainders), dict(self._tests)
        copied._rounds = {key: set(rounds) for key, rounds in self._rounds.items()}
        copied._lasts = dict(self._lasts)
        return copied

    def remainder(self, node: ir.Binary, modulus: Value, result: Value, world: World, loops: tuple[int, ...]) -> None:
        """Take note of ``counter % modulus`` in these loops; alone it is a test that is false at the boundary."""
        if not isinstance(result, Symbol):
            return
        found = _remainder(node, modulus, loops)
        if found is not None:
            self._remainders[result.key] = found
            self._note(result.key, _at(found, 0), False, world)

    def compared(
        self, node: ir.Compare, values: list[Value], result: Value, world: World, loops: tuple[int, ...]
    ) -> None:
        """Take note of ``counter % modulus == number``, whether they are known only as names or are numbers."""
        op = node.rest[0][0]
        if op not in ("==", "!=") or len(values) != 2:
            return
        left, right = values
        if op == "==" and loops and isinstance(result, Condition) and (counter := _of_the_last(node)):
            self._lasts[result.key] = (loops[-1], counter)
        found = self._remainders.get(left.key) if isinstance(left, Symbol) else None
        if isinstance(result, Condition) and found is not None:
            self._note(result.key, _at(found, _count(right, found)), True, world)
            known = world.known(result)
            if known is not None:  # by what was decided of other numbers: this test is decided, too
                world.decide(result, known)
        elif isinstance(result, Literal) and isinstance(node.left, ir.Binary) and node.left.op == "%":
            self._decided(node.left, right, bool(result.value) is (op == "=="), world, loops)

    def _decided(self, node: ir.Binary, right: Value, reached: bool, world: World, loops: tuple[int, ...]) -> None:
        """A test of numbers alone: it is decided, and was one all the same."""
        modulus = Literal.of(node.right.value) if isinstance(node.right, ir.Const) else None
        found = _remainder(node, modulus, loops) if modulus is not None else None
        if found is not None:
            condition = Condition(short(f"boundary {dotted(node.left)} {node.at}"), volatile=True)
            self._note(condition.key, _at(found, _count(right, found)), True, world)
            world.decide(condition, reached)

    def _note(self, key: str, boundary: Boundary, truth: bool, world: World) -> None:
        self._tests[key] = (boundary, truth)
        self._rounds.setdefault(key, set()).add(world.stamp)

    def window(self, loop: ir.For | ir.While, count: Value | None, loops: tuple[int, ...]) -> None:
        """Take note of ``for _ in range(accumulate)``: its end is the boundary that each of its rounds waits for."""
        call = loop.iterable if isinstance(loop, ir.For) else None
        if count is None or not isinstance(call, ir.Call) or not call.args:
            return
        names = (dotted(call.args[-1].value), count.text if isinstance(count, Symbol) else "", key_of(count))
        number = factor(count)
        if number != 1 and any(map(accumulates, map(_last_word, names))):
            boundary = Boundary(number, "", None, True, "/" in key_of(count), loops)
            self._tests[_window_key(loop)] = (boundary, True)

    def waits(self, loop: ir.For | ir.While, reached: bool, world: World) -> None:
        """A round of such a loop has ended, or all of them have."""
        condition = Condition(_window_key(loop), volatile=True)
        if condition.key in self._tests:
            world.decide(condition, reached)

    def may_end(self, loop: ir.For | ir.While, world: World) -> bool:
        """Whether a loop can end after the round that a path has walked: none whose number is compared with how many
        there are (``i + 1 == len(loader)``) is the last one where that is false.
        """
        counters = (
            {part.id for part in walk(loop.target) if isinstance(part, ir.Name)} if isinstance(loop, ir.For) else ()
        )
        lasts = [key for key, (at, counter) in self._lasts.items() if at == loop.at and counter in counters]
        return all(world.known(Condition(key, volatile=True)) is not False for key in lasts)

    def reached(self, world: World) -> frozenset[Boundary]:
        """The tests that have come true in the iterations around, on all ways that lead here but for those by which it
        is the last one (``(i + 1) % n == 0 or i + 1 == len(loader)``).
        """
        if not self._tests:
            return frozenset()
        around = {str(world.stamp[:depth]) for depth in range(len(world.stamp), 0, -1)}
        surely = frozenset(self._decided_as(True, world.flags.items(), around, world))
        ways = [way for way in world.cases if not any(map(self._is_last, way))]
        if not self._lasts or not ways:
            return surely
        each = [frozenset(self._decided_as(True, way, around, world)) for way in ways]
        return surely.union(frozenset.intersection(*each))

    def _is_last(self, decided: tuple[str, bool]) -> bool:
        """Whether a test for the last round of a loop came true."""
        name, value = decided
        return value and (name in self._lasts or name.rpartition("@")[0] in self._lasts)

    def missed(self, world: World) -> frozenset[Boundary]:
        """The tests that have not come true in this iteration, on this path or on one that has met it."""
        if not self._tests:
            return frozenset()
        around, sides = {str(world.stamp)}, (world.flags.items(), *world.cases)
        return frozenset(found for side in sides for found in self._decided_as(False, side, around, world))

    def surely_missed(self, world: World) -> frozenset[Boundary]:
        """The tests that have not come true in this iteration, whichever way led here."""
        return frozenset(self._decided_as(False, world.flags.items(), {str(world.stamp)}, world))

    def _decided_as(
        self, came_true: bool, decided: Iterable[tuple[str, bool]], around: Set[str], world: World
    ) -> Iterator[Boundary]:
        """The tests that came true or did not, of this round or of one of those ``around``."""
        for name, value in decided:
            boundary, truth = self._tests.get(name, _NONE)
            if boundary is not None and (value is truth) is came_true and self._is_of(name, world):
                yield boundary
            key, _, stamp = name.rpartition("@")
            if stamp in around:
                boundary, truth = self._tests.get(key, _NONE)
                if boundary is not None and (value is truth) is came_true:
                    yield boundary

    def _is_of(self, key: str, world: World) -> bool:
        """Whether a test was met in this round, of some loop around, rather than in one that has passed: a counter that
        is not told from what it was before the loop has another key in each.
        """
        rounds = self._rounds.get(key)
        return rounds is None or any(world.stamp[: len(stamp)] == stamp for stamp in rounds)


_NONE: tuple[Boundary | None, bool] = (None, False)


def _window_key(loop: ir.For | ir.While) -> str:
    return f"window {loop.at}"


def _remainder(node: ir.Binary, modulus: Value, loops: tuple[int, ...]) -> _Remainder | None:
    counted, offset = _counter(node.left)
    number = factor(modulus)
    if isinstance(number, int) and number < 2:
        return None
    key = key_of(modulus)
    names = (dotted(node.right), modulus.text if isinstance(modulus, Symbol) else "", key)
    named = any(map(accumulates, map(_last_word, names)))
    return _Remainder(Boundary(number, counted, None, named, "/" in key, loops), offset, key)


@functools.lru_cache(maxsize=MOST_NAMES)
def _last_word(name: str) -> str:
    return next((word for word in reversed(re.split(r"\W+", name)) if word), "")


def _counter(node: ir.Expr) -> tuple[str, int]:
    """The name of what counts, and what is added to it."""
    if isinstance(node, ir.Binary) and node.op in ("+", "-"):
        for name, number in ((node.left, node.right), (node.right, node.left)):
            if isinstance(number, ir.Const) and isinstance(number.value, int) and dotted(name):
                return dotted(name), number.value if node.op == "+" else -number.value
    return dotted(node), 0


def _of_the_last(node: ir.Compare) -> str:
    """What counts the rounds in ``i + 1 == len(loader)`` and ``i == len(loader) - 1``; empty for any other test."""
    sides = (node.left, node.rest[0][1])
    for one, other in (sides, sides[::-1]):
        counter, ahead = _counter(one)
        whole, short_of = _less(other)
        if counter and isinstance(whole, ir.Call) and dotted(whole.func) == "len" and ahead + short_of == 1:
            return counter
    return ""


def _less(node: ir.Expr) -> tuple[ir.Expr, int]:
    """``whole - 1`` as the whole and the 1; all else is the whole, and 0."""
    if isinstance(node, ir.Binary) and node.op == "-" and isinstance(node.right, ir.Const):
        return node.left, 1 if node.right.value == 1 else 0
    return node, 0


def _count(value: Value, remainder: _Remainder) -> int | None:
    """The number that a remainder is compared with; ``n - 1`` is -1."""
    number = value.value if isinstance(value, Literal) else None
    if isinstance(number, int):
        return number
    return -1 if isinstance(value, Symbol) and value.key == short(f"({remainder.key} - 1)") else None


def _at(remainder: _Remainder, count: int | None) -> Boundary:
    if count is None or not remainder.boundary.counter:
        return remainder.boundary
    residue = count - remainder.offset
    modulus = remainder.boundary.modulus
    return replace(remainder.boundary, residue=residue % modulus if isinstance(modulus, int) else residue)
