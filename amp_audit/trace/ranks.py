"""Several processes, one report: which rank we are, and which rank is to write what all of them have left behind.

Under ``torchrun --no-python ... amp-audit train.py`` each rank has an amp-audit of its own. They meet in one folder,
whose name each can work out by itself; the last rank to leave makes the report, or the first that has waited in vain.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 30.0
"""Seconds that a rank which has ended waits for the others."""

HASTE = 5.0
"""Seconds that it waits when the launcher ends all ranks: torchrun kills them 30 s after it has told them to end."""

_POLL = 0.1


@dataclass(frozen=True, slots=True)
class Member:
    """One of ``world`` processes that a launcher started. ``key`` is the same in all of them, and in no other run."""

    rank: int
    world: int
    key: str


def member(environ: Mapping[str, str] = os.environ, parent: int | None = None) -> Member | None:
    """This process's place among the ranks that torchrun started; None when it did not start us.

    ``parent``: the launcher's process id (default: that of our parent).
    """
    run, rank, world = (environ.get(name) for name in ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"))
    if run is None or rank is None or world is None or not (rank.isdigit() and world.isdigit()):
        return None
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    common = [run, *(environ.get(name, "") for name in names)]
    if environ.get("GROUP_WORLD_SIZE", "1") == "1":
        # On one machine all ranks have the launcher as parent, which tells two runs with the same port apart.
        common.append(str(os.getppid() if parent is None else parent))
    return Member(int(rank), int(world), hashlib.sha256("\0".join(common).encode()).hexdigest()[:12])


@dataclass(frozen=True, slots=True)
class Departure:
    """``reports``: this rank is to write the report. ``missing``: ranks that had not left by then."""

    reports: bool
    missing: tuple[int, ...] = ()


def leave(
    folder: Path, member: Member, patience: float = PATIENCE, hurry: threading.Event | None = None, haste: float = HASTE
) -> Departure:
    """Say in ``folder`` that this rank has ended, and wait for the others. Exactly one rank is told to report.

    That is the last to leave or, when some rank does not leave within ``patience`` seconds (``haste`` seconds from
    when ``hurry`` is set), the first to give up.
    Marks of other runs in the same folder do not count. Raises ``OSError`` when the folder cannot be written.
    """
    _mark(folder, member, member.rank).touch()
    until = time.monotonic() + patience
    while (missing := _missing(folder, member)) and time.monotonic() < until:
        if _claim(member, folder).exists():
            return Departure(reports=False)
        if hurry is not None and hurry.is_set():
            until, hurry = min(until, time.monotonic() + haste), None
        time.sleep(_POLL)
    try:
        os.close(os.open(_claim(member, folder), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return Departure(reports=False)
    return Departure(reports=True, missing=missing)


def _mark(folder: Path, member: Member, rank: int) -> Path:
    return folder / f"left-{member.key}-{rank}"


def _claim(member: Member, folder: Path) -> Path:
    return folder / f"reported-{member.key}"


def _missing(folder: Path, member: Member) -> tuple[int, ...]:
    return tuple(rank for rank in range(member.world) if not _mark(folder, member, rank).exists())
