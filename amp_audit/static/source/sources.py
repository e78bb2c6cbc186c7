"""Paths -> the texts of Python files and notebooks, and why one of them could not be read."""

from __future__ import annotations

import ast
import os
import re
import sys
import tokenize
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from io import BytesIO
from pathlib import Path

from amp_audit.records import record

SUFFIXES = (".py", ".pyw", ".ipynb")
CONFIG_SUFFIX = ".json"
_CONFIG_NAME = re.compile(r"(?:^|[/_.-])(?:ds|deepspeed|zero|stage|offload|fp16|bf16)(?=[/_.\d-])", re.I)
STDIN = "<stdin>"
"""What the standard input is called; on the command line it is ``-``."""
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "__pycache__", "node_modules", "__pypackages__"})
_GIT_TIMEOUT_S = 60


class SourceError(Exception):
    """A path that cannot be checked at all: missing, or without any Python. The message is one line."""


class Unreadable(Exception):
    """A file that was found and cannot be read. ``line`` and ``column`` count from 1, in ``cell`` of a notebook."""

    def __init__(self, message: str, line: int = 1, column: int = 1, cell: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.cell = cell


@record(frozen=True, slots=True)
class Source:
    """The text of one file. For a notebook ``text`` joins its code cells and ``starts`` / ``cells`` say where from:
    the cell with index ``cells[i]`` among all cells begins at line ``starts[i]`` of the text. ``taken`` are the
    characters that a line of the text has lost at its beginning: indentation of the cell, a magic before code.

    ``broken`` are the cells that no Python could be made of; they are blank in ``text``.
    """

    path: str
    text: str
    starts: tuple[int, ...] = ()
    cells: tuple[int, ...] = ()
    broken: tuple[Unreadable, ...] = ()
    taken: Mapping[int, int] = field(default_factory=dict)

    def place(self, line: int) -> tuple[int | None, int]:
        """A line of ``text`` as (cell or None, line in the file or cell)."""
        if not self.cells:
            return None, line
        index = max(0, bisect_right(self.starts, line) - 1)
        return self.cells[index], line - self.starts[index] + 1

    def column(self, line: int, column: int) -> int:
        """A column of a line of ``text`` as that of the file or cell."""
        return column + self.taken.get(line, 0)


# Finding files


@record(frozen=True, slots=True)
class Gathered:
    """The files to check, in order, and where they were looked for.

    ``searched`` are the folders among what was asked for, absolute. ``given`` has the bytes of files that are not read
    from the disk: the standard input. ``configs`` are JSON files that may be a framework's configuration.
    """

    paths: Sequence[str]
    searched: Sequence[str] = ()
    given: Mapping[str, bytes] = field(default_factory=dict)
    configs: Sequence[str] = ()


def gather(
    paths: Sequence[str | Path],
    excluded: Callable[[str], bool] = lambda path: False,
    *,
    force: bool = False,
    stdin_name: str | None = None,
) -> Gathered:
    """The Python files and notebooks of ``paths``, each once, in order; folders are searched.

    In folders hidden ones, virtual environments, what git ignores, and what ``excluded`` says are left out. What is
    given by name is taken as it is, unless ``force`` makes ``excluded`` hold for it too. ``-`` is the standard input,
    which stands for the file ``stdin_name``, be there one or not.

    Raises SourceError for a missing path, and where there is no Python and nothing was left out by name.
    """
    found: dict[str, str] = {}
    given: dict[str, bytes] = {}
    left_out = False
    for path in map(str, paths):
        if path == "-":
            name = STDIN if stdin_name is None else shown(stdin_name)
            given[name] = _standard_input()
            found[os.path.realpath(name)] = name
        else:
            for file in _files(path, excluded):
                found.setdefault(os.path.realpath(file), shown(file))
    files = list(found.values())
    if force:
        files = [file for file in files if file == STDIN or not excluded(file)]
        left_out = len(files) < len(found)
    configs = [file for file in files if file.endswith(CONFIG_SUFFIX)]
    files = [file for file in files if not file.endswith(CONFIG_SUFFIX)]
    if not files and not left_out and not any(str(path).endswith(CONFIG_SUFFIX) for path in paths):
        raise SourceError(f"no Python file in {', '.join(map(str, paths))}")
    searched = [os.path.abspath(path) for path in paths if os.path.isdir(path)]
    return Gathered(files, searched, given, configs)


def find(paths: Sequence[str | Path], excluded: Callable[[str], bool] = lambda path: False) -> list[str]:
    """The files of ``gather``."""
    return list(gather(paths, excluded).paths)


def _standard_input() -> bytes:
    return sys.stdin.buffer.read() if sys.stdin is not None else b""


def shown(path: str) -> str:
    """A path as findings name it: relative to the working directory when below it, else absolute."""
    if path == STDIN:
        return path
    absolute = os.path.abspath(path)
    inside = os.path.relpath(absolute)
    return absolute if inside.startswith(os.pardir) else inside


def _files(path: str, excluded: Callable[[str], bool]) -> list[str]:
    if os.path.isdir(path):
        return [file for file in _folder(path, set()) if not excluded(file)]
    if not os.path.exists(path):
        raise SourceError(f"{path}: no such file or directory")
    if path.endswith(".pyi"):
        return []
    if path.endswith((*SUFFIXES, CONFIG_SUFFIX)) or _is_script(path):
        return [path]
    raise SourceError(f"{path}: neither a Python file nor a notebook")


def _is_script(path: str) -> bool:
    """A file that says by its first line that it is Python, or one without a suffix that is."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            data = file.read(256)
            if data.startswith(b"#!"):
                return b"python" in data.partition(b"\n")[0]
            if b"\0" in data or os.path.splitext(path)[1]:
                return False  # without reading on: it may be a checkpoint
            data += file.read()
    except OSError:
        return True  # reading it again will say why not
    return _is_python(data)


def _is_python(data: bytes) -> bool:
    try:
        ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _folder(folder: str, seen: set[str]) -> Iterator[str]:
    """The files below a folder, and last what links there lead to, so that a file comes by its own name first.

    ``seen`` are the real folders already visited, since links may form circles.
    """
    links: list[str] = []
    yield from _unlinked(folder, seen, links)
    for link in links:  # grows while it is read
        if os.path.isdir(link):
            yield from _unlinked(link, seen, links)
        else:
            yield link


def _unlinked(folder: str, seen: set[str], links: list[str]) -> Iterator[str]:
    """The files below a folder; links in it are put off."""
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    listed = _git_files(folder)
    if not any(name.endswith(SUFFIXES) for name in listed or ()):
        yield from _walk(folder, seen, links)  # no checkout, or the folder as a whole is ignored
        return
    for name in listed or ():
        path = os.path.join(folder, name).rstrip(os.sep)
        if _is_left_out(name):
            continue
        if os.path.isdir(path):  # a submodule, a nested checkout, a link
            if os.path.islink(path):
                links.append(path)
            else:
                yield from _unlinked(path, seen, links)
        elif _is_wanted(name) and os.path.isfile(path):
            if os.path.islink(path):
                links.append(path)
            else:
                yield path


def _is_wanted(name: str) -> bool:
    """Whether a file of a folder is Python, a notebook, or by its name a configuration of DeepSpeed."""
    return name.endswith(SUFFIXES) or (name.endswith(CONFIG_SUFFIX) and _CONFIG_NAME.search(name) is not None)


def _is_left_out(name: str) -> bool:
    return any(part.startswith(".") or part in _LEFT_OUT for part in name.split("/"))


def _git_files(folder: str) -> list[str] | None:
    """What git tracks or would track below a folder, or None where it is no checkout. Runs none of its hooks."""
    import subprocess  # files that are given by name, as by pre-commit, need none

    command = ["git", "-C", folder, "-c", "core.fsmonitor=false", "ls-files", "-z", "-co", "--exclude-standard"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return sorted({os.fsdecode(name) for name in done.stdout.split(b"\0") if name})


def _walk(folder: str, seen: set[str], links: list[str]) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            items = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise SourceError(f"{folder}: {error.strerror}") from None
    if any(item.name == "pyvenv.cfg" for item in items):
        return
    for item in items:
        if item.name.startswith(".") or item.name in _LEFT_OUT:
            continue
        if not (item.is_dir() or (_is_wanted(item.path) and item.is_file())):
            continue
        if item.is_symlink():
            links.append(item.path)
        elif item.is_file():
            yield item.path
        elif (real := os.path.realpath(item.path)) not in seen:
            seen.add(real)
            yield from _walk(item.path, seen, links)


# Reading one file


def read_bytes(path: str) -> bytes:
    """Raises Unreadable."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror or error}") from None


def decode(path: str, data: bytes) -> Source:
    """The source in the bytes of a file, decoded as PEP 263 says. Raises Unreadable."""
    if path.endswith(".ipynb"):
        from amp_audit.static.source.notebooks import read

        return read(path, data)
    return Source(path, _text(data))


def _text(data: bytes) -> str:
    try:
        text = data.decode(_encoding(data))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"cannot be decoded as {error.encoding}: {error.reason}", line) from None
    except (SyntaxError, LookupError) as error:
        raise Unreadable(f"cannot be decoded: {getattr(error, 'msg', error)}") from None
    if "\0" in text:
        raise Unreadable("source code cannot contain null bytes", text.count("\n", 0, text.index("\0")) + 1)
    return text


def _encoding(data: bytes) -> str:
    try:
        return tokenize.detect_encoding(BytesIO(data).readline)[0]
    except SyntaxError as error:
        if "missing encoding" in str(error):  # it is UTF-8 then, and decoding it will say where it is not
            return "utf-8"
        raise
