"""How an audited process learns that it is one: from its environment, at its start.

``environment`` is what ``launch`` adds for its child; all of the child's own children inherit it. In each of them
``bootstrap/sitecustomize.py`` waits for torch and then calls ``begin``: a process that never imports it is left alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "AMP_AUDIT_SESSION"
MAIN = "AMP_AUDIT_MAIN"
BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"

WATCH_WAIT = 10.0
"""Seconds from the start of the run that a process which has imported torch waits for the list of lines to watch."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a process has to know: see ``launch.Request``. ``main`` is the program itself, not a child of it.

    ``watch_until``: the time (seconds since the epoch) up to which the file ``watch`` is waited for. ``emulate``: the
    device to be emulated (``cuda``, ``cuda:sm80``); ``dry``: without arithmetic. ``compile``: whether recorded
    steps run compiled functions as written (``eager``) or compiled (``observe``).
    """

    trace_dir: str
    steps: int | None = None
    sample: str = "default"
    deep: str = "default"
    go_on: bool = False
    watch: str | None = None
    watch_until: float = 0.0
    main: bool = False
    emulate: str | None = None
    dry: bool = False
    compile: str = "eager"


def environment(config: Config, base: Mapping[str, str]) -> dict[str, str]:
    """``base`` with what makes every Python process below attach itself."""
    path = os.pathsep.join(filter(None, (str(BOOTSTRAP), base.get("PYTHONPATH", ""))))
    ours = {VARIABLE: json.dumps(asdict(config)), "PYTHONPATH": path}
    return {**base, **ours, MAIN: "1"} if config.main else {**base, **ours}


def begin(session: str, main: bool) -> None:
    """Begin the session that ``environment`` wrote down, torch having just been imported.

    A process that cannot be audited says why in the trace folder, and runs as it would. One that was to see a device
    which cannot be emulated would run as another program, and ends: raises SystemExit.
    """
    config = Config(**{**json.loads(session), "main": main})
    if config.emulate is not None:
        _emulate(config)
    try:
        from amp_audit.runtime import lines
        from amp_audit.runtime.session import Session

        if config.watch is not None:
            lines.start(read_watch(Path(config.watch), config.watch_until))
        Session(config, attached=True).begin()
    except Exception as error:
        _complain(config, f"a process could not be audited: {type(error).__name__}: {error}")


def _emulate(config: Config) -> None:
    from amp_audit.runtime import emulation

    try:
        emulation.begin(str(config.emulate), dry=config.dry)
    except Exception as error:
        _complain(config, f"cannot emulate {config.emulate}: {error}")
        raise SystemExit(f"amp-audit: cannot emulate {config.emulate}: {error}") from None


def read_watch(file: Path, until: float) -> dict[str, list[list[int]]]:
    """The ranges of lines to watch, by path; empty when the file does not come in time or cannot be read."""
    while not file.exists() and time.time() < until:
        time.sleep(0.01)
    try:
        data = json.loads(file.read_text("utf-8"))
        return {str(path): [[int(first), int(last)] for first, last in ranges] for path, ranges in data.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _complain(config: Config, text: str) -> None:
    try:
        folder = Path(config.trace_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"unattached-{os.getpid()}.txt").write_text(f"{text}\n", encoding="utf-8")
    except OSError:
        print(f"amp-audit: {text}", file=sys.stderr)
