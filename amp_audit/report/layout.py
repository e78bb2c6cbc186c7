"""How the terminal renderers print: colours, width, the texts of rules."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from amp_audit.model import Severity

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}


def show(
    stream: TextIO, page: Callable[[int], Iterable[RenderableType]], *, color: bool = True, wrap: bool = True
) -> None:
    """Print what ``page`` gives for the width of ``stream``: colour only on a terminal that wants it, nothing marked
    up by itself, no spaces at the ends of lines. ``wrap`` False leaves long lines to the terminal."""
    console = Console(
        file=stream,
        no_color=not color or None,
        color_system="auto" if color else None,
        highlight=False,
        emoji=False,
        markup=False,
    )
    with console.capture() as captured:
        for item in page(console.width):
            console.print(item, soft_wrap=not wrap)
    stream.writelines(line.rstrip() + "\n" for line in captured.get().splitlines())


def section(title: str, body: Sequence[RenderableType]) -> RenderableType:
    """A titled block, indented, with an empty line after it."""
    return Padding(Group(Text(title, style="bold"), Padding(Group(*body), (0, 0, 0, 2))), (0, 0, 1, 0))


def flowed(text: str) -> str:
    """A text of a rule file for any width: prose loses its line breaks, paragraphs that are code or indented do not."""
    return "\n".join(part if _is_verbatim(part) else " ".join(part.split()) for part in text.split("\n\n"))


def beginning(text: str, least: int = 100, most: int = 280) -> str:
    """The first sentences of a text: ``most`` characters, unless what comes before is less than ``least``."""
    first, *others = _sentences(flowed(text.split("\n\n")[0]))
    for sentence in others:
        if len(first) >= least and len(first) + len(sentence) >= most:
            break
        first = f"{first} {sentence}"
    return first


def _sentences(text: str) -> Iterator[str]:
    """What ends with a full stop, its quotes closed: ``raises "No inf checks. Stop."`` is one."""
    sentence = ""
    for part in re.split(r"(?<=[.!?])\s+(?=[A-Z])", text):
        sentence = f"{sentence} {part}" if sentence else part
        if sentence.count('"') % 2 == 0:
            yield sentence
            sentence = ""
    if sentence:
        yield sentence


def _is_verbatim(text: str) -> bool:
    return text.startswith(" ") or _is_code(text)


def _is_code(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
