"""What is kept from one run to the next: JSON documents with a checksum, in the user's own cache folder.

What lies in a checkout is not trusted. Documents are written beside and moved into place, so that processes do not meet
half of one; one that cannot be read, for whatever reason, is not there, and where none can be written nothing happens.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

_SUFFIX = ".json"


def folder(kind: str) -> Path:
    """Where documents of this kind are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "amp-audit" / kind


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def load(where: Path, name: str) -> Any:
    """The document of this name; None if it is not there or not whole."""
    path = where / (name + _SUFFIX)
    try:
        checksum, _, text = path.read_bytes().partition(b"\n")
        if digest(text) != checksum.decode("ascii"):
            return None
        document = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return None
    return document


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
    """Keep a document, and of all those there the ``most`` that were used last."""
    import tempfile

    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        text = json.dumps(document).encode("ascii")
        where.mkdir(parents=True, exist_ok=True)
        handle, half = tempfile.mkstemp(dir=where, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(digest(text).encode("ascii") + b"\n" + text)
            os.replace(half, where / (name + _SUFFIX))
        except OSError:
            os.unlink(half)
            raise
        _forget_old(where, most)


def _forget_old(where: Path, most: int) -> None:
    with os.scandir(where) as entries:
        found = sorted((entry.stat().st_mtime_ns, entry.path) for entry in entries)
    for _, path in found[:-most]:
        with contextlib.suppress(OSError):
            os.unlink(path)
