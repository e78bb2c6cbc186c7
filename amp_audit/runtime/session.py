"""One process under audit: what its parts share, and the only way they speak to each other.

``tracer`` sees operators, ``signals`` sees the training protocol, ``numerics`` and ``weights`` measure; none of them
knows another. Nothing that goes wrong in here reaches the audited program: ``guard`` turns it into a note.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class CastKey(NamedTuple):
    """The key under which casts are counted: one ``CastRow``. ``site`` is resolved by ``Session.places.place``."""

    phase: str
    source: str
    target: str
    site: int


class CastCounts(NamedTuple):
    """Counts of elements, see ``CastRow``."""

    nonzero: int
    flushed: int
    subnormal: int
    zero: int
    overflowed: int


class Part(Protocol):
    """Something that measures on recorded steps."""

    def step_begin(self, *, deep: bool) -> None:
        """A recorded step begins; ``deep`` steps may cost a multiple of a plain one."""

    def step_end(self) -> None:
        """It ended: the device may be read now; results go to ``Session.number``."""


class Observer(Part, Protocol):
    """A part that is shown operators: casts on recorded steps, every computing operator on deep ones.

    ``func`` is the ``OpOverload``, ``phase`` one of ``schema.PHASES``. Nothing in here may wait for the device, and
    operators called in here are not traced.
    """

    def before(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], phase: str, site: int) -> Any:
        """Called before the operator runs (its arguments not yet overwritten); what it returns is given to ``after``."""

    def after(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, phase: str, site: int, kept: Any
    ) -> None:
        """Called with the result. ``kept`` is None when ``before`` was not called (casts on steps that are not deep)."""

    def cast_counts(self) -> Mapping[CastKey, CastCounts]:
        """After ``step_end``: the value counts of the casts seen in this step."""
