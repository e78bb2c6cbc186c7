"""Raw findings -> findings as reports show them: positions, steps, fingerprints, suppression."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from amp_audit.model import Confidence, Edit, Evidence, Finding, Fix, Location, Related, Severity
from amp_audit.rulebook import Rule, Rulebook
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.source import ir
from amp_audit.static.source.position import Position
from amp_audit.static.source.selection import path_in_project
from amp_audit.static.source.sources import Source, Unreadable
from amp_audit.static.source.suppress import Directive, Spot, directives, removal, silenced
from amp_audit.static.source.traverse import bodies

UNREADABLE = "AMP001"
UNUSED = "AMP002"

_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    r"|(?P<gap>#[^\n]*|\s+|\\\r?\n)|\w+|[^\w\s]",
    re.S,
)


class File:
    """One lowered file, with what findings in it need; positions are computed when first asked for."""

    def __init__(self, source: Source, module: ir.Module) -> None:
        self.source = source
        self.module = module
        self.inside = path_in_project(source.path)

    @cached_property
    def _positions(self) -> Callable[[int], Position]:
        from amp_audit.static.source.lowering import positions

        return positions(self.source.text)

    def position(self, at: int) -> Position:
        """Where an ordinal stands in the text."""
        return self._positions(at)

    def location(self, at: int) -> Location:
        """Where an ordinal stands in the file, or in a cell of the notebook."""
        place = self._positions(at)
        cell, line = self.source.place(place.line)
        _, end_line = self.source.place(place.end_line)
        column = self.source.column(place.line, place.column)
        end_column = self.source.column(place.end_line, place.end_column)
        return Location(self.source.path, line, column, end_line, end_column, cell)

    @cached_property
    def _statements(self) -> tuple[list[int], list[str]]:
        """The ordinals of all statements, ascending, and the qualified name of the definition each lies in."""
        found = sorted(_statements(self.module.body, ""))
        return [at for at, _ in found], [name for _, name in found]

    def holder(self, at: int) -> int:
        """The ordinal of the statement that holds an ordinal."""
        ordinals, _ = self._statements
        return ordinals[max(0, bisect_right(ordinals, at) - 1)]

    def statement(self, at: int) -> tuple[str, str]:
        """The qualified name of the definition around an ordinal, and the text of the statement that holds it."""
        ordinals, names = self._statements
        index = max(0, bisect_right(ordinals, at) - 1)
        return names[index], self.text(self.position(ordinals[index]))

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text, without their ends."""
        return re.split(r"\r\n|\r|\n", self.source.text)

    def text(self, place: Position) -> str:
        """The source of a range."""
        lines = self.lines[place.line - 1 : place.end_line]
        lines[-1] = lines[-1][: place.end_column - 1]
        lines[0] = lines[0][place.column - 1 :]
        return "\n".join(lines)


def _statements(body: Iterable[ir.Stmt], inside: str) -> Iterable[tuple[int, str]]:
    for node in body:
        yield node.at, inside
        if isinstance(node, (ir.Function, ir.Class)):
            yield from _statements(node.body, node.qualname)
        elif isinstance(node, ir.Try):
            yield from ((handler.at, inside) for handler in node.handlers)
        for inner in bodies(node):
            yield from _statements(inner, inside)


Repair = Callable[[RawFinding, File], Fix | None]
"""What builds the repair of a finding in its file."""


def tokens(text: str) -> str:
    """The tokens of a piece of source, without comments and white space: the same for every layout of it."""
    return " ".join(match.group() for match in _TOKEN.finditer(text) if match.group("gap") is None)


def present(
    raws: Iterable[RawFinding],
    files: Mapping[str, File],
    asked: Mapping[str, frozenset[str]],
    book: Rulebook,
    repair: Repair,
) -> list[Finding]:
    """Findings in the files ``asked`` for, without those that comments silence, with AMP002 for idle comments.

    ``asked`` has for each file the rules in force: a comment that silences another one may be of use elsewhere.
    ``repair`` builds what mends a finding.
    """
    by_path: dict[str, list[RawFinding]] = {path: [] for path in files if path in asked}
    for raw in _unique(raws):
        if raw.path in by_path:
            by_path[raw.path].append(raw)
    return [
        one for path, own in by_path.items() for one in _of_file(files[path], own, files, book, asked[path], repair)
    ]


def settle(groups: Sequence[Sequence[RawFinding]]) -> list[RawFinding]:
    """The findings of several detectors as one list: a rule gives way to those it yields to, in the same file.

    Within one detector's findings that is settled already, by what they speak of. The winner is told of the loser.
    """
    kept: list[RawFinding] = []
    told: dict[int, list[RawStep]] = {}
    winners = [raw for group in groups for raw in group]
    for group in groups:
        for raw in group:
            better = next((w for w in winners if w.rule.id in raw.rule.yields_to and _beats(w, raw, group)), None)
            if better is None:
                kept.append(raw)
            else:
                told.setdefault(id(better), []).append(RawStep(raw.path, raw.at, raw.rule.summary, raw.rule.id))
    return [replace(raw, related=(*raw.related, *told.get(id(raw), ()))) for raw in kept]


def _beats(winner: RawFinding, loser: RawFinding, group: Sequence[RawFinding]) -> bool:
    return winner.path == loser.path and not any(winner is own for own in group)


def _unique(raws: Iterable[RawFinding]) -> list[RawFinding]:
    """One finding per (rule, place): the surest, of these the worst."""
    kept: dict[tuple[str, str, int], RawFinding] = {}
    for raw in raws:
        if raw.key not in kept or _weight(raw) > _weight(kept[raw.key]):
            kept[raw.key] = raw
    return list(kept.values())


def _weight(raw: RawFinding) -> tuple[Confidence, Severity]:
    return raw.confidence, raw.rule.severity if raw.severity is None else raw.severity


def _of_file(
    file: File,
    raws: list[RawFinding],
    files: Mapping[str, File],
    book: Rulebook,
    run: frozenset[str],
    repair: Repair,
) -> list[Finding]:
    raws = sorted(raws, key=lambda raw: (raw.at, raw.rule.id))
    spots = [Spot(raw.rule.id, place.line, place.end_line) for raw in raws for place in (file.position(raw.at),)]
    flags, idle = silenced(spots, directives(file.source.text, book))
    seen: Counter[tuple[str, str, str]] = Counter()
    found = []
    for raw, is_silenced in zip(raws, flags):
        name, text = file.statement(raw.at)
        same = (raw.rule.id, name, tokens(text))
        seen[same] += 1
        if not is_silenced:
            mark = fingerprint(file.inside, *same, seen[same] - 1)
            found.append(replace(_finding(raw, file, files, mark), fix=repair(raw, file)))
    if UNUSED in book.rules and UNUSED in run:
        found += [_idle(directive, file, book) for directive in idle if _was_run(directive.rule, book, run)]
    return found


def _was_run(rule: str | None, book: Rulebook, run: frozenset[str]) -> bool:
    """Whether reading could have found the rule here; what names no rule never silences anything."""
    return rule is None or (rule in run and bool(book[rule].static))


def fingerprint(path: str, rule: str, qualname: str, statement: str, ordinal: int) -> str:
    """What a finding is known by when lines move: ``path`` from the project root, ``statement`` as tokens."""
    return hashlib.sha256("\0".join((rule, path, qualname, statement, str(ordinal))).encode()).hexdigest()


def _finding(raw: RawFinding, file: File, files: Mapping[str, File], mark: str) -> Finding:
    steps = [(step, files[step.path].location(step.at)) for step in raw.related if step.path in files]
    return Finding(
        rule=raw.rule.id,
        name=raw.rule.name,
        severity=raw.rule.severity if raw.severity is None else raw.severity,
        confidence=raw.confidence,
        message=raw.message or raw.rule.summary,
        location=file.location(raw.at),
        fingerprint=mark,
        related=tuple(Related(place, _text(step)) for step, place in steps),
        evidence=tuple(
            Evidence("static", "step", step.text, place.path, place.line) for step, place in steps if step.rule is None
        ),
    )


def _text(step: RawStep) -> str:
    return step.text if step.rule is None else f"{step.rule}: {step.text}"


def _idle(directive: Directive, file: File, book: Rulebook) -> Finding:
    rule = book[UNUSED]
    cell, line = file.source.place(directive.line)
    column, end_column = (file.source.column(directive.line, each) for each in (directive.column, directive.end_column))
    place = Location(file.source.path, line, column, line, end_column, cell)
    message = directive.problem or f"nothing for {directive.word} to ignore here"
    mark = fingerprint(file.inside, UNUSED, "", directive.word, directive.line)
    return replace(_tool_finding(rule, message, place, mark), fix=_without(directive, file))


def _without(directive: Directive, file: File) -> Fix | None:
    """Taking an idle word out; what is misspelt, or half of a pair, is not for us to delete."""
    place = removal(directive, file.lines[directive.line - 1])
    if place is None:
        return None
    begin, end = place
    cell, line = file.source.place(directive.line)
    end_line = line if end is not None else line + 1
    edit = Edit(file.source.path, line, begin, end_line, end or 1, "", cell)
    return Fix(True, f"take {directive.word} out of the comment", (edit,))


def unreadable(path: str, error: Unreadable, book: Rulebook) -> Finding:
    """AMP001 for a file, or a cell of a notebook, of which nothing is known."""
    place = Location(path, error.line, error.column, cell=error.cell)
    mark = fingerprint(path_in_project(path), UNREADABLE, "", str(error.cell), 0)
    return _tool_finding(book[UNREADABLE], str(error), place, mark)


def _tool_finding(rule: Rule, message: str, place: Location, mark: str) -> Finding:
    return Finding(rule.id, rule.name, rule.severity, Confidence.HIGH, message, place, fingerprint=mark)
