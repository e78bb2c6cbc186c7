"""The report for a person at a terminal: findings, worst first, then what the run was like, then what was missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from amp_audit import __version__
from amp_audit.model import Confidence, Evidence, Finding, Location, Severity, Verdict
from amp_audit.report.content import Report, shown_path
from amp_audit.report.layout import STYLES, beginning, flowed, section, show
from amp_audit.report.source import Sources, printable
from amp_audit.report.words import listed, plural, ranges

VERDICTS = {
    Verdict.CONFIRMED: "confirmed by the run",
    Verdict.RUNTIME: "seen in the run",
    Verdict.STATIC: "read in the code",
    Verdict.NOT_REPRODUCED: "not reproduced by the run",
    Verdict.NOT_EXERCISED: "not exercised by the run",
    Verdict.NOT_REACHED: "not reached by the run",
}
MOST_EVIDENCE = 5


def write(report: Report, stream: TextIO, *, verbose: bool = False, quiet: bool = False, color: bool = True) -> None:
    """Render to ``stream``: in colour only on a terminal that wants it, as wide as the terminal is."""
    show(stream, lambda width: _page(report, width, verbose, quiet), color=color, wrap=not quiet)


def _page(report: Report, width: int, verbose: bool, quiet: bool) -> Iterator[RenderableType]:
    if quiet:
        yield from _brief(report)
        yield _verdict(report)
        yield from _fixable(report)
    else:
        yield from _full(report, width, verbose)
        yield _verdict(report)
        yield from _hint(report)


def _full(report: Report, width: int, verbose: bool) -> Iterator[RenderableType]:
    if report.program is not None:
        # The program has printed to the same terminal; here its output ends.
        yield Text(f"\namp-audit {__version__}: {printable(report.target)}\n", style="bold")
    yield from _Findings(report, width, verbose).render()
    if report.summary is not None:
        from amp_audit.report import run  # only where there was one: it takes longer to load than many files to check

        yield from run.sections(report.summary, report.program, report.root, verbose)
    elif report.program is not None:
        yield section("The run", [Text(f"{printable(report.target)}: {report.program.ended}")])
    yield _coverage(report)


def _brief(report: Report) -> Iterator[Text]:
    """One line a finding."""
    for finding in report.findings:
        if finding.severity > Severity.INFO:
            line = f"{_spot(finding, report)}: {finding.severity.word} {finding.rule} {finding.message}"
            yield Text(printable(f"{line} [{finding.verdict.value}]"))


def _spot(finding: Finding, report: Report) -> str:
    place = finding.location
    if place is None:
        return f"{finding.subject.kind} {finding.subject.name}" if finding.subject is not None else report.target
    cell = f":cell {place.cell}" if place.cell is not None else ""
    return f"{shown_path(place.path, report.root)}{cell}:{place.line}:{place.column}"


class _Findings:
    """Renders findings one after the other; why and fix of a rule are told once."""

    def __init__(self, report: Report, width: int, verbose: bool) -> None:
        self._report = report
        self._width = width
        self._verbose = verbose
        self._sources = Sources(report.root, report.texts)
        self._told: set[str] = set()

    def render(self) -> Iterator[RenderableType]:
        for finding in self._report.findings:
            if finding.severity > Severity.INFO or self._verbose:
                yield self._one(finding)
        if not self._verbose:
            yield from _info_line(self._report.findings)

    def _one(self, finding: Finding) -> RenderableType:
        head = Text(finding.severity.word, style=STYLES[finding.severity])
        head.append(f" {finding.rule} ", style="bold").append(finding.name)
        head.append(f"  ({self._standing(finding)})", style="dim")
        where = Text("  --> ", style="blue").append(printable(_spot(finding, self._report)), style="default")
        parts: list[RenderableType] = [head, where]
        if finding.location is not None:
            parts.extend(_code(finding.location, self._sources, self._width))
        parts.append(self._details(finding))
        return Padding(Group(*parts), (0, 0, 1, 0))

    def _standing(self, finding: Finding) -> str:
        words = VERDICTS[finding.verdict]
        # Without a run there is nothing to tell apart, and high confidence is what a reader expects.
        parts = [words] if self._report.summary is not None else []
        if finding.confidence < Confidence.HIGH:
            parts.append(f"{finding.confidence.word} confidence")
        return ", ".join(parts) or words

    def _details(self, finding: Finding) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True, width=6)
        table.add_column(overflow="fold")
        for label, text in self._rows(finding):
            table.add_row(label, printable(text))
        return table

    def _rows(self, finding: Finding) -> Iterator[tuple[str, str]]:
        yield "  what", finding.message
        if finding.note:
            yield "  run", finding.note
        yield from _labelled("  seen", list(_numbers(finding, self._verbose)))
        yield from _labelled("  path", list(self._steps(finding)))
        yield from _labelled("  also", list(self._also(finding)))
        rule = self._report.book.rules.get(finding.rule)
        if rule is not None and finding.rule not in self._told:
            self._told.add(finding.rule)
            yield "  why", flowed(rule.why) if self._verbose else beginning(rule.why)
            yield "  fix", flowed(rule.fix)
        elif finding.fix is not None:
            yield "  fix", finding.fix.description

    def _steps(self, finding: Finding) -> Iterator[str]:
        home = finding.location.path if finding.location is not None else None
        for item in finding.evidence:
            if item.kind == "step" and item.line is not None:
                yield f"{self._place(item.path, item.line, home)}  {item.text}"

    def _also(self, finding: Finding) -> Iterator[str]:
        home = finding.location.path if finding.location is not None else None
        steps = {(item.path, item.line) for item in finding.evidence if item.kind == "step"}
        for item in finding.related:
            if (item.location.path, item.location.line) not in steps:
                yield f"{self._place(item.location.path, item.location.line, home)}  {item.message}"

    def _place(self, path: str | None, line: int, home: str | None) -> str:
        if path is None or path == home:
            return f"line {line}"
        return f"{shown_path(path, self._report.root)}:{line}"


def _labelled(label: str, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines):
        yield (label if number == 0 else ""), line


def _numbers(finding: Finding, verbose: bool) -> Iterator[str]:
    found = [item for item in finding.evidence if item.kind == "number"]
    shown = found if verbose else found[:MOST_EVIDENCE]
    for item in shown:
        yield item.text + _when(item)
    if len(found) > len(shown):
        yield f"and {len(found) - len(shown)} more (--verbose)"


def _when(item: Evidence) -> str:
    parts = []
    if item.steps and item.unit != "steps":  # a count of steps says itself which
        parts.append(f"{'step' if len(item.steps) == 1 else 'steps'} {ranges(item.steps)}")
    if item.rank is not None:
        parts.append(f"rank {item.rank}")
    return f" ({', '.join(parts)})" if parts else ""


def _code(place: Location, sources: Sources, width: int) -> Iterator[Text]:
    """The code line and carets under its span, cut to ``width`` around the span."""
    line = sources.line(place)
    if line is None:
        return
    start = max(place.column - 1, len(line) - len(line.lstrip()))  # where only the line is known, all of its code
    multi = place.end_line not in (None, place.line)
    end = len(line.rstrip()) if multi or place.end_column is None else place.end_column - 1
    margin = f"{place.line:>5} | "
    before, marked, after = (printable(part) for part in (line[:start], line[start:end], line[end:]))
    indent = len(before) - len(before.lstrip())
    before = before[max(0, indent - 4) :]
    room = max(20, width - len(margin) - 1)
    before = _last_cells(before, max(0, room - cell_len(marked)))
    code = Text(margin, style="blue", no_wrap=True, overflow="ellipsis")
    code.append(before, style="default").append(marked, style="bold default").append(after, style="default")
    yield code
    carets = max(1, min(cell_len(marked), room - cell_len(before)))
    under = Text(" " * (len(margin) - 2) + "| ", style="blue", no_wrap=True, overflow="crop")
    yield under.append(" " * cell_len(before)).append("^" * carets, style="bold red")


def _last_cells(text: str, room: int) -> str:
    while cell_len(text) > room:
        text = text[1:]
    return text


def _info_line(findings: Sequence[Finding]) -> Iterator[Text]:
    counts = Counter(f"{f.rule} {f.name}" for f in findings if f.severity is Severity.INFO)
    if counts:
        words = [name if n == 1 else f"{name} ({n})" for name, n in sorted(counts.items())]
        total = plural(sum(counts.values()), "note")
        yield Text(f"{total} not shown (--verbose): {listed(words)}\n", style="dim")


def _coverage(report: Report) -> RenderableType:
    coverage = report.coverage
    lines = [_files(report)]
    if report.summary is not None:
        from amp_audit.report import run

        lines.extend(run.missed(report.summary))
    lines.extend((*coverage.notes, *report.notes))
    if report.hidden:
        lines.append(f"{plural(report.hidden, 'finding')} below the confidence asked for (--min-confidence low)")
    table = Table.grid(padding=(0, 1, 0, 0))
    for line in filter(None, lines):
        table.add_row("-", Text(printable(line)))
    return section("What this covers", [table])


def _files(report: Report) -> str:
    coverage = report.coverage
    if not (coverage.files_checked or coverage.files_skipped or coverage.files_failed):
        return ""
    text = f"{plural(coverage.files_checked, 'file')} read"
    if coverage.files_skipped:
        text += f", {coverage.files_skipped} without a word of mixed precision skipped"
    if coverage.files_failed:
        text += f", {coverage.files_failed} could not be read or parsed"
    return text


def _verdict(report: Report) -> Text:
    counts = {severity: n for severity, n in report.counts().items() if n}
    if report.problem:
        return Text(printable(report.problem), style="bold red")
    failure = f"; the program {report.program.ended}" if report.program and report.program.failed else ""
    if not counts or max(counts) is Severity.INFO:
        return Text(f"{_clean(report)}{failure}.", style="bold red" if failure else "bold green")
    names = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
    text = ", ".join(plural(n, names[severity]) for severity, n in counts.items())
    if report.confirmed() or (report.summary is not None and report.summary.observed):
        text += f"; {report.confirmed()} confirmed by the run"
    return Text(text + failure, style=STYLES[max(counts)])


def _hint(report: Report) -> Iterator[Text]:
    yield from _fixable(report)
    rule = next((f.rule for f in report.findings if f.severity > Severity.INFO), None)
    words = [f"amp-audit explain {rule} tells more of a rule"] if rule is not None else []
    if report.trace_folder is not None:
        words.append(f"the trace is kept in {shown_path(report.trace_folder, report.root)}")
    if words:
        yield Text(printable("; ".join(words)), style="dim")


def _fixable(report: Report) -> Iterator[Text]:
    """What ``--fix`` has done and could do."""
    safe, unsafe = report.fixable()
    words = [f"{plural(report.fixed, 'finding')} fixed"] if report.fixed else []
    if safe:
        words.append(f"{safe} fixable with amp-audit check --fix")
    if unsafe:
        words.append(f"{unsafe}{' more' if safe else ' fixable'} with --unsafe-fixes")
    if words:
        yield Text("; ".join(words), style="dim")


def _clean(report: Report) -> str:
    """What silence covers: a clean verdict without it would be a promise."""
    parts = []
    read, skipped = report.coverage.files_checked, report.coverage.files_skipped
    if read or skipped:
        parts.append(f"{plural(read, 'file')} read" + (f", {skipped} skipped" if skipped else ""))
    if report.summary is not None and report.summary.observed:
        parts.append(f"{plural(report.summary.steps, 'step')} watched")
    elif report.command == "check":
        parts.append("nothing run")
    parts.append(plural(len(report.book), "rule"))
    notes = report.counts()[Severity.INFO]
    if notes:
        parts.append(plural(notes, "note"))
    return f"No errors or warnings: {', '.join(parts)}"
