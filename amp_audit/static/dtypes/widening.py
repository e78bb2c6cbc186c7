"""Float32 tables that make float32 of what was low: where they do, what then runs in float32, and where that ends.

A table is made of numbers alone, by no data and no weights. Under autocast what it has widened is lowered again by the
next matrix product or convolution; up to there each op moves twice the bytes. Counted are ops that would have run in
low precision: activations, dropout, pooling, additions to other low tensors. An op that autocast runs in float32
anyway (a norm, softmax) gives float32 whatever it is given.
"""

from __future__ import annotations

from collections.abc import Sequence

from amp_audit.records import replace
from amp_audit.static.dtypes import surface
from amp_audit.static.dtypes.arguments import Named
from amp_audit.static.dtypes.record import Place
from amp_audit.static.dtypes.values import FLOAT32, HALVES, Const, Items, Tensor, Value, Widened
from amp_audit.static.source import ir

_MOST = 4
"""So many tables are followed in one tensor."""

_OWN_DTYPE = """
    relu relu6 leaky_relu rrelu gelu silu mish elu selu celu hardtanh hardswish hardsigmoid sigmoid tanh softsign
    logsigmoid glu dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout batch_norm instance_norm
    max_pool1d max_pool2d avg_pool1d avg_pool2d
"""
ACTIVATIONS = frozenset(_OWN_DTYPE.split())
"""Ops of a network that run in the dtype of what they are given. Sines, clamps and means are none: they stand in
coordinates, losses and targets, too, which are better off in float32."""

_FLOAT32_ANYWAY = frozenset({"layer_norm", "group_norm", "rms_norm"})
"""Ops on autocast's float32 list through which the values of a network go on. Softmax is none of them: what is added to
scores before it is better off in float32."""

_JOINING = frozenset({"cat", "stack", "hstack", "vstack", "dstack", "column_stack", "row_stack", "where"})
BLANK = frozenset({"zeros", "empty", "zeros_like", "new_zeros", "empty_like", "new_empty"})
"""What adds nothing but a dtype: the first state of a recurrence, the beginning of a sum."""

_LOSES_DIMENSIONS = (
    surface.REDUCTIONS
    | surface.LOSSES
    | {
        "squeeze",
        "unbind",
        "select",
        "amax",
        "amin",
        "nanmedian",
        "logsumexp",
        "linalg_vector_norm",
        "cosine_similarity",
    }
)
"""What may leave no dimension of a vector."""


def is_table(
    name: str, effect: str | None, tensors: Sequence[Tensor], args: Sequence[Value], named: Named, lowered: bool
) -> bool:
    """Whether the result of an op is made of numbers alone and has a dimension."""
    if lowered or effect not in ("factory", "integers", "same", "promote", "listed", "bool"):
        return False
    if name in _LOSES_DIMENSIONS or not all(tensor.table for tensor in tensors):
        return False
    if effect not in ("factory", "integers"):
        return bool(tensors) and Items(()) not in args
    size = args[0] if args else named.get("size")
    if name == "full":
        value = args[1] if len(args) > 1 else named.get("fill_value")
        if not (isinstance(value, Const) and isinstance(value.value, float)):
            return False
    return size != Items(())


def carried(
    name: str, effect: str | None, kind: str | None, tensors: Sequence[Tensor], result: Tensor, place: Place
) -> frozenset[Widened]:
    """What the result of an op has of the tables that widened its tensors. ``kind``: the op list it is on."""
    given = frozenset(widened for tensor in tensors for widened in tensor.widened)
    if not given or result.dtypes != FLOAT32 or result.scalar or kind == "lower":
        return frozenset()
    if name in _FLOAT32_ANYWAY:
        return spent(given)
    if effect == "listed" and kind != "promote" and name not in ACTIVATIONS:
        return frozenset()
    if effect not in ("same", "promote", "listed", "many", "pair"):
        return frozenset()
    if "promote" in (effect, kind) and any(map(_is_float32_anyway, tensors)):
        return spent(given)
    if name in ACTIVATIONS or _widens_more(tensors):
        given = frozenset(_run_by(name, widened, place) for widened in given)
    return given if len(given) <= _MOST else frozenset(sorted(given, key=lambda one: one.place)[:_MOST])


def spent(given: frozenset[Widened]) -> frozenset[Widened]:
    """What tables have widened, from where on it would be float32 without them."""
    return frozenset(replace(widened, spent=True) for widened in given)


def _is_float32_anyway(tensor: Tensor) -> bool:
    return not (tensor.scalar or tensor.table or tensor.widened or tensor.dtypes <= HALVES | {"int", "bool"})


def run_by(name: str, tensor: Tensor, place: Place) -> frozenset[Widened]:
    """What has widened a tensor that an op named so computes with in float32."""
    return frozenset(_run_by(name, widened, place) for widened in tensor.widened)


def _run_by(name: str, widened: Widened, place: Place) -> Widened:
    return widened if widened.spent or widened.ran else replace(widened, ran=(name, place))


def _widens_more(tensors: Sequence[Tensor]) -> bool:
    """Whether a tensor that is low meets those that tables have widened, and no other float32."""
    floats = [tensor for tensor in tensors if not tensor.scalar and not tensor.dtypes <= {"int", "bool"}]
    low = any(tensor.dtypes <= HALVES for tensor in floats)
    return low and all(tensor.dtypes <= HALVES or any(not one.spent for one in tensor.widened) for tensor in floats)


def widening(
    op: str, effect: str | None, kind: str | None, tensors: Sequence[Tensor], result: Tensor
) -> tuple[Tensor, Tensor] | None:
    """The low tensor and the table that an op makes float32 of; None if it does not, or not for a table alone."""
    name = surface.canonical(op)
    joins = effect == "promote" or (effect == "listed" and kind == "promote" and name in _JOINING)
    if not joins or result.dtypes != FLOAT32 or surface.in_place(op):
        return None
    floats = [tensor for tensor in tensors if not tensor.scalar and not tensor.dtypes <= {"int", "bool"}]
    low = [tensor for tensor in floats if tensor.dtypes <= HALVES]
    wide = [tensor for tensor in floats if tensor not in low]
    if not low or not wide or any(not tensor.table or tensor.dtypes != FLOAT32 for tensor in wide):
        return None
    if name not in _JOINING and all(tensor.last in BLANK for tensor in wide):
        return None
    return None if any(tensor.origin == "model" for tensor in low) else (low[0], wide[0])


def keeps_dimensions(index: Value, node: ir.Expr) -> bool:
    """Whether what an index picks surely has a dimension."""
    parts = node.items if isinstance(node, ir.Sequence) else (node,)
    sliced = any(
        isinstance(part, ir.Slice) or (isinstance(part, ir.Const) and part.value in (None, ...)) for part in parts
    )
    return sliced or (isinstance(index, Tensor) and not index.scalar)
