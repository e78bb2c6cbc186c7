"""What ``amp-audit explain`` and ``amp-audit rules`` print."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from amp_audit.report.styles import STYLES
from amp_audit.rulebook import Rule, Rulebook


def explain(rule: Rule, stream: TextIO) -> None:
    """One rule in full: what, why, fix, an example that is wrong and one that only looks wrong."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    head = Text(f"{rule.id} {rule.name}", style="bold").append(f"  {rule.severity.word}", style=STYLES[rule.severity])
    console.print(head)
    console.print(Text(rule.summary))
    console.print(Text("seen by " + _halves(rule), style="dim"))
    _block(console, "Why", Text(rule.why))
    _block(console, "Fix", Text(rule.fix))
    for title, bad in (("Wrong", True), ("Right, though it may look wrong", False)):
        examples = [example for example in rule.examples if example.bad is bad]
        if examples:
            shortest = min(examples, key=lambda example: len(example.code))
            code = Syntax(shortest.code.rstrip(), "python", theme="ansi_dark", background_color="default")
            _block(console, title, code)
    if rule.references:
        _block(console, "References", Text("\n".join(rule.references), no_wrap=True, overflow="ignore"))


def _halves(rule: Rule) -> str:
    halves = [word for word, detectors in (("reading", rule.static), ("running", rule.runtime)) if detectors]
    return " and ".join(halves) or "amp-audit itself"


def _block(console: Console, title: str, body: Text | Syntax) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    console.print(Padding(body, (0, 0, 0, 2)))


def table(book: Rulebook, stream: TextIO) -> None:
    """Every rule in one row."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    grid = Table.grid(padding=(0, 2, 0, 0))
    for column in ("id", "severity", "name", "summary"):
        grid.add_column(overflow="fold", no_wrap=column != "summary")
    for rule in book.rules.values():
        grid.add_row(
            Text(rule.id, style="bold"), Text(rule.severity.word, style=STYLES[rule.severity]), rule.name, rule.summary
        )
    console.print(grid)
