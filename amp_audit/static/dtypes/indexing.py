"""Which indices hold tensors: by their values, or by how they are spelled."""

from __future__ import annotations

import re

from amp_audit.static.dtypes.values import Items, Many, Opaque, Tensor, Value
from amp_audit.static.source import ir
from amp_audit.static.source.traverse import last_word

_MASK = re.compile(r"(^|_)mask(_|$)|(^|_)(indices|idxs|inds)$", re.IGNORECASE)
"""What masks, and tensors of indices, are called."""


def picks(index: Value) -> bool:
    """Whether an index holds tensors or lists, so that writing to it is ``index_put_`` and not a copy to a view."""
    parts = index.items if isinstance(index, Items) else (index,)
    return any(
        isinstance(part, (Tensor, Many)) or (isinstance(part, Opaque) and part.dtypes <= {"bool", "int"})
        for part in parts
    )


def is_mask(index: ir.Expr) -> bool:
    """Whether an index is a mask, or a list of indices, by how it is spelled."""
    if isinstance(index, ir.Sequence):
        return any(map(is_mask, index.items))
    if isinstance(index, (ir.Compare, ir.Unary)):
        return isinstance(index, ir.Compare) or index.op == "~"
    return _MASK.search(last_word(index)) is not None
