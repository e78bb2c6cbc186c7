"""What the walk met: ops, casts of models, trainings, regions."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from amp_audit.static.dtypes.values import (
    Const,
    Dtypes,
    Region,
)

Place = tuple[str, int]
"""A module's path and an ordinal in it."""


@dataclass(frozen=True, slots=True)
class Use:
    """An op that the code applies: ``computes`` is the dtype it runs in, after what its region does to it.

    ``numbers`` are its constant arguments by the names of their parameters. ``region`` is None outside of any.
    """

    op: str
    place: Place
    computes: Dtypes
    numbers: tuple[tuple[str, Const], ...]
    region: Region | None
    by: str
    assumed: bool


@dataclass(frozen=True, slots=True)
class Cast:
    """A model made low-precision at a place; ``name`` is what the code calls it."""

    place: Place
    dtypes: Dtypes
    of: Hashable
    name: str = ""


@dataclass(frozen=True, slots=True)
class Training:
    """Cast parameters in the hands of an optimizer of ``torch.optim``. ``scaled``: a GradScaler steps it."""

    cast: Cast
    optimizer: Place
    assumed: bool = False


@dataclass(slots=True)
class Record:
    """What the walk saw, over all entries."""

    uses: dict[Use, None] = field(default_factory=dict)
    trainings: dict[Training, None] = field(default_factory=dict)
    live_calls: set[Hashable] = field(default_factory=set)  # models called in a live region
    live_modules: dict[str, set[Region]] = field(default_factory=dict)  # path -> regions entered there
    scaled: set[Hashable] = field(default_factory=set)  # optimizers that a scaler steps
    frozen: set[Hashable] = field(default_factory=set)
    managed: set[Hashable] = field(default_factory=set)  # models handed to a framework that keeps master weights
