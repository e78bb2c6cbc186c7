"""What the walk met: ops, casts of models, trainings, regions."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from amp_audit.records import record
from amp_audit.static.dtypes.values import (
    Const,
    Dtypes,
    Origin,
    Region,
    Tensor,
)
from amp_audit.static.source.conditions import NO_FACTS, Facts

Place = tuple[str, int]
"""A module's path and an ordinal in it."""


@record(frozen=True, slots=True)
class Use:
    """An op that the code applies: ``computes`` is the dtype it runs in, after what its region does to it.

    ``numbers`` are its constant arguments by the names of their parameters, ``tensors`` the other ones as they come.
    ``region`` is None outside of any; ``entry`` is where it was entered, and ``call`` the call by which the code that
    entered it gets to this op: the op itself if it stands in that code. ``origin`` says where its dtype is from,
    ``scalar`` that the result has no dimension. ``within`` is the function that it stands in,
    None for a module's own code. ``joins``: the op that brings a table and a low tensor together; ``after``: what comes
    of that, where.
    """

    op: str
    place: Place
    computes: Dtypes
    numbers: tuple[tuple[str, Const], ...] = ()
    tensors: tuple[Tensor, ...] = ()
    region: Region | None = None
    entry: Place | None = None
    call: Place | None = None
    by: str = ""
    assumed: bool = False
    origin: Origin = ""
    scalar: bool = False
    within: Place | None = None
    joins: str = ""
    after: tuple[tuple[str, Place], ...] = ()


@record(frozen=True, slots=True)
class Cast:
    """A model made low-precision at a place; ``name`` is what the code calls it. ``default``: it was built while that
    place had made the dtype the default. ``assumed``: the dtype is a default that a caller may replace. ``built``: it
    is made so by its constructor. ``under``: the conditions under which it is cast.
    """

    place: Place
    dtypes: Dtypes
    of: Hashable
    name: str = ""
    default: bool = False
    assumed: bool = False
    built: bool = False
    under: Facts = NO_FACTS


@record(frozen=True, slots=True)
class Training:
    """Cast parameters in the hands of an optimizer of ``torch.optim``. ``eps`` is the optimizer's, if it has one."""

    cast: Cast
    optimizer: Place
    eps: float | None = None


@dataclass(slots=True)
class Record:
    """What the walk saw, over all entries."""

    uses: dict[Use, None] = field(default_factory=dict)
    calls: dict[Place, set[tuple[bool, Place | None]]] = field(default_factory=dict)
    """Of the project's functions: whether a region was live at a call, and in which function that stands."""
    trainings: dict[Training, None] = field(default_factory=dict)
    live_calls: dict[Hashable, set[Facts]] = field(default_factory=dict)
    """Models called in a live region, under which conditions."""
    live_modules: dict[str, set[Region]] = field(default_factory=dict)  # path -> regions entered there
    entering: set[Place] = field(default_factory=set)  # functions that enter a live region themselves
    scaled: dict[Hashable, set[Facts]] = field(default_factory=dict)
    """Optimizers that a scaler steps, under which conditions."""
    frozen: set[Hashable] = field(default_factory=set)
    restored: dict[Place, Place] = field(default_factory=dict)  # optimizers that load a state -> where
    unsettled: set[Hashable] = field(default_factory=set)  # models some parts of which are cast back to float32
    managed: set[Hashable] = field(default_factory=set)  # models handed to a framework that keeps master weights

    def met(self) -> Iterator[Use]:
        """The uses that a run of the program comes by.

        A function is an entry of the walk, too, and then no region is open; where the project calls it in regions
        alone, that is not so.
        """
        outside: dict[Place, bool] = {}
        for use in self.uses:
            if use.region is not None or use.within is None or self._runs_outside(use.within, outside):
                yield use

    def _runs_outside(self, function: Place, known: dict[Place, bool]) -> bool:
        """Whether a function may run where no region is live: nobody is known to call it, or somebody does so there."""
        if function not in known:
            known[function] = False  # its own calls of itself say nothing
            calls = self.calls.get(function)
            known[function] = calls is None or any(
                not live and (caller is None or self._runs_outside(caller, known)) for live, caller in calls
            )
        return known[function]
