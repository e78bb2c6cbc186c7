"""What reading gives its findings and a run cannot: fingerprints, and the comments that silence a rule.

For findings of a run, from the source file as it lies there now; a file that is gone leaves them as they are.
"""

from __future__ import annotations

import ast
import os
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from amp_audit.model import Finding, Location
from amp_audit.rulebook import Rulebook
from amp_audit.static.findings import fingerprint, tokens
from amp_audit.static.source.selection import path_in_project
from amp_audit.static.source.suppress import Directive, Spot, directives, silenced


@dataclass(frozen=True, slots=True)
class _Source:
    """One file. ``statements``: each with the qualified name of the definition around it, outer ones first."""

    inside: str
    text: str
    directives: Sequence[Directive]
    statements: Sequence[tuple[ast.stmt, str]]

    def around(self, line: int) -> tuple[str, str]:
        """The qualified name of the definition around a line, and the innermost statement there, without its body."""
        found = [(node, name) for node, name in self.statements if node.lineno <= line <= (node.end_lineno or line)]
        if not found:
            return "", ""
        node, name = found[-1]
        body = getattr(node, "body", None)
        last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
        return name, "\n".join(self.text.split("\n")[node.lineno - 1 : last]).strip()


def finish(findings: Iterable[Finding], book: Rulebook) -> list[Finding]:
    """``findings`` of a run without those that a comment in the source silences, each with a fingerprint."""
    sources: dict[str, _Source | None] = {}
    seen: Counter[tuple[str, ...]] = Counter()
    kept = []
    for finding in findings:
        place = finding.location
        if place is not None and place.path not in sources:
            sources[place.path] = _read(place.path, book)
        source = sources[place.path] if place is not None else None
        if source is not None and place is not None and _is_silenced(finding, place, source):
            continue
        known = _known_by(finding, source)
        kept.append(replace(finding, fingerprint=fingerprint(known[0], finding.rule, *known[1:], seen[known])))
        seen[known] += 1
    return kept


def _is_silenced(finding: Finding, place: Location, source: _Source) -> bool:
    flags, _ = silenced([Spot(finding.rule, place.line, place.end_line or place.line)], source.directives)
    return flags[0]


def _known_by(finding: Finding, source: _Source | None) -> tuple[str, str, str]:
    """Path, definition and statement; for what has no place in a source, its subject."""
    if source is not None and finding.location is not None:
        name, text = source.around(finding.location.line)
        return source.inside, name, tokens(text)
    if finding.location is not None:
        return os.path.basename(finding.location.path), "", str(finding.location.line)
    subject = finding.subject
    return ("", subject.kind, subject.name) if subject is not None else ("", "", "")


def _read(path: str, book: Rulebook) -> _Source | None:
    try:
        with tokenize.open(path) as file:
            text = file.read()
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    return _Source(path_in_project(path), text, directives(text, book), list(_statements(tree.body, "", "")))


def _statements(body: Iterable[ast.stmt], name: str, prefix: str) -> Iterator[tuple[ast.stmt, str]]:
    for node in body:
        yield node, name
        inner, before = name, prefix
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner, before = f"{prefix}{node.name}", f"{prefix}{node.name}.<locals>."
        elif isinstance(node, ast.ClassDef):
            inner, before = f"{prefix}{node.name}", f"{prefix}{node.name}."
        for part in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(node, part, ()), inner, before)
        for case in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from _statements(case.body, inner, before)
