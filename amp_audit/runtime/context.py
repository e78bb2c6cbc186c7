"""Record the training steps of this very process, for programs that open the recording themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_audit.runtime import session
from amp_audit.runtime.attach import Config
from amp_audit.runtime.compiled import MODES


@dataclass(frozen=True, slots=True)
class Traced:
    """A recording; ``folder`` can be read back (``amp_audit.load_trace``) once it is over."""

    folder: Path


@contextmanager
def trace(
    folder: Path,
    model: Any,
    optimizer: Any,
    scaler: Any,
    sample: str,
    deep: str,
    steps: int | None,
    compile: str,
) -> Iterator[Traced]:
    """Record until the context is left, ``steps`` optimizer steps at most; the program itself is never stopped.

    ``model``, ``optimizer`` and ``scaler`` may have been built before; given, they have their names from the first
    step on. In a program that amp-audit runs, the recording is amp-audit's. Raises RuntimeError while another one of
    the program's own is open in this process, ValueError for an unknown ``sample``, ``deep`` or ``compile``.
    """
    if compile not in MODES:
        raise ValueError(f"compile must be eager or observe, not {compile!r}")
    if session.current is not None and session.current.attached:
        yield Traced(Path(session.current.config.trace_dir))
        return
    if session.current is not None:
        raise RuntimeError("this process is being recorded already")
    config = Config(str(folder), steps=steps, sample=sample, deep=deep, go_on=True, main=True, compile=compile)
    own = session.Session(config)
    own.begin()
    if model is not None:
        own.places.modules.name(model)
    if optimizer is not None:
        own.signals.adopt(optimizer)
    if scaler is not None:
        own.signals.adopt_scaler(scaler)
    try:
        yield Traced(folder)
    except BaseException as error:
        own.died(error)
        own.close("failed")
        raise
    own.close("finished")
