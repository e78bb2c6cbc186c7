"""Which op computed the numbers of a tensor, as ``Tensor.last`` says it."""

from __future__ import annotations

from collections.abc import Sequence

from amp_audit.static.dtypes import surface
from amp_audit.static.dtypes.values import Const, Tensor

_CAPPED = "capped"
"""``Tensor.last`` of what has no large element: what its maximum was taken from, what is no more than zero."""
_NEVER_LARGE = surface.BOUNDED | frozenset(
    {"log_softmax", "logsigmoid", "clamp", "clamp_max", "hardtanh", "relu6", "cosine_similarity", "normalize", _CAPPED}
)
_NEVER_BELOW_ZERO = frozenset(
    {"abs", "square", "relu", "softplus", "norm", "linalg_vector_norm", "cdist", "pdist", "softmax", "sigmoid", "exp"}
)


def last_of(name: str, effect: str | None, tensors: Sequence[Tensor], numbers: tuple[tuple[str, Const], ...]) -> str:
    """The op that computed the numbers of a result; one that moves them about does not count.

    Beside the names of ops: ``capped`` as above, ``exp of capped``, ``square`` for a tensor times itself,
    ``1 - softmax`` and the like for what is left of probabilities, ``sum of exp``.
    """
    first = tensors[0].last if tensors else ""
    number = next((value.number for _, value in numbers), None)
    if name in surface.MOVES or effect in ("many", "pair"):
        return first
    if name == "pow" and number == 2:
        return "square"
    if _is_capped(name, [tensor.last for tensor in tensors]):
        return _CAPPED
    if name == "exp" and first in _NEVER_LARGE:
        return f"exp of {_CAPPED}"
    if name == "sub" and number == 1 and first in ("softmax", "sigmoid"):
        return f"1 - {first}"
    return "sum of exp" if name == "sum" and first == "exp" else name


def negated(last: str) -> str:
    """``Tensor.last`` of what a minus stands before."""
    return _CAPPED if last in _NEVER_BELOW_ZERO else "neg"


def _is_capped(name: str, lasts: Sequence[str]) -> bool:
    """Whether an op gives what has no large element, by the ops that made its tensors."""
    if name == "sub" and len(lasts) == 2:
        return lasts[1] in ("amax", "max", "logsumexp")
    if name in ("mul", "div"):
        return lasts[:1] == [_CAPPED]
    return name == "neg" and [*map(negated, lasts)] == [_CAPPED]
