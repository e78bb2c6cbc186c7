"""What both ways of lowering keep while they walk: ordinals, the words of the current definition, its name."""

from __future__ import annotations

from typing import Generic, TypeVar

N = TypeVar("N")


class Scoping(Generic[N]):
    """``nodes[n]`` is the syntax node of ordinal n. ``words`` are the identifiers seen in the current definition so
    far, ``yields`` whether it is a generator, ``prefix`` what the qualified name of a nested definition begins with.
    """

    def __init__(self) -> None:
        self.nodes: list[N] = []
        self.words: set[str] = set()
        self.yields = False
        self.prefix = ""

    def at(self, node: N) -> int:
        """The next ordinal, given to ``node``."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def enter(self, name: str, *, is_function: bool) -> tuple[set[str], bool, str, str]:
        """Begin a nested definition; what it returns is for ``leave``."""
        outside = (self.words, self.yields, self.prefix, self.prefix + name)
        self.words, self.yields = set(), False
        self.prefix += f"{name}.<locals>." if is_function else f"{name}."
        return outside

    def leave(self, outside: tuple[set[str], bool, str, str]) -> str:
        """End it, its words added to those outside; returns its qualified name."""
        words, self.yields, self.prefix, qualname = outside
        words |= self.words
        self.words = words
        return qualname
