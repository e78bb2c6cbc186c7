"""Other tools that watch a training step, each as its own documentation says; what is not installed is said."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from models import Trainer

Over = Callable[[], None]
Variant = Callable[[], contextlib.AbstractContextManager[Over]]
"""Opens a way to run steps; what it yields is called after each of them."""


def installed(trainer: Trainer) -> tuple[dict[str, Variant], list[str]]:
    """Peers that leave nothing behind, by name, and one line for each that cannot be imported here."""
    found: dict[str, Variant] = {"detect_anomaly": lambda: _quiet(torch.autograd.set_detect_anomaly(True))}
    missing = []
    for name, make in (("DebugMode", _debug_mode), ("DebugUnderflowOverflow", _underflow_overflow)):
        try:
            found[name] = make(trainer)
        except Exception as error:  # another version of a peer may fail in any way
            missing.append(absent(name, error))
    return found, missing


def absent(name: str, error: Exception) -> str:
    return f"{name}: not measured ({type(error).__name__}: {error})"


@contextmanager
def _quiet(context: contextlib.AbstractContextManager[object]) -> Iterator[Over]:
    with contextlib.redirect_stdout(io.StringIO()), context:
        yield lambda: None


def _debug_mode(trainer: Trainer) -> Variant:
    from torch.utils._debug_mode import DebugMode

    return lambda: _quiet(DebugMode())


def _underflow_overflow(trainer: Trainer) -> Variant:
    """It adds hooks that it does not take off: it gets a twin of the model, which runs in the model's place."""
    from transformers.debug_utils import DebugUnderflowOverflow

    hooked = Trainer(trainer.size)
    hooked.model.load_state_dict(trainer.model.state_dict())
    with contextlib.redirect_stdout(io.StringIO()):
        debugger = DebugUnderflowOverflow(hooked.model)
    debugger.trace_mode = False

    @contextmanager
    def variant() -> Iterator[Over]:
        original, trainer.step = trainer.step, hooked.step  # type: ignore[method-assign]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                yield lambda: None
        finally:
            trainer.step = original  # type: ignore[method-assign]

    return variant


def _torchlens(trainer: Trainer) -> Variant:
    """Logs a forward pass of its own, beside that of the step: it has no way to watch one that somebody else runs."""
    import torchlens

    def log() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            torchlens.trace(trainer.model, trainer.batch[0])

    log()

    @contextmanager
    def variant() -> Iterator[Over]:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield log

    return variant


def _msprobe(trainer: Trainer) -> Variant:
    """Statistics of every operator, forward and backward (level mix), written to files."""
    import json

    from msprobe.pytorch import PrecisionDebugger

    folder = tempfile.mkdtemp(prefix="msprobe-")
    path = f"{folder}/config.json"
    config = {"task": "statistics", "dump_path": folder, "rank": [], "step": [], "level": "mix", "async_dump": False}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(
            {**config, "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}},
            file,
        )
    debugger = PrecisionDebugger(config_path=path)

    @contextmanager
    def variant() -> Iterator[Over]:
        def over() -> None:
            debugger.stop()
            debugger.step()
            debugger.start(trainer.model)

        with contextlib.redirect_stdout(io.StringIO()):
            debugger.start(trainer.model)
            yield over
            debugger.stop()
            debugger.step()

    return variant


LASTING: dict[str, Callable[[Trainer], Variant]] = {"torchlens": _torchlens, "msprobe": _msprobe}
"""Peers that wrap functions of torch for good: each is measured in a process of its own, after the plain steps."""
