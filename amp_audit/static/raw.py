"""What a static detector returns: a hazard at an ordinal of a module, before positions and suppression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from amp_audit.model import Confidence, Severity
from amp_audit.records import record
from amp_audit.rulebook import Rule


@record(frozen=True, slots=True)
class RawStep:
    """A place that belongs to a finding: a step of the path, or a finding that gave way (``rule`` is its id then)."""

    path: str
    at: int
    text: str
    rule: str | None = None


@record(frozen=True, slots=True)
class RawFinding:
    """A rule met at ordinal ``at`` of the module whose ``ir.Module.path`` is ``path``.

    ``message`` is one line for this place; empty takes the rule's summary. ``severity`` None takes the rule's own.
    ``related`` are the steps that led there, oldest first. ``facts`` are what the detector knew (the merge with a run
    reads them); they take no part in equality.
    """

    rule: Rule = field(compare=False)
    path: str
    at: int
    message: str = ""
    confidence: Confidence = Confidence.HIGH
    severity: Severity | None = None
    related: tuple[RawStep, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> tuple[str, str, int]:
        """One finding per (rule, place)."""
        return (self.rule.id, self.path, self.at)
