"""amp-audit: finds mixed-precision mistakes in PyTorch training programs by reading them and by watching them run.

``check`` reads, ``audit`` reads and runs, ``trace`` records this process, ``load_trace`` reads a trace back. Importing
this package imports neither torch nor libcst.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Bound first, so that the function of the same name below is what ``amp_audit.trace`` means from then on.
import amp_audit.trace  # noqa: F401

if TYPE_CHECKING:
    from amp_audit.report import Report
    from amp_audit.settings import Configuration, Settings
    from amp_audit.trace.schema import Trace
    from amp_audit.tracing import Traced

__version__ = "0.1.0"
__all__ = ["audit", "check", "load_trace", "trace"]


def check(*paths: str | Path, settings: Settings | None = None) -> Report:
    """Read files and folders (the working directory if none is given) and report what is wrong.

    ``settings`` None reads ``[tool.amp-audit]``. Raises ``TargetError``, ``SettingsError`` or ``RuleError``.
    """
    from amp_audit import reading

    return reading.check([Path(path) for path in paths or (".",)], _configured(settings))


def audit(*command: str | Path, steps: int | None = 20, settings: Settings | None = None) -> Report | None:
    """Read a script, run it with its arguments in a process of its own, and report both.

    ``steps``: stop it after so many optimizer steps (None: let it end). None is returned in a rank of a launcher that
    leaves the report to another rank. Raises what ``check`` raises, and ``LaunchError``.
    """
    from amp_audit import auditing, target
    from amp_audit.supervisor import Recording

    words = [str(word) for word in command]
    return auditing.audit(target.script(words), _configured(settings), Recording(steps)).report


def trace(
    model: Any = None,
    optimizer: Any = None,
    scaler: Any = None,
    *,
    sample: str | int = "default",
    deep: str | int = "default",
    steps: int | None = None,
    compile: str = "eager",
) -> AbstractContextManager[Traced]:
    """Record the training steps of this process while the context is open. Needs torch.

    It yields the recording: ``.findings``, ``.report()``, ``.traces``, ``.folder``.

    What was built before the context is known by its first use; given here, it has its name from the first step on.
    ``sample``: ``"default"``, ``"all"`` or N (every Nth step); ``deep``: which of the recorded ones run
    their operators again in float32: ``"default"``, ``"all"``, ``"none"`` or N; ``steps``: no more than so many;
    ``compile``: recorded steps run compiled functions as written (``"eager"``) or compiled (``"observe"``).
    Raises RuntimeError while another recording is open, ValueError for an option that is none of these.
    """
    from amp_audit import supervisor, tracing
    from amp_audit.runtime import context
    from amp_audit.trace import ranks

    folder = supervisor.trace_folder(supervisor.Recording(), ranks.member())
    return tracing.opened(context.trace(folder, model, optimizer, scaler, str(sample), str(deep), steps, compile))


def load_trace(folder: str | Path) -> Sequence[Trace]:
    """The traces of all processes in ``folder``, by rank. Raises ``TraceError``."""
    from amp_audit.trace import reader

    return reader.read(Path(folder))


def _configured(given: Settings | None) -> Configuration:
    from amp_audit import settings

    if given is not None:
        return settings.Configuration(given, follow_files=False)
    return settings.Configuration(settings.read(Path.cwd()))
