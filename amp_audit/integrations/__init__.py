"""Recordings that frameworks open and close by themselves: one module a framework, each imports its own."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import amp_audit

if TYPE_CHECKING:
    from amp_audit.tracing import Traced


class Opener:
    """Opens ``amp_audit.trace`` when training begins and closes it when it ends; ``options`` are its keywords.

    ``recording`` is None before the first training, then that of the latest.
    """

    def __init__(self, **options: Any) -> None:
        self.recording: Traced | None = None
        self._options = options
        self._open = ExitStack()

    def begin(self, model: Any = None, optimizer: Any = None) -> None:
        """Training begins. Raises RuntimeError while another recording is open."""
        self.recording = self._open.enter_context(amp_audit.trace(model, optimizer, **self._options))

    def end(self, error: BaseException | None = None) -> None:
        """It ended, if it had begun; ``error`` is what ended it."""
        if error is None:
            self._open.close()
            return
        try:
            self._open.__exit__(type(error), error, error.__traceback__)
        except BaseException as same:
            if same is not error:
                raise
