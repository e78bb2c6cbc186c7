"""Inline suppressions: comments that silence a rule at a place, with room for a reason.

``# amp-audit: ignore[AMP202] reason`` speaks of its own line (any line of a finding that spans several),
``# amp-audit: ignore-next-line[AMP202]`` of the next line that holds code, ``# amp-audit: ignore-begin[AMP202]`` and
``# amp-audit: ignore-end[AMP202]`` of all lines between them, ``# amp-audit: ignore-file[AMP202]`` of the whole file.
Rules are given by id or name, several with commas.
"""

from __future__ import annotations

import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from amp_audit.records import record
from amp_audit.rulebook import Rulebook

MARK = "amp-audit:"
_COMMENT = re.compile(r"#\s*amp-audit:\s*(.*)", re.S)
_DIRECTIVE = re.compile(r"ignore(?P<scope>-file|-next-line|-begin|-end)?\s*\[(?P<words>[^\]]*)\]")
_NO_CODE = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT})

EXAMPLE = "write `# amp-audit: ignore[AMP202] reason`"


@record(frozen=True, slots=True)
class Directive:
    """One word of one suppression. ``rule`` is the id it stands for, None for a word that silences nothing at all;
    then ``problem`` says why.

    ``line`` is where the comment stands, ``column`` and ``end_column`` where the word stands in that line, ``first``
    and ``last`` the lines it silences (``last`` None: to the end of the file); all from 1, ``end_column`` exclusive.
    """

    word: str
    rule: str | None
    line: int
    column: int
    end_column: int
    first: int
    last: int | None
    problem: str = ""

    def covers(self, rule: str, first: int, last: int) -> bool:
        """Whether a finding of ``rule`` on the lines ``first`` to ``last`` is silenced."""
        return rule == self.rule and self.first <= last and (self.last is None or first <= self.last)


def directives(text: str, book: Rulebook) -> list[Directive]:
    """The suppressions in the comments of a source, in order."""
    if MARK not in text:
        return []
    comments, code = _scan(text)
    words = [word for line, column, comment in comments for word in _parse(comment, line, column, book)]
    return list(_scoped(words, code))


@record(frozen=True, slots=True)
class _Word:
    """A word as it was written; ``scope`` is what follows ``ignore``, None for what is no suppression at all."""

    text: str
    rule: str | None
    scope: str | None
    line: int
    column: int
    end_column: int


def _parse(comment: str, line: int, column: int, book: Rulebook) -> Iterator[_Word]:
    marked = _COMMENT.match(comment)
    if marked is None:
        return
    match = _DIRECTIVE.match(marked.group(1))
    if match is None:
        text = marked.group(1).split(None, 1)[0] if marked.group(1).strip() else ""
        yield _Word(text, None, None, line, column, column + len(comment))
        return
    offset = column + marked.start(1) + match.start("words")
    for part in re.finditer(r"[^,\s]+", match.group("words")):
        rule = book.find(part.group())
        place = offset + part.start()
        scope = match.group("scope") or ""
        yield _Word(part.group(), rule.id if rule else None, scope, line, place, place + len(part.group()))


def _scoped(words: Iterable[_Word], code: Sequence[int]) -> Iterator[Directive]:
    """Words with the lines they speak of; blocks are paired here. ``code`` are the lines that hold code, ascending."""
    opened: dict[str, Directive] = {}
    for word in words:
        found = Directive(word.text, word.rule, word.line, word.column, word.end_column, word.line, word.line)
        if word.rule is None:
            yield replace(found, problem=f"`{word.text}` names no rule: {EXAMPLE}")
        elif word.scope == "-file":
            yield replace(found, first=1, last=None)
        elif word.scope == "-next-line":
            after = code[bisect_right(code, word.line) :]
            target = after[0] if after else word.line + 1
            yield replace(found, first=target, last=target)
        elif word.scope == "-begin":
            if word.rule in opened:
                yield _useless(found, f"{word.text} is ignored here already, from line {opened[word.rule].line} on")
            else:
                opened[word.rule] = found
        elif word.scope == "-end":
            start = opened.pop(word.rule, None)
            if start is None:
                yield _useless(found, f"no `ignore-begin[{word.text}]` before this `ignore-end`")
            else:
                yield replace(start, last=word.line)
        else:
            yield found
    for start in opened.values():
        yield _useless(start, f"no `ignore-end[{start.word}]` after this `ignore-begin`, so it ignores nothing")


def _useless(directive: Directive, problem: str) -> Directive:
    return replace(directive, rule=None, problem=problem)


def _scan(text: str) -> tuple[list[tuple[int, int, str]], list[int]]:
    """(line, column from 1, text) of the comments, and the lines that hold code."""
    comments: list[tuple[int, int, str]] = []
    code: dict[int, None] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            if token.type == tokenize.COMMENT:
                comments.append((token.start[0], token.start[1] + 1, token.string))
            elif token.type not in _NO_CODE:
                code[token.start[0]] = None
    except (tokenize.TokenError, SyntaxError):
        pass  # syntax of another Python version: what came before it counts
    return comments, list(code)


@record(frozen=True, slots=True)
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


def removal(directive: Directive, line: str) -> tuple[int, int | None] | None:
    """What to take out of the line of a directive so that its word is gone: a column and an end column, from 1.

    The end is None for the line as a whole, its end included. The last word takes the comment along, reason and all.
    None (the result) for a word that names no rule, and for one end of a block.
    """
    head = line[: directive.column - 1]
    if directive.rule is None or re.search(r"ignore-(?:begin|end)\s*\[[^\]]*\Z", head):
        return None
    opened = head.rfind("[") + 1
    closed = line.find("]", directive.end_column - 1)
    words = line[opened : closed if closed >= 0 else None]
    if len([word for word in words.split(",") if word.strip()]) == 1:
        begin = head.rfind("#", 0, head.rfind(MARK))
        kept = line[:begin].rstrip()
        return (len(kept) + 1, len(line) + 1) if kept else (1, None)
    after = re.match(r"\s*,\s*", line[directive.end_column - 1 :])
    if after is not None:
        return directive.column, directive.end_column + after.end()
    return len(head.rstrip(" \t,")) + 1, directive.end_column
