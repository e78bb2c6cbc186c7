"""Put wrappers around torch's functions, and take them off again without a trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Make = Callable[[Callable[..., Any]], Callable[..., Any]]

UNSEEN = "<importlib._bootstrap>"
"""``warnings.warn`` leaves frames of a file so named out of its ``stacklevel``: warnings keep the line of the user."""


class Patches:
    """Wrapped attributes of classes and modules, in the order in which they were wrapped."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def wrap(self, owner: Any, name: str, make: Make, *also: Any) -> None:
        """Replace ``owner.name`` (defined on ``owner`` itself) by ``make(original)``, which keeps name and docstring.

        ``also`` are modules that offer the same function under the same name.
        """
        original = vars(owner)[name]
        made: Any = make(original)
        made.__code__ = made.__code__.replace(co_filename=made.__code__.co_filename + UNSEEN)
        wrapper = functools.wraps(original)(made)
        for place in (owner, *also):
            if vars(place).get(name) is original:
                setattr(place, name, wrapper)
                self._done.append((place, name, original, wrapper))

    def wraps(self, owner: Any, name: str) -> bool:
        return any(one is owner and other == name for one, other, _, _ in self._done)

    def undo(self) -> None:
        """Put the originals back. What somebody else wrapped meanwhile stays: our wrapper beneath it is inert then."""
        while self._done:
            owner, name, original, wrapper = self._done.pop()
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original)
