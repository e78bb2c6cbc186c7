"""Inline suppressions: comments that silence a rule at a place, with room for a reason.

``# amp-audit: ignore[AMP202] reason`` speaks of its own line (any line of a finding that spans several),
``# amp-audit: ignore-next-line[AMP202]`` of the line after it, ``# amp-audit: ignore-file[AMP202]`` of the whole
file. Rules are given by id or name, several with commas.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from amp_audit.rulebook import Rulebook

MARK = "amp-audit:"
_COMMENT = re.compile(r"#\s*amp-audit:\s*(.*)", re.S)
_DIRECTIVE = re.compile(r"ignore(?P<scope>-file|-next-line)?\s*\[(?P<words>[^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Directive:
    """One word of one suppression. ``rule`` is the id it stands for, None for a word that names no rule.

    ``line`` is where the comment stands, ``target`` the line it silences (None: the whole file), ``column`` and
    ``end_column`` where the word stands in the comment's line; all from 1, the end exclusive.
    """

    word: str
    rule: str | None
    line: int
    column: int
    end_column: int
    target: int | None

    def covers(self, rule: str, first: int, last: int) -> bool:
        """Whether a finding of ``rule`` on the lines ``first`` to ``last`` is silenced."""
        return rule == self.rule and (self.target is None or first <= self.target <= last)


def directives(text: str, book: Rulebook) -> list[Directive]:
    """The suppressions in the comments of a source. One that is misspelt has its text as a word without a rule."""
    if MARK not in text:
        return []
    return [found for line, column, comment in _comments(text) for found in _parse(comment, line, column, book)]


def _parse(comment: str, line: int, column: int, book: Rulebook) -> Iterator[Directive]:
    marked = _COMMENT.match(comment)
    if marked is None:
        return
    begin = column + marked.start(1)
    match = _DIRECTIVE.match(marked.group(1))
    if match is None:
        word = marked.group(1).split(None, 1)[0] if marked.group(1).strip() else ""
        yield Directive(word, None, line, column, column + len(comment), line)
        return
    target = {None: line, "-next-line": line + 1, "-file": None}[match.group("scope")]
    offset = begin + match.start("words")
    for part in re.finditer(r"[^,\s]+", match.group("words")):
        rule = book.find(part.group())
        place = offset + part.start()
        yield Directive(part.group(), rule.id if rule else None, line, place, place + len(part.group()), target)


def _comments(text: str) -> Iterator[tuple[int, int, str]]:
    """(line, column, text) of the comments, columns from 1."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.start[1] + 1, token.string
    except (tokenize.TokenError, SyntaxError):
        return  # syntax of another Python version: what came before it counts


@dataclass(frozen=True, slots=True)
class Spot:
    """What a finding is to its suppressions: a rule on some lines of a file."""

    rule: str
    first: int
    last: int


def silenced(spots: Sequence[Spot], found: Iterable[Directive]) -> tuple[list[bool], list[Directive]]:
    """Whether each spot is silenced, and the directives that silence nothing."""
    flags = [False] * len(spots)
    unused = []
    for directive in found:
        hits = [n for n, spot in enumerate(spots) if directive.covers(spot.rule, spot.first, spot.last)]
        for hit in hits:
            flags[hit] = True
        if not hits:
            unused.append(directive)
    return flags, unused
