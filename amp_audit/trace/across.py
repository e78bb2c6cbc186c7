"""What only several ranks together show: AMP708."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from amp_audit.model import Evidence, Finding, Subject
from amp_audit.rulebook import Rulebook
from amp_audit.trace.measures import finding, measured, numbers
from amp_audit.trace.schema import Trace

RANKS_DISAGREE = "ranks_disagree"
_SHOWN = 8

Updates = dict[tuple[int, str, int], tuple[float | int | None, bool]]
"""By step, scaler and how many updates came before in the step: the scale, and whether the step was skipped."""


def disagreements(traces: Sequence[Trace], book: Rulebook) -> Iterator[Finding]:
    """Steps in which one rank scaled by another factor than the others, or skipped where they did not.

    Only of ranks of one job (world size and program agree), and of steps that all of them have written.
    """
    rules = [rule for rule, one in book.detectors("runtime", "measure") if RANKS_DISAGREE in one.targets]
    jobs: dict[tuple[int, tuple[str, ...]], list[Trace]] = defaultdict(list)
    for trace in traces:
        if trace.header.world_size > 1 and trace.steps:
            jobs[trace.header.world_size, trace.header.argv].append(trace)
    for rule in rules:
        for job in jobs.values():
            made = [(trace.header.rank, _updates(trace)) for trace in job]
            evidence = list(_differing(made)) if len(made) > 1 else []
            if evidence:
                ranks = sorted({item.rank for item in evidence if item.rank is not None})
                first = evidence[0]
                message = f"ranks do not take the same steps: {first.text}"
                found = finding(rule, message, None, evidence[: 2 * _SHOWN])
                yield replace(found, subject=Subject("rank", ", ".join(map(str, ranks))))


def _updates(trace: Trace) -> Updates:
    found: Updates = {}
    for step, number in numbers(trace, "scale"):
        key = next((step, number.subject or "scaler", n) for n in range(10**6) if _free(found, step, number.subject, n))
        found[key] = (number.values.get("before"), bool(number.values.get("skipped")))
    return found


def _free(found: Updates, step: int, subject: str | None, index: int) -> bool:
    return (step, subject or "scaler", index) not in found


def _differing(made: Sequence[tuple[int, Updates]]) -> Iterator[Evidence]:
    """Each rank that does not do what the lowest one does, at the first step of each kind of difference."""
    (lowest, reference), *others = sorted(made, key=lambda item: item[0])
    for rank, updates in others:
        told: set[str] = set()
        for key in sorted(reference.keys() & updates.keys()):
            (scale, skipped), (other, also) = reference[key], updates[key]
            for name, differs, text in (
                ("skipped", skipped != also, f"rank {rank if also else lowest} skipped step {key[0]} of {key[1]}"),
                ("scale", scale != other, f"step {key[0]}: {scale} on rank {lowest}, {other} on rank {rank}"),
            ):
                if differs and name not in told:
                    told.add(name)
                    value = int(also) if name == "skipped" else other
                    item = measured(name, 0 if value is None else value, text, steps=[key[0]])
                    yield replace(item, rank=rank)
