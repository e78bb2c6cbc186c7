"""What both ways of lowering keep while they walk: ordinals, the words of the current definition, its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

N = TypeVar("N")


class Scoping(Generic[N]):
    """``nodes[n]`` is the syntax node of ordinal n. ``words`` are the identifiers seen in the current definition so
    far, ``called`` the last ones of what is called there, ``yields`` whether it is a generator, ``prefix`` what the
    qualified name of a nested definition begins with.
    """

    def __init__(self) -> None:
        self.nodes: list[N] = []
        self.words: set[str] = set()
        self.called: set[str] = set()
        self.yields = False
        self.prefix = ""

    def at(self, node: N) -> int:
        """The next ordinal, given to ``node``."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def enter(self, name: str, *, is_function: bool) -> tuple[set[str], set[str], bool, str, str]:
        """Begin a nested definition; what it returns is for ``leave``."""
        outside = (self.words, self.called, self.yields, self.prefix, self.prefix + name)
        self.words, self.called, self.yields = set(), set(), False
        self.prefix += f"{name}.<locals>." if is_function else f"{name}."
        return outside

    def leave(self, outside: tuple[set[str], set[str], bool, str, str]) -> str:
        """End it, its words added to those outside; returns its qualified name."""
        words, called, self.yields, self.prefix, qualname = outside
        words |= self.words
        called |= self.called
        self.words, self.called = words, called
        return qualname

    @contextmanager
    def around(self) -> Iterator[None]:
        """What stands around a definition, whose words are looked at alone before they are added to the others."""
        words, called = self.words, self.called
        self.words, self.called = set(), set()
        yield
        words |= self.words
        called |= self.called
        self.words, self.called = words, called
