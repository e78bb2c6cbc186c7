"""What the tests of repairs share: mend a program, run it, check it again."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from amp_audit import mending, reading
from amp_audit.settings import Configuration, Settings


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder, as a user of the command line would."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def mended(folder: Path, source: str | bytes, *, unsafe: bool = False, name: str = "train.py") -> str:
    """The text of a file after its repairs."""
    path = folder / name
    path.write_bytes(source.encode() if isinstance(source, str) else source)
    with inside(folder):
        mending.write(mending.mend([Path(name)], Configuration(Settings(root=folder)), unsafe=unsafe))
    return path.read_bytes().decode("utf-8")


def rules(folder: Path, name: str = "train.py") -> list[str]:
    """The rules that a check of the file names, in order."""
    with inside(folder):
        return [finding.rule for finding in reading.check([Path(name)], Configuration(Settings(root=folder))).findings]


def printed(code: str) -> str:
    """What a program prints; how it ended, if by an exception."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exec(compile(code, "train.py", "exec"), {"__name__": "__main__"})
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    return out.getvalue()
