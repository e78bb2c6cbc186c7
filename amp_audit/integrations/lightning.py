"""``Trainer(callbacks=[AmpAudit()])``: records what Lightning's Trainer does from its first step to its last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch import Callback

from amp_audit.integrations import Opener

if TYPE_CHECKING:
    from amp_audit.tracing import Traced


class AmpAudit(Callback):  # type: ignore[misc,unused-ignore]
    """A recording of each ``Trainer.fit``; ``options`` are those of ``amp_audit.trace``, without its objects.

    ``recording`` holds its findings and report.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._opener = Opener(**options)

    @property
    def recording(self) -> Traced | None:
        """The latest recording, None before the first."""
        return self._opener.recording

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The loop is about to begin; the optimizers are there."""
        self._opener.begin(pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The loop is over."""
        self._opener.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """It failed or was interrupted."""
        self._opener.end(exception)
