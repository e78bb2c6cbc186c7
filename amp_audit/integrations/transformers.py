"""``Trainer(callbacks=[AmpAudit()])``: records what transformers' Trainer does from its first step to its last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from amp_audit.integrations import Opener

if TYPE_CHECKING:
    from amp_audit.tracing import Traced


class AmpAudit(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """A recording of each ``Trainer.train``; ``options`` are those of ``amp_audit.trace``, without its objects.

    ``recording`` holds its findings and report.
    """

    def __init__(self, **options: Any) -> None:
        self._opener = Opener(**options)

    @property
    def recording(self) -> Traced | None:
        """The latest recording, None before the first."""
        return self._opener.recording

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """The loop is about to begin; the optimizer is there."""
        self._opener.begin(model, getattr(optimizer, "optimizer", optimizer))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The loop is over."""
        self._opener.end()
