"""Whose gradients are whose: optimizers, the parameters they own, and which of these a backward reached."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from amp_audit.runtime import holders
from amp_audit.runtime.dtypes import LOW, short
from amp_audit.runtime.parts import Names

Snapshot = list[tuple["Owner", list[tuple[torch.Tensor, torch.Tensor | None, int]]]]


@dataclass(slots=True, eq=False)
class Owner:
    """The parameters of one optimizer that no earlier optimizer had.

    ``holding``: a backward left gradients that were not cleared since; ``used``: a step has used them; ``blank``:
    unused ones were cleared to zeros. ``witness``: one gradient and its version after the last event that was seen to
    change it. ``dtypes``: those in which forwards with gradients ran since the last backward, or before it when none
    ran since (``returned``); ``region_dtype``: that of the latest low-precision region, for programs without modules.
    ``weights``: the outermost region that may keep a cached copy of a weight, and the weight's version then.
    ``name``: the outermost module that ran with it. ``scaled``: whether its gradients carry a loss scale; None when
    that is not known.
    """

    id: int
    parameters: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    holding: bool = False
    used: bool = False
    blank: bool = False
    witness: tuple[weakref.ref[torch.Tensor], int] | None = None
    dtypes: set[str] = field(default_factory=set)
    returned: bool = False
    region_dtype: str | None = None
    weights: tuple[int, int] | None = None
    name: str = ""
    scaled: bool | None = None

    def ran_in(self, dtype: str) -> None:
        """A forward with gradients ran in ``dtype``."""
        if self.returned:
            self.dtypes.clear()
            self.returned = False
        self.dtypes.add(dtype)

    def alive(self) -> Iterator[torch.Tensor]:
        for reference in self.parameters:
            parameter = reference()
            if parameter is not None:
                yield parameter

    def look(self) -> None:
        """Remember one gradient as it is now."""
        self.witness = None
        for parameter in self.alive():
            if parameter.grad is not None:
                self.witness = (weakref.ref(parameter), parameter.grad._version)
                return

    def written(self) -> bool:
        """Whether the gradient remembered by ``look`` was changed since by something that was not seen."""
        if self.witness is None:
            return False
        parameter = self.witness[0]()
        return parameter is not None and parameter.grad is not None and parameter.grad._version != self.witness[1]

    def _weight(self) -> torch.Tensor | None:
        return next((p for p in self.alive() if p.dtype is torch.float32 and p.requires_grad), None)

    def has_float32_weights(self) -> bool:
        """Whether autocast caches low-precision copies of these parameters, as of all trained float32 leaves."""
        return self._weight() is not None

    def look_at_weights(self, region: int | None = None) -> None:
        """Remember one weight as it is now, cached by ``region`` or by the region that already has it."""
        weight = self._weight()
        if region is None:
            region = self.weights[0] if self.weights else -1
        self.weights = (region, weight._version) if weight is not None else None

    def weights_changed(self, region: int) -> bool:
        """Whether something unseen wrote to the weights since ``region`` cached them."""
        weight = self._weight()
        return (
            weight is not None
            and self.weights is not None
            and self.weights[0] == region
            and (self.weights[1] != weight._version)
        )

    def bare(self) -> bool:
        """Whether no parameter has a gradient."""
        return all(parameter.grad is None for parameter in self.alive())


class Owners:
    """Small integers for scalers, optimizers and parameter owners, unique within the process."""

    def __init__(self) -> None:
        self._next = itertools.count(1)
        self._ids: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._linked: weakref.WeakKeyDictionary[Any, tuple[int, tuple[Owner, ...]]] = weakref.WeakKeyDictionary()
        self._own: weakref.WeakKeyDictionary[Any, Owner] = weakref.WeakKeyDictionary()
        self._of: dict[int, tuple[weakref.ref[torch.Tensor], Owner]] = {}
        self._modules: weakref.WeakKeyDictionary[Any, tuple[int, tuple[Owner, ...]]] = weakref.WeakKeyDictionary()
        self._epoch = 0
        self._all: tuple[tuple[int, int], list[Owner]] | None = None
        self._labels: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._taken: set[str] = set()

    def id(self, thing: Any) -> tuple[int, bool]:
        """The number of a scaler or an optimizer, and whether it is new."""
        known = self._ids.get(thing)
        if known is not None:
            return known, False
        self._ids[thing] = number = next(self._next)
        return number, True

    def __len__(self) -> int:
        return len(self._linked)

    def optimizers(self) -> list[Any]:
        return list(self._linked)

    def name(self, parameter: torch.Tensor, names: Names) -> str:
        """A parameter's dotted name; of one that no module has run with, its optimizer and its place in there."""
        known = names.parameter(parameter)
        if known is not None:
            return known
        for optimizer in self.optimizers():
            for number, group in enumerate(optimizer.param_groups):
                for index, other in enumerate(group["params"]):
                    if other is parameter:
                        given = group.get("param_names")
                        return str(given[index]) if given else f"{type(optimizer).__name__}.{number}.{index}"
        return "?"

    def label(self, optimizer: Any, names: Names) -> str:
        """What tells an optimizer from the others: the module that all its parameters lie in, the variable that holds
        it, its type. To be asked for while it steps; it stays.
        """
        known = self._labels.get(optimizer)
        if known is None:
            others = [common_module(_trained(one), names) for one in self.optimizers() if one is not optimizer]
            module = _apart(common_module(_trained(optimizer), names), others)
            found = module or holders.variable(sys._getframe(1), optimizer) or type(optimizer).__name__
            known = self._labels[optimizer] = self._unused(found)
        return known

    def _unused(self, label: str) -> str:
        """The label, numbered when another optimizer has or had it: the fold's before, the stage's before."""
        numbered = (f"{label} ({count})" for count in itertools.count(2))
        free = next(one for one in itertools.chain((label,), numbered) if one not in self._taken)
        self._taken.add(free)
        return free

    def link(self, optimizer: Any) -> tuple[Owner, ...]:
        """The owners of an optimizer's parameters; parameter groups added later are noticed."""
        size = sum(len(group["params"]) for group in optimizer.param_groups)
        known = self._linked.get(optimizer)
        if known is not None and known[0] == size:
            return known[1]
        found: dict[int, Owner] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                owner = self.of(parameter) or self._adopt(optimizer, parameter)
                found[owner.id] = owner
        owners = tuple(found.values())
        self._linked[optimizer] = (size, owners)
        self._epoch += 1
        return owners

    def _adopt(self, optimizer: Any, parameter: torch.Tensor) -> Owner:
        owner = self._own.get(optimizer)
        if owner is None:
            self._own[optimizer] = owner = Owner(next(self._next))
        reference = weakref.ref(parameter)
        owner.parameters.append(reference)
        self._of[id(parameter)] = (reference, owner)
        return owner

    def of(self, parameter: torch.Tensor) -> Owner | None:
        known = self._of.get(id(parameter))
        return known[1] if known is not None and known[0]() is parameter else None

    def of_all(self, parameters: Iterable[torch.Tensor]) -> tuple[Owner, ...]:
        """The owners of some parameters, each once."""
        found = {owner.id: owner for owner in map(self.of, parameters) if owner is not None}
        return tuple(found.values())

    def of_module(self, module: torch.nn.Module) -> tuple[Owner, ...]:
        """The owners of a module's parameters."""
        known = self._modules.get(module)
        if known is None or known[0] != self._epoch:
            known = (self._epoch, self.of_all(module.parameters()))
            self._modules[module] = known
        return known[1]

    def all(self) -> list[Owner]:
        known = self._all
        if known is None or known[0] != (self._epoch, len(self._linked)):
            found = {owner.id: owner for _, owners in self._linked.values() for owner in owners}
            known = self._all = ((self._epoch, len(self._linked)), list(found.values()))
        return known[1]

    def snapshot(self) -> Snapshot:
        """All gradients and their versions. Keep it no longer than the backward it is for: it holds the gradients."""
        for optimizer in self.optimizers():
            self.link(optimizer)
        return [(owner, [_state(parameter) for parameter in owner.alive()]) for owner in self.all()]


def _state(parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    grad = parameter.grad
    return parameter, grad, -1 if grad is None else grad._version


def reached(before: Snapshot) -> tuple[Owner, ...]:
    """The owners of which at least one gradient is not what it was in ``before``."""
    return tuple(owner for owner, states in before if any(_changed(*state) for state in states))


def _changed(parameter: torch.Tensor, grad: torch.Tensor | None, version: int) -> bool:
    now = parameter.grad
    return now is not None and (now is not grad or now._version != version)


def common_module(parameters: Iterable[torch.Tensor], names: Names) -> str:
    """The innermost module that all parameters lie in; "" where that is the outermost or not known."""
    parents = [(names.parameter(parameter) or "").split(".")[:-1] for parameter in parameters]
    shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*parents, strict=False))
    return ".".join(parts[0] for parts in shared)


def _apart(module: str, others: Collection[str]) -> str:
    """The outermost module around one in which none of the others lies, if there is one, else the module itself; "" for
    one of the others.
    """
    if module in others:
        return ""
    parts = module.split(".")
    around = (".".join(parts[:count]) for count in range(1, len(parts)))
    whole = "" in others or any(module.startswith(f"{other}.") for other in others)
    free = (one for one in around if not any(f"{other}.".startswith(f"{one}.") for other in others))
    return module if whole else next(free, module)


def _trained(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def low_dtype(parameters: Iterable[torch.Tensor]) -> str | None:
    """The low-precision dtype of the parameters, when all floating ones share one."""
    dtypes = {parameter.dtype for parameter in parameters if parameter.is_floating_point()}
    return short(dtypes.pop()) if len(dtypes) == 1 and dtypes <= LOW else None
