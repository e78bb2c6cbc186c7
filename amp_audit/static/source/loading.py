"""Many sources -> lowered modules.

In this process: Python's parser is fast enough that handing the facts over from another one costs more than making them
(measured on 3.7 MB of source: 0.9 s to lower, 1.2 s to pickle and unpickle).
"""

from __future__ import annotations

from collections.abc import Sequence

from amp_audit.static.source import ir
from amp_audit.static.source.deep import with_deep_stack
from amp_audit.static.source.lowering import lower
from amp_audit.static.source.position import LoweringError
from amp_audit.static.source.sources import Source

Lowered = ir.Module | LoweringError


def lower_all(sources: Sequence[Source]) -> dict[str, Lowered]:
    """The module of each source by its path, or why it is none."""

    return with_deep_stack(lambda: {source.path: _lower(source) for source in sources})


def _lower(source: Source) -> Lowered:
    try:
        return lower(source.path, source.text)
    except LoweringError as error:
        return error
