"""Room for deep recursion.

A sum of a thousand terms is a tree a thousand levels deep, and libcst's native parser ends the process with a
segmentation fault when the stack runs out (measured: about 2,000 nested brackets on 8 MiB). Work on trees therefore
runs in a thread of its own with a large stack; memory is only used as far as the stack really grows.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

STACK_BYTES = 512 * 1024 * 1024
RECURSION_LIMIT = 20_000

_local = threading.local()


def with_deep_stack(work: Callable[[], T]) -> T:
    """The result of ``work()``, run on a stack for deep trees; exceptions pass through, calls may be nested."""
    if getattr(_local, "deep", False):
        return work()
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        _local.deep = True
        try:
            outcome.append(_on_one_chunk(work))
        except BaseException as error:
            failure.append(error)

    _start_and_join(run)
    if failure:
        raise failure[0]
    return outcome[0]


def _on_one_chunk(work: Callable[[], Any]) -> Any:
    """Call ``work`` where Python keeps the frames that follow in one piece of memory.

    Since 3.11 frames lie in chunks of 16 KiB, and a chunk is given back to the system as soon as its last frame ends:
    a loop that calls across the end of one maps and unmaps memory in every round (measured: 200,000 times and 15% of
    the time of a check). A frame that is itself large gets a large chunk, which lasts as long as it does.
    """
    return work()


_on_one_chunk.__code__ = _on_one_chunk.__code__.replace(co_stacksize=1 << 17)
"""1 MiB of frame, which is never touched, and as much behind it for some ten thousand frames."""


def _start_and_join(run: Callable[[], None]) -> None:
    limit = sys.getrecursionlimit()
    size = threading.stack_size(STACK_BYTES)
    try:
        thread = threading.Thread(target=run, name="amp-audit-deep", daemon=True)
        sys.setrecursionlimit(max(limit, RECURSION_LIMIT))
        thread.start()
    finally:
        threading.stack_size(size)
    try:
        thread.join()
    finally:
        sys.setrecursionlimit(limit)
