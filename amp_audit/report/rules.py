"""What ``amp-audit explain`` and ``amp-audit rules`` print."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TextIO

from rich.console import RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from amp_audit.report.layout import STYLES, flowed, show
from amp_audit.rulebook import Rule, Rulebook


def explain(rule: Rule, stream: TextIO) -> None:
    """One rule in full: what, why, fix, an example that is wrong and one that only looks wrong."""
    show(stream, lambda width: _page(rule))
    for title, bad in (("Wrong", True), ("Right, though it may look wrong", False)):
        examples = [example for example in rule.examples if example.bad is bad]
        if examples:
            told = min(examples, key=lambda example: (not example.run, len(example.code)))
            # Not wrapped: people copy code.
            show(stream, partial(_code, title, told.code), wrap=False)
    if rule.references:
        show(stream, lambda width: _titled("References", Text("\n".join(rule.references))), wrap=False)


def _page(rule: Rule) -> Iterator[RenderableType]:
    head = Text(f"{rule.id} {rule.name}", style="bold").append(f"  {rule.severity.word}", style=STYLES[rule.severity])
    yield head
    yield Text(rule.summary)
    yield Text(f"seen by {_halves(rule)}", style="dim")
    yield from _titled("Why", Padding(Text(flowed(rule.why)), (0, 0, 0, 2)))
    yield from _titled("Fix", Padding(Text(flowed(rule.fix)), (0, 0, 0, 2)))


def _halves(rule: Rule) -> str:
    halves = [word for word, detectors in (("reading", rule.static), ("running", rule.runtime)) if detectors]
    return " and ".join(halves) or "amp-audit itself"


def _titled(title: str, body: RenderableType) -> Iterator[RenderableType]:
    yield Text(f"\n{title}", style="bold")
    yield body


def _code(title: str, code: str, width: int) -> Iterator[RenderableType]:
    text = Syntax("", "python", theme="ansi_dark").highlight(code)
    text.rstrip()
    yield from _titled(title, text)


def table(book: Rulebook, stream: TextIO) -> None:
    """Every rule in one line."""
    show(stream, lambda width: map(_row, book.rules.values()), wrap=False)


def _row(rule: Rule) -> Text:
    severity = f"{rule.severity.word:<7}"
    return (
        Text(f"{rule.id}  ", style="bold")
        .append(severity, style=STYLES[rule.severity])
        .append(f"  {rule.name:<34}  {rule.summary}", style="default not bold")
    )
