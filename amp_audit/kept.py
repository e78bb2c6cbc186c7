"""What is kept from one run to the next: documents with a checksum, in the user's own cache folder.

What lies in a checkout is not trusted. Documents are written beside and moved into place, so that processes do not meet
half of one; one that cannot be read, for whatever reason, is not there, and where none can be written nothing happens.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from amp_audit import __version__

_SUFFIX = ".kept"


def folder(kind: str) -> Path:
    """Where documents of this kind are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "amp-audit" / kind


@cache
def state() -> str:
    """What is kept depends on beside what it was made of: Python, and the code of amp-audit itself, for a checkout
    changes without a new version."""
    found = [__version__, sys.version]
    for place, folders, names in os.walk(Path(__file__).resolve().parent):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            status = os.stat(os.path.join(place, name))
            found.append(f"{place}/{name} {status.st_mtime_ns} {status.st_size}")
    return digest("\n".join(sorted(found)).encode())


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def load(where: Path, name: str) -> Any:
    """The JSON document of this name; None if it is not there or not whole."""
    data = load_bytes(where, name)
    try:
        return json.loads(data) if data is not None else None
    except (ValueError, RecursionError):
        return None


def load_bytes(where: Path, name: str) -> bytes | None:
    """What was kept under this name; None if it is not there or not whole."""
    try:
        checksum, _, data = (where / (name + _SUFFIX)).read_bytes().partition(b"\n")
    except OSError:
        return None
    return data if digest(data).encode("ascii") == checksum else None


def is_plain(document: Any) -> bool:
    """Whether a document comes back from JSON as it was."""
    try:
        return repr(json.loads(json.dumps(document))) == repr(document)
    except (ValueError, TypeError, RecursionError):
        return False


def use(where: Path, name: str) -> None:
    """A document that is used stays longest."""
    with contextlib.suppress(OSError):
        os.utime(where / (name + _SUFFIX))


def store(where: Path, name: str, document: Any, most: int) -> None:
    """Keep a JSON document, and of all those there the ``most`` that were used last."""
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        store_bytes(where, name, json.dumps(document).encode("ascii"))
        forget(where, most)


def store_bytes(where: Path, name: str, data: bytes) -> None:
    """Keep some bytes."""
    with contextlib.suppress(OSError):
        where.mkdir(parents=True, exist_ok=True)
        half = where / f"{os.urandom(8).hex()}.part"  # tempfile takes longer to load than this to be written
        handle = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(digest(data).encode("ascii") + b"\n" + data)
            os.replace(half, where / (name + _SUFFIX))
        except OSError:
            os.unlink(half)
            raise


def forget(where: Path, most: int, most_bytes: float = math.inf) -> None:
    """Of all that is kept there, forget what was used longest ago until no more than ``most`` documents are left, and
    no more than ``most_bytes``."""
    with contextlib.suppress(OSError), os.scandir(where) as entries:
        states = [(entry.stat(), entry.path) for entry in entries if entry.is_file()]
        size = 0
        for number, (state, path) in enumerate(sorted(states, key=lambda each: -each[0].st_mtime_ns)):
            size += state.st_size
            if number >= most or size > most_bytes:
                with contextlib.suppress(OSError):
                    os.unlink(path)
