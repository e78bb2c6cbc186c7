"""The backward pass once more, at other loss scales: what float16 would have lost there, counted and not estimated.

Beside each gradient lie its twins, one a loss scale, in memory of their own; each operator of the backward pass that
reads a gradient is run on the twins, too. They begin where the loss scale enters. So no hook runs again, nothing is
accumulated twice, and the program's own gradients are what they were. It costs a backward pass for each scale.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from amp_audit.runtime.frames import is_thrown_in
from amp_audit.runtime.shadow import base_name, repeatable

K = TypeVar("K", bound=Hashable)

MOST = 12
"""Loss scales at which one backward pass is repeated at most."""

LOSSY = 0.002
"""Where a loss scale loses no more than that share of the gradients, exponents alone predict it to 0.1 points."""

_ROOM = 2**30
"""Bytes that twins may take before they are given up."""

_SWEEP = 32
"""After so many results the twins of freed gradients go."""


@dataclass(slots=True)
class _Twins:
    """What stands in for one storage at each scale: flat tensors of its dtype and length. Keeps its address taken."""

    owner: Any
    flat: list[torch.Tensor]


class Rescale(Generic[K]):
    """The twins of one backward pass. ``powers``: log2 of the loss scales; ``scale``: the scaler's own, a tensor.

    ``counts``: by what ``count`` was given, int64 on the device: elements that are not zero before rounding, then at
    each scale. ``broken``: why there are none.
    """

    def __init__(self, powers: Sequence[int], scale: torch.Tensor) -> None:
        self.powers = tuple(powers)
        self.broken: str | None = None
        self.counts: dict[K, torch.Tensor] = {}
        self._scale = int(scale.untyped_storage()._cdata)
        self._scales = [torch.full_like(scale, 2.0**power) for power in powers]
        self._twins: dict[int, _Twins] = {}
        self._written = 0

    def before(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """An operator of the backward pass is about to run. What writes into a gradient writes into its twins now."""
        if self.broken is None and func._schema.is_mutable and self._concerned(args, kwargs):
            self._attempt(func, lambda: self._write_into(func, args, kwargs))

    def after(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], results: Sequence[torch.Tensor]
    ) -> None:
        """It ran. ``results``: its tensors, all of them."""
        if self.broken is not None or func._schema.is_mutable:
            return
        if self._concerned(args, kwargs):
            self._attempt(func, lambda: self._repeat(func, args, kwargs, results))
        else:
            for result in results:
                self._twins.pop(_address(result), None)

    def count(self, key: K, reference: torch.Tensor, result: torch.Tensor) -> None:
        """Count what is not zero of a result: before rounding (``reference``) and, after it, at each scale."""
        if self.broken is None:
            twins = self._read(result) or [result] * len(self.powers)
            counts = torch.stack([torch.count_nonzero(one) for one in (reference, *twins)])
            known = self.counts.get(key)
            self.counts[key] = counts if known is None else known + counts

    def _attempt(self, func: Any, work: Callable[[], None]) -> None:
        try:
            if repeatable(func) is False and not _writes(func):
                raise RuntimeError("cannot be repeated")
            work()
        except Exception as error:  # whatever an operator has to say; the program's own run goes on
            if is_thrown_in(error):
                raise
            self.broken, self._twins, self.counts = f"{func}: {error}", {}, {}

    def _write_into(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in _tensors(args[place] if place < len(args) else kwargs.get(argument.name)):
                    if self._read(tensor) is None:
                        self._begin(tensor)
        for number in range(len(self.powers)):
            func(*(self._twin(arg, number) for arg in args), **{k: self._twin(v, number) for k, v in kwargs.items()})

    def _repeat(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], results: Sequence[torch.Tensor]
    ) -> None:
        by_scale: list[list[torch.Tensor]] = []
        for number in range(len(self.powers)):
            out = func(
                *(self._twin(arg, number) for arg in args), **{k: self._twin(v, number) for k, v in kwargs.items()}
            )
            by_scale.append(list(_tensors(out)))
        if any(len(made) != len(results) for made in by_scale):
            raise RuntimeError("gave another number of results")
        for result, *made in zip(results, *by_scale, strict=True):
            self._store(result, made)

    def _concerned(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        return any(
            _address(tensor) == self._scale or self._read(tensor) is not None
            for value in (*args, *kwargs.values())
            for tensor in _tensors(value)
        )

    def _twin(self, value: Any, number: int) -> Any:
        """An argument as it is at a scale."""
        if isinstance(value, torch.Tensor):
            if _address(value) == self._scale:
                return self._scales[number].as_strided(value.shape, value.stride())
            twins = self._read(value)
            return value if twins is None else twins[number]
        if isinstance(value, (list, tuple)):
            return type(value)([self._twin(item, number) for item in value])
        return value

    def _read(self, tensor: torch.Tensor) -> list[torch.Tensor] | None:
        twins = self._twins.get(_address(tensor))
        if twins is None or twins.flat[0].dtype is not tensor.dtype:
            return None
        return [flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()) for flat in twins.flat]

    def _begin(self, tensor: torch.Tensor) -> None:
        """Twins of what does not depend on the scale yet: copies."""
        length = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
        flat = tensor.as_strided((length,), (1,), 0)
        self._keep(tensor, [flat.clone() for _ in self.powers])

    def _store(self, result: torch.Tensor, made: list[torch.Tensor]) -> None:
        length = result.untyped_storage().nbytes() // result.dtype.itemsize
        flat = []
        for twin in made:
            same = twin.stride() == result.stride() and twin.storage_offset() == result.storage_offset()
            if same and twin.untyped_storage().nbytes() == result.untyped_storage().nbytes():
                flat.append(twin.as_strided((length,), (1,), 0))
            else:
                empty = twin.new_zeros(length)
                empty.as_strided(result.shape, result.stride(), result.storage_offset()).copy_(twin)
                flat.append(empty)
        self._keep(result, flat)

    def _keep(self, tensor: torch.Tensor, flat: list[torch.Tensor]) -> None:
        self._twins[_address(tensor)] = _Twins(_weak(tensor.untyped_storage()), flat)
        self._written += 1
        if self._written % _SWEEP == 0:
            self._twins = {key: twins for key, twins in self._twins.items() if not twins.owner.expired()}
            if sum(flat.nbytes for twins in self._twins.values() for flat in twins.flat) > _ROOM:
                raise RuntimeError("the gradients take too much memory to be computed at several scales")


def choose(shares: Mapping[int, float], below: int) -> tuple[int, ...]:
    """Powers of two worth a backward pass: not negative, smaller than ``below``, and lossy by what exponents say.

    ``shares``: by power, the share that becomes zero.
    """
    lossy = sorted(power for power, share in shares.items() if 0 <= power < below and share > LOSSY)
    if len(lossy) <= MOST:
        return tuple(lossy)
    return tuple(sorted({lossy[round(n * (len(lossy) - 1) / (MOST - 1))] for n in range(MOST)}))


def _writes(func: Any) -> bool:
    """Whether an operator writes into arguments, the same each time."""
    name, tags = base_name(func), func.tags
    plain = func._schema.name.startswith("aten::") and torch.Tag.nondeterministic_seeded not in tags
    return plain and func._schema.is_mutable and "batch_norm" not in name


_weak: Callable[[Any], Any] = StorageWeakRef


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, torch.Tensor) and item.layout is torch.strided:
            yield item
