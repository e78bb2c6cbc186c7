"""How an audited process learns that it is one: from its environment, before its first line.

``environment`` is what ``launch`` adds for its child; all of the child's own children inherit it. In each of them
``bootstrap/sitecustomize.py`` calls ``attach``, which waits for torch: a process that never imports it is left alone.
Standard library only, and little of that: every Python process below an audited one pays for this module.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VARIABLE = "AMP_AUDIT_SESSION"
MAIN = "AMP_AUDIT_MAIN"
BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"

WATCH_WAIT = 5.0
"""Seconds from the start of the run that a process waits for the list of lines to watch."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a process has to know: see ``launch.Request``. ``main`` is the program itself, not a child of it.

    ``watch_until``: the time (seconds since the epoch) up to which the file ``watch`` is waited for.
    """

    trace_dir: str
    steps: int | None = None
    sample: str = "default"
    go_on: bool = False
    watch: str | None = None
    watch_until: float = 0.0
    main: bool = False


def environment(config: Config, base: Mapping[str, str]) -> dict[str, str]:
    """``base`` with what makes every Python process below attach itself."""
    path = os.pathsep.join(filter(None, (str(BOOTSTRAP), base.get("PYTHONPATH", ""))))
    ours = {VARIABLE: json.dumps(asdict(config)), "PYTHONPATH": path}
    return {**base, **ours, MAIN: "1"} if config.main else {**base, **ours}


def attach() -> None:
    """Arrange for a session to begin when torch is imported; start watching lines at once."""
    text = os.environ.get(VARIABLE)
    if text is None:
        return
    config = Config(**{**json.loads(text), "main": os.environ.pop(MAIN, None) is not None})
    if config.watch is not None:
        from amp_audit.runtime import lines

        lines.start(read_watch(Path(config.watch), config.watch_until))
    sys.meta_path.insert(0, _Finder(config))


def read_watch(file: Path, until: float) -> dict[str, list[list[int]]]:
    """The ranges of lines to watch, by path; empty when the file does not come in time or cannot be read."""
    while not file.exists() and time.time() < until:
        time.sleep(0.01)
    try:
        data = json.loads(file.read_text("utf-8"))
        return {str(path): [[int(first), int(last)] for first, last in ranges] for path, ranges in data.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


class _Finder:
    """Acts right after ``import torch``, by whatever means torch is imported."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        loader: Any = spec.loader if spec is not None else None
        if not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module  # the loader is as it was found again
            execute(module)
            sys.meta_path.remove(self)
            _begin(self._config)

        loader.exec_module = exec_module
        return spec


def _begin(config: Config) -> None:
    """Begin the session. A process that cannot be audited says why in the trace folder, and runs as it would."""
    try:
        from amp_audit.runtime.session import Session

        Session(config).begin()
    except Exception as error:
        complain(config, f"a process could not be audited: {type(error).__name__}: {error}")


def complain(config: Config, text: str) -> None:
    try:
        folder = Path(config.trace_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"unattached-{os.getpid()}.txt").write_text(f"{text}\n", encoding="utf-8")
    except OSError:
        print(f"amp-audit: {text}", file=sys.stderr)
