"""What runs in float32 because a float32 table met low-precision activations, read off the results of a deep step.

The dtypes alone tell where a table widens: of an addition that is given bfloat16 and float32 and returns float32. What
comes of it is followed from result to result until it is cast back, or meets what is float32 anyway. Counted are ops
that would have run in low precision, and only where a matrix product or convolution depends on them: in losses and
coordinates float32 is wanted, and before a softmax. The static half reads the same (``static/dtypes/widening.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch

from amp_audit.runtime.dtypes import LOW, short
from amp_audit.runtime.origins import Result
from amp_audit.runtime.shadow import MOVES

_JOINING = frozenset({"cat", "stack", "where"})
_PROMOTING = _JOINING | {"add", "sub", "rsub", "mul", "div", "maximum", "minimum", "lerp", "addcmul", "addcdiv"}
_MADE = frozenset(
    {
        *("zeros", "ones", "full", "arange", "linspace", "logspace", "eye", "rand", "randn", "hann_window"),
        *("normal_", "uniform_", "bernoulli_", "exponential_", "fill_", "zero_", "hamming_window"),
    }
)
"""Operators that make a tensor of numbers alone, whatever was in its memory."""
_BLANK = frozenset({"zeros", "zero_"})
"""What adds nothing but a dtype: the first state of a recurrence, the beginning of a sum."""
_OWN_DTYPE = frozenset(
    {
        *("relu", "relu_", "gelu", "silu", "mish", "elu", "leaky_relu", "leaky_relu_", "hardtanh", "hardswish", "glu"),
        *("hardsigmoid", "sigmoid", "tanh", "threshold", "native_dropout", "native_batch_norm", "avg_pool2d"),
        *("_native_batch_norm_legit", "cudnn_batch_norm", "_batch_norm_with_update", "max_pool2d_with_indices"),
        *("_adaptive_avg_pool2d", "rrelu_with_noise", "prelu"),
    }
)
"""Operators of a network that run in the dtype of what they are given."""
_CARRYING = _OWN_DTYPE | MOVES | {"neg", "abs", "clamp", "sqrt", "sin", "cos", "mean", "amax", "mul_", "add_"}
_PRODUCTS = frozenset(
    {
        *("mm", "addmm", "bmm", "baddbmm", "mv", "convolution", "_convolution", "linear", "mkldnn_rnn_layer"),
        *("cudnn_convolution", "_cudnn_rnn", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell"),
    }
)
_NONE: frozenset[int] = frozenset()


@dataclass(slots=True)
class Widening:
    """One line at which a table widened activations of ``dtype``; ``table``: its name, if it is a module's.

    ``bytes``: what later ops have written in float32 for that; ``ops``: how many these were.
    """

    op: str
    site: int
    dtype: str
    table: str | None
    bytes: int = 0
    ops: int = 0


def widenings(results: Sequence[Result], tables: Mapping[int, str]) -> tuple[list[Widening], int]:
    """The lines of a step's forward pass at which tables have widened something that a product took in the end, and how
    many bytes the forward pass wrote in all. ``tables``: results that are buffers of modules, with their names.
    """
    flow = _Flow(results, dict(tables))
    written = 0
    for index, result in enumerate(results):
        if result.op is not None and result.phase in ("forward", "other"):
            flow.take(index, result)
            written += _size(result) if result.phase == "forward" else 0
    return flow.found(), written


@dataclass(slots=True)
class _Flow:
    """What is known of the results of a step so far, by their index; lines at which tables widen are told by theirs.

    ``tables``: results made of numbers alone, with the name of one; ``blank``: of these, zeros. ``widened``: those that
    are float32 because of some lines; ``depending``: all that was computed from these. ``ran``: which ops ran in
    float32 because of which lines. ``reached``: lines that a product depends on.
    """

    results: Sequence[Result]
    tables: dict[int, str | None]
    blank: set[int] = field(default_factory=set)
    lines: list[Widening] = field(default_factory=list)
    widened: dict[int, frozenset[int]] = field(default_factory=dict)
    depending: dict[int, frozenset[int]] = field(default_factory=dict)
    ran: list[tuple[Result, frozenset[int]]] = field(default_factory=list)
    reached: set[int] = field(default_factory=set)

    def found(self) -> list[Widening]:
        """The lines that a product depends on, with what was counted of them."""
        for result, lines in self.ran:
            for number in lines:
                self.lines[number].bytes += _size(result)
                self.lines[number].ops += 1
        return [self.lines[number] for number in sorted(self.reached) if self.lines[number].ops]

    def take(self, index: int, result: Result) -> None:
        """The next result."""
        name = _base(result.op or "")
        if self._is_table(name, result):
            self.tables[index] = next((self.tables[one] for one in result.inputs if self.tables.get(one)), None)
            if name in _BLANK or (name in MOVES and self.blank.issuperset(result.inputs)):
                self.blank.add(index)
        elif result.phase == "forward":
            self._follow(name, index, result)

    def _is_table(self, name: str, result: Result) -> bool:
        own = bool(result.inputs) and name not in _PRODUCTS and all(one in self.tables for one in result.inputs)
        return own or name in _MADE

    def _follow(self, name: str, index: int, result: Result) -> None:
        depending = _NONE.union(*(self.depending.get(one, _NONE) for one in result.inputs))
        if name in _PRODUCTS or "attention" in name:
            self.reached |= depending
        pair = self._widens(name, result) if result.dtype is torch.float32 else None
        if pair is not None:
            own = frozenset({self._line(result, *pair)})
            self.widened[index], depending = own, depending | own
        elif depending and result.dtype is torch.float32:
            lines = self._carried(name, result)
            if lines:
                self.widened[index] = lines
                if name in _OWN_DTYPE or any(_is_low(self.results[one]) for one in result.inputs):
                    self.ran.append((result, lines))
        if depending and name != "_softmax":
            self.depending[index] = depending

    def _line(self, result: Result, low: int, table: int) -> int:
        op, dtype = result.op or "", short(self.results[low].dtype)
        known = ((number, one) for number, one in enumerate(self.lines) if (one.op, one.site) == (op, result.site))
        number, line = next(known, (len(self.lines), None))
        if line is None:
            self.lines.append(Widening(op, result.site, dtype, self.tables[table]))
        return number

    def _widens(self, name: str, result: Result) -> tuple[int, int] | None:
        """The low tensor and the table, of an op that makes float32 of them for the table alone.

        Where autocast has cast what is joined to the widest dtype, that was low which it has cast at the same place.
        """
        if name not in _PROMOTING:
            return None
        inputs = [self._before_cast(one, result) if name in _JOINING else one for one in result.inputs]
        low = [one for one in inputs if _is_low(self.results[one])]
        wide = [one for one in inputs if one not in low]
        if not low or not wide or any(one not in self.tables for one in wide):
            return None
        if name not in _JOINING:
            if self.blank.issuperset(wide):
                return None
            low = [one for one in low if self.results[one].elements >= result.elements]
        return (low[0], wide[0]) if low else None

    def _before_cast(self, index: int, joined: Result) -> int:
        result = self.results[index]
        cast = result.op is not None and _base(result.op) == "_to_copy" and len(result.inputs) == 1
        return result.inputs[0] if cast and result.site == joined.site else index

    def _carried(self, name: str, result: Result) -> frozenset[int]:
        """The lines because of which a result is float32."""
        given = [self.widened.get(one, _NONE) for one in result.inputs]
        if name not in _PROMOTING:
            return given[0] if given and name in _CARRYING else _NONE
        for one, lines in zip(result.inputs, given, strict=True):
            other = self.results[one]
            if not (lines or one in self.tables or _is_low(other) or other.elements == 1):
                return _NONE  # float32 anyway
        return _NONE.union(*given)


def _is_low(result: Result) -> bool:
    return result.dtype in LOW and result.elements > 1


def _size(result: Result) -> int:
    return result.elements * result.dtype.itemsize


@cache
def _base(op: str) -> str:
    """An operator without namespace and overload."""
    return op.partition(".")[2].partition(".")[0] or op
