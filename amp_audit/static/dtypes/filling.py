"""Constants that elements of a tensor are: what it was filled with, or added to, or masked by."""

from __future__ import annotations

from collections.abc import Sequence

from amp_audit import policy
from amp_audit.static.dtypes import surface
from amp_audit.static.dtypes.values import Const, Tensor


def filling(op: str, name: str, tensors: Sequence[Tensor]) -> tuple[tuple[str, Const], ...]:
    """What a tensor is filled with that is added, or written, to another one: as if the number itself were."""
    if name not in ("add", "sub", "setitem", "where"):
        return ()
    own = tensors[1:] if surface.in_place(op) else tensors
    return tuple(("other", tensor.filled) for tensor in own if tensor.filled is not None)


def filled(
    name: str, effect: str | None, tensors: Sequence[Tensor], numbers: tuple[tuple[str, Const], ...]
) -> Const | None:
    """The constant that some elements of a result are: what they are filled with, or what a mask is multiplied by."""
    own = {key: value for key, value in numbers if value.number is not None}
    if name == "arange":
        return own.get("end", own.get("start"))
    for key in ("value", "fill_value"):
        if key in own and name in ("masked_fill", "fill", "full", "full_like", "new_full", "index_fill"):
            return own[key]
    if name == "where":
        return max(own.values(), key=lambda value: abs(value.number or 0.0), default=None)
    if name == "mul" and "other" in own and (not any(tensor.low for tensor in tensors) or _is_limit(own["other"])):
        return own["other"]
    if name in surface.MOVES or name in ("triu", "tril"):
        return tensors[0].filled if tensors else None
    return None


def _is_limit(value: Const) -> bool:
    """Whether a number is float16's largest: nobody multiplies by it but a mask."""
    return abs(value.number or 0.0) == policy.MAX_FINITE["float16"]
