"""The nouns both halves share. Nothing here imports torch or libcst."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_audit.records import record


class Severity(enum.IntEnum):
    """How much a finding matters; ordered, so that ``--fail-on`` is a comparison."""

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        return self.name.lower()

    @property
    def lowered(self) -> Severity:
        """One severity lower; info stays info."""
        return Severity(max(Severity.INFO, self - 1))

    @classmethod
    def from_word(cls, word: str) -> Severity:
        """Raises ``ValueError`` for anything but ``error``, ``warning`` or ``info``."""
        try:
            return cls[word.upper()]
        except KeyError:
            raise ValueError(f"unknown severity {word!r} (error, warning or info)") from None


class Confidence(enum.IntEnum):
    """How sure a finding is: high (all names and the path resolved), medium (one assumption), low."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3

    @property
    def word(self) -> str:
        return self.name.lower()

    @classmethod
    def from_word(cls, word: str) -> Confidence:
        """Raises ``ValueError`` for anything but ``high``, ``medium`` or ``low``."""
        try:
            return cls[word.upper()]
        except KeyError:
            raise ValueError(f"unknown confidence {word!r} (high, medium or low)") from None


class Verdict(enum.Enum):
    """What reading and running together say about a finding (docs/contracts: Verdicts)."""

    STATIC = "static"
    CONFIRMED = "confirmed"
    RUNTIME = "runtime"
    NOT_REPRODUCED = "not-reproduced"
    NOT_EXERCISED = "not-exercised"
    NOT_REACHED = "not-reached"


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A place in a file. Lines and columns count from 1, ends are exclusive, columns are code points.

    In a notebook ``cell`` is the index among all cells (from 0) and ``line`` counts inside that cell.
    """

    path: str
    line: int
    column: int = 1
    end_line: int | None = None
    end_column: int | None = None
    cell: int | None = None


@record(frozen=True, slots=True)
class Related:
    """Another place that belongs to a finding: a step of the path, or a finding that gave way to it."""

    location: Location
    message: str


@record(frozen=True, slots=True)
class Evidence:
    """What supports a finding: a ``step`` of a path through the code, or a measured ``number``."""

    source: str  # "static" | "runtime"
    kind: str  # "step" | "number"
    text: str
    path: str | None = None
    line: int | None = None
    name: str | None = None
    value: float | int | None = None
    unit: str | None = None
    steps: tuple[int, ...] = ()
    rank: int | None = None


@record(frozen=True, slots=True)
class Subject:
    """What a finding without a place speaks of: a parameter, module, scaler, rank or the whole run."""

    kind: str
    name: str


@record(frozen=True, slots=True)
class Edit:
    """Replace the text between two positions; an empty range inserts. Lines count as in ``Location``."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    cell: int | None = None


@record(frozen=True, slots=True)
class Fix:
    safe: bool
    description: str
    edits: tuple[Edit, ...]


@record(frozen=True, slots=True)
class Finding:
    """One hazard at one place, from reading, from running, or from both.

    ``location`` may be None (a parameter whose updates are lost has no line); then ``subject`` names it.
    """

    rule: str
    name: str
    severity: Severity
    confidence: Confidence
    message: str
    location: Location | None
    verdict: Verdict = Verdict.STATIC
    subject: Subject | None = None
    fingerprint: str = ""
    related: tuple[Related, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    fix: Fix | None = None
    note: str = ""  # why the verdict is what it is, in one sentence

    @property
    def sort_key(self) -> tuple[int, str, int, int, str]:
        """Worst first, then by place."""
        where = self.location or Location("~", 0)
        return (-int(self.severity), where.path, where.line, where.column, self.rule)


@record(frozen=True, slots=True)
class Coverage:
    """What was looked at and what was not, so that silence is never mistaken for a clean bill."""

    files_checked: int = 0
    files_skipped: int = 0
    files_failed: int = 0
    notes: tuple[str, ...] = ()
    extra: Mapping[str, object] = field(default_factory=dict)
