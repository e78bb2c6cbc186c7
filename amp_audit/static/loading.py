"""Many sources -> lowered modules, half of them in a second process when that pays."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Thread

from amp_audit.static import ir
from amp_audit.static.deep import with_deep_stack
from amp_audit.static.position import LoweringError
from amp_audit.static.sources import Source

_WORTH_A_PROCESS = 400_000
"""Characters above which a second process saves more than its start costs (about one second of parsing)."""

_WORKER = "import sys; sys.path.insert(0, sys.argv[1]); from amp_audit.static.loading import serve; serve()"

Lowered = ir.Module | LoweringError


def lower_all(sources: Sequence[Source]) -> dict[str, Lowered]:
    """The module of each source by its path, or why it is none."""
    if sum(len(source.text) for source in sources) < _WORTH_A_PROCESS or (os.cpu_count() or 1) < 2:
        return _lower_here(sources)
    mine, other = _halves(sources)
    helper = _Helper(other)
    found = _lower_here(mine)
    rest = helper.result()
    found.update(rest if rest is not None else _lower_here(other))
    return {source.path: found[source.path] for source in sources}


def _halves(sources: Sequence[Source]) -> tuple[list[Source], list[Source]]:
    """Two parts of about the same length."""
    parts: tuple[list[Source], list[Source]] = ([], [])
    sizes = [0, 0]
    for source in sorted(sources, key=lambda source: -len(source.text)):
        lighter = sizes.index(min(sizes))
        parts[lighter].append(source)
        sizes[lighter] += len(source.text)
    return parts


def _lower_here(sources: Sequence[Source]) -> dict[str, Lowered]:
    if not sources:
        return {}

    def work() -> dict[str, Lowered]:
        with _without_gc():
            return {source.path: _lower(source) for source in sources}

    return with_deep_stack(work)


def _lower(source: Source) -> Lowered:
    from amp_audit.static.lowering import lower

    try:
        return lower(source.path, source.text)
    except LoweringError as error:
        return error


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    """Trees have no cycles, and looking for some costs a tenth of the parse."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Helper:
    """A second interpreter at work. Not ``multiprocessing``, which would run a user's script again on some systems."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._output = b""
        self._thread: Thread | None = None
        package = str(Path(__file__).resolve().parents[2])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _WORKER, package],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return
        request = pickle.dumps([(source.path, source.text) for source in sources])
        self._thread = Thread(target=self._talk, args=(request,), daemon=True)
        self._thread.start()

    def _talk(self, request: bytes) -> None:
        self._output, _ = self._process.communicate(request)

    def result(self) -> dict[str, Lowered] | None:
        """What it found; None when it could not do it, whatever the reason."""
        if self._thread is None:
            return None
        self._thread.join()
        if self._process.returncode != 0:
            return None
        found: dict[str, Lowered] = {}
        with _without_gc():
            for path, module, problem in pickle.loads(self._output):
                found[path] = module if problem is None else LoweringError(*problem)
        return found


def serve() -> None:
    """The helper's side: requests from the standard input, results to the standard output."""
    request = pickle.load(sys.stdin.buffer)
    found = _lower_here([Source(path, text) for path, text in request])
    answer = [
        (path, None, (str(item), item.line, item.column)) if isinstance(item, LoweringError) else (path, item, None)
        for path, item in found.items()
    ]
    sys.stdout.buffer.write(with_deep_stack(lambda: pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)))
    sys.stdout.buffer.flush()
