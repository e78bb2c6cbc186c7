"""The first operator whose finite inputs gave inf or NaN, found backwards from a gradient that is not finite.

Every result of a deep step leaves three numbers on the device: its largest magnitude, its infs and its NaNs. They are
read when the step is over; then the way back from a bad gradient along bad inputs ends at the origin. A mask of -inf
that softmax turns into zeros never reaches a gradient, so it is never blamed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

import torch

from amp_audit.runtime.memory import Memory
from amp_audit.runtime.queue import at_once, widest

BACKWARD = "backward"
_NEAR = 2.0**8
_MOST = 32
"""Magnitudes from which on ranges are told, and how many of them."""


class Result(NamedTuple):
    """One operator's result, or (``op`` None) a tensor that came from outside the step.

    ``inputs``: indices of results. ``given``: an argument that is no tensor was not finite itself. ``moves``: the op
    moves values, or writes constants, and computes none. ``multiplies``: one zero among its arguments makes it zero.
    """

    op: str | None
    phase: str
    site: int
    dtype: torch.dtype
    elements: int
    inputs: tuple[int, ...] = ()
    given: bool = False
    moves: bool = False
    multiplies: bool = False


@dataclass(slots=True)
class Origin:
    """Where it began: counts of ``result``, and the largest finite magnitude among its inputs. ``address``: of the
    memory of what came from outside of the step.
    """

    result: Result
    inf: int
    nan: int
    input_max: float | None
    address: int | None = None


@dataclass(slots=True)
class Origins:
    """The results of one step. Holds numbers on the device, and of tensors no more than their addresses."""

    results: list[Result] = field(default_factory=list)
    outside: dict[int, int] = field(default_factory=dict)  # results that came from elsewhere -> address of their memory
    _latest: Memory[int] = field(default_factory=Memory)
    _values: list[torch.Tensor | list[float]] = field(default_factory=list)
    _known: list[list[float]] | None = None

    def inputs(self, items: Iterable[Any]) -> tuple[int, ...]:
        """The results that an operator is about to read; what was not made in this step is taken note of."""
        found: list[int] = []
        for item in items:
            if item.__class__ is list or item.__class__ is tuple:
                found.extend(self._source(tensor) for tensor in item if measurable(tensor))
            elif measurable(item):
                found.append(self._source(item))
        return tuple(found)

    def _source(self, tensor: torch.Tensor) -> int:
        known = self._latest.read(tensor)
        if known is None:
            known = self.add(tensor, Result(None, "other", 0, tensor.dtype, tensor.numel()))
            self.outside[known] = int(tensor.untyped_storage()._cdata)
        return known

    def add(self, tensor: torch.Tensor, result: Result) -> int:
        """Something that is ``measurable`` was written: its index in ``results``."""
        index = len(self.results)
        self._values[index:] = [measured(tensor)]  # what another thread throws in may come anywhere here
        self.results.append(result)
        self._latest.write(tensor, index)
        return index

    def of(self, tensor: torch.Tensor) -> int | None:
        """The latest result in a tensor's memory."""
        return self._latest.read(tensor)

    def trace(self, sinks: Iterable[int], weights: Collection[int] = ()) -> Origin | None:
        """The origin of what is not finite in the first bad one of ``sinks``; waits for the device.

        ``weights``: addresses of parameters. An inf in one is no constant that the program wrote, as it is in a mask.
        """
        ends = list(sinks)
        if not ends:
            return None
        values = self._read()
        bad = next((index for index in ends if not math.isfinite(values[index][0])), None)
        return None if bad is None else self._origin(bad, values, weights)

    def starved(self, sinks: Iterable[int]) -> dict[int, int]:
        """For each of ``sinks`` that is wholly zero: the first backward result on the way to it of which the same is
        true though what it was computed from is not; waits for the device.

        A gradient that is zero anyway has no such result: where a product's other factor is zero, as behind a dead
        ReLU, or a mask.
        """
        values = self._read()
        found = ((sink, self._first_zero(sink, values)) for sink in sinks if values[sink][0] == 0)
        return {sink: first for sink, first in found if first is not None}

    def _first_zero(self, start: int, values: list[list[float]]) -> int | None:
        queue, seen = [start], {start}
        while queue:
            at = queue.pop()
            result = self.results[at]
            zeros = [index for index in result.inputs if index < at and values[index][0] == 0]
            lost = [index for index in zeros if self.results[index].phase == BACKWARD]
            if not zeros and result.phase == BACKWARD:
                return at
            if result.multiplies and len(lost) < len(zeros):
                continue
            queue.extend(index for index in lost if index not in seen)
            seen.update(lost)
        return None

    def ranges(self) -> list[tuple[float, Result]]:
        """The largest finite magnitudes of the forward pass in float16, one for each op and line, the largest first;
        waits for the device."""
        found: dict[tuple[str | None, int], tuple[float, Result]] = {}
        values = self._read()
        given = self._given(values)
        for index, (result, (largest, _, _)) in enumerate(zip(self.results, values, strict=True)):
            if index in given or result.op is None or result.phase != "forward" or result.dtype is not torch.float16:
                continue
            key = (result.op, result.site)
            if _NEAR <= largest < math.inf and largest > found.get(key, (0.0,))[0]:
                found[key] = (largest, result)
        return sorted(found.values(), key=lambda item: -item[0])[:_MOST]

    def _given(self, values: list[list[float]]) -> set[int]:
        """Results whose magnitude was not computed: constants of masks, data, and what these were added to."""
        given: set[int] = set()
        for index, result in enumerate(self.results):
            largest = values[index][0]
            sources = [(values[source][0], source in given) for source in result.inputs if source < index]
            inherited = any(hand and value >= largest / 2 for value, hand in sources)
            written = result.moves and largest > max((value for value, _ in sources), default=0.0)
            if result.op is None or inherited or written:
                given.add(index)
        return given

    def _read(self) -> list[list[float]]:
        if self._known is None:
            self._known = _read(self._values)
        return self._known

    def _origin(self, bad: int, values: list[list[float]], weights: Collection[int]) -> Origin:
        first = self._back(bad, values, lambda index: values[index][2] > 0 or not math.isfinite(values[index][0]))
        if values[first][2] > 0:
            # NaN made of infs: the culprit made the infs or is a weight that holds them, unless the program itself
            # wrote them (a mask).
            infs = [index for index in self.results[first].inputs if values[index][1] > 0]
            made = [self._back(index, values, lambda i: values[i][1] > 0) for index in infs]
            real = [
                index
                for index in made
                if not self.results[index].given and (self.results[index].op or self.outside.get(index) in weights)
            ]
            first = real[0] if real else first
        inputs = [values[index][0] for index in self.results[first].inputs if math.isfinite(values[index][0])]
        return Origin(
            self.results[first],
            int(values[first][1]),
            int(values[first][2]),
            max(inputs, default=None),
            self.outside.get(first),
        )

    def _back(self, start: int, values: list[list[float]], bad: Any) -> int:
        """Follow bad inputs back; NaN before inf, for NaN spreads while inf may be meant."""
        at = start
        while True:
            inputs = [index for index in self.results[at].inputs if index < at and bad(index)]
            worst = [index for index in inputs if values[index][2] > 0]
            if values[at][2] > 0 and not worst:
                return at
            if not inputs:
                return at
            at = (worst or inputs)[0]


def measured(tensor: torch.Tensor) -> torch.Tensor | list[float]:
    """The largest magnitude (NaN where there is one), the infs and the NaNs of a tensor with elements (``widest``).

    On a device they stay there, as one tensor. On the CPU, where nothing is waited for, one pass tells of most tensors
    that there is nothing to count.
    """
    low, high = torch.aminmax(tensor)
    if tensor.device.type == "cpu":
        value = max(-at_once(low), at_once(high))
        if math.isfinite(value):
            return [value, 0.0, 0.0]
    largest = widest(torch.maximum(low.neg(), high))
    return torch.stack([largest, *(widest(torch.count_nonzero(bad)) for bad in (tensor.isinf(), tensor.isnan()))])


_MEASURED = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})  # float8 has no comparisons
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def plain(item: Any) -> TypeGuard[torch.Tensor]:
    """Ordinary tensors only: what is behind a subclass is seen when the subclass runs its own operators."""
    return type(item) in _PLAIN and item.layout is torch.strided


def measurable(item: Any) -> TypeGuard[torch.Tensor]:
    """Whether something is a plain tensor with floating-point elements."""
    return type(item) in _PLAIN and item.dtype in _MEASURED and item.layout is torch.strided and item.numel() > 0


def _read(values: list[torch.Tensor | list[float]]) -> list[list[float]]:
    there = {index: value for index, value in enumerate(values) if isinstance(value, torch.Tensor)}
    if there:
        device = next(iter(there.values())).device
        together: list[list[float]] = torch.stack([value.to(device) for value in there.values()]).tolist()
        read = dict(zip(there, together, strict=True))
    return [value if isinstance(value, list) else read[index] for index, value in enumerate(values)]
