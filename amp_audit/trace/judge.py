"""A trace -> what only a run can find, and what a run proves: findings with the verdict ``runtime``.

Two sources: the events, replayed through the state machine that also reads the code, and the numbers, held against
the thresholds of the rules. Which findings of the code a run speaks against is ``merge``'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from amp_audit.hazards import Hazard
from amp_audit.model import Confidence, Evidence, Finding, Location, Related, Subject, Verdict
from amp_audit.rulebook import Rulebook
from amp_audit.trace import across, broken, hot, misuse, ranges
from amp_audit.trace.measures import MEASURES, measured, numbers
from amp_audit.trace.replay import Replay, replay, where
from amp_audit.trace.schema import Place, Trace

_SHOWN = 8
_MEASURES = {**MEASURES, **misuse.MISUSES, **ranges.RANGES, **hot.HOT, **broken.BROKEN}


def findings(traces: Sequence[Trace], book: Rulebook) -> list[Finding]:
    """All findings of a run, worst first; what several ranks show alike is one finding."""
    found: dict[tuple[str, object], Finding] = {}
    for trace in traces:
        for one in _of_process(trace, book):
            key = (one.rule, one.location or one.subject)
            marked = replace(one, evidence=_of_rank(one.evidence, trace.header.rank if len(traces) > 1 else None))
            known = found.get(key)
            found[key] = marked if known is None else replace(known, evidence=(*known.evidence, *marked.evidence))
    found.update({(one.rule, one.subject): one for one in across.disagreements(traces, book)})
    return sorted(_folded(list(found.values()), book), key=lambda one: one.sort_key)


def _of_process(trace: Trace, book: Rulebook) -> Iterable[Finding]:
    played = replay(trace, book)
    for hazard, losers in played.hazards:
        yield _told(hazard, losers, played, trace)
    for rule, detector in book.detectors("runtime", "measure"):
        for target in detector.targets:
            if target != across.RANKS_DISAGREE:
                yield from _MEASURES[target](trace, rule, detector)
    yield from misuse.raised(trace, book)


def _of_rank(evidence: Iterable[Evidence], rank: int | None) -> tuple[Evidence, ...]:
    return tuple(replace(item, rank=rank) for item in evidence)


# Hazards


Seen = Hazard[Location | None]


def _told(hazard: Seen, losers: Iterable[Seen], played: Replay, trace: Trace) -> Finding:
    steps = played.steps[hazard.rule.id, hazard.place]
    path = [_step(place, text) for place, text in hazard.steps]
    return Finding(
        rule=hazard.rule.id,
        name=hazard.rule.name,
        severity=hazard.detector.severity or hazard.rule.severity,
        confidence=Confidence.MEDIUM if hazard.assumed else Confidence.HIGH,
        message=hazard.detector.message or hazard.rule.summary,
        location=hazard.place,
        verdict=Verdict.RUNTIME,
        subject=None if hazard.place is not None else Subject("run", "run"),
        related=tuple(
            Related(loser.place, f"{loser.rule.id} {loser.rule.name}: {loser.detector.message or loser.rule.summary}")
            for loser in losers
            if loser.place is not None
        ),
        evidence=(*path, _often(steps), *_clip_norms(hazard, steps, trace)),
    )


def _step(place: Location | None, text: str) -> Evidence:
    return Evidence("runtime", "step", text, path=place.path if place else None, line=place.line if place else None)


def _often(steps: Sequence[int]) -> Evidence:
    count = len(steps)
    text = f"seen in {count} step{'s' if count > 1 else ''}, first in step {steps[0]}"
    return measured("steps", count, text, unit="steps", steps=steps)


def _clip_norms(hazard: Seen, steps: Sequence[int], trace: Trace) -> list[Evidence]:
    """What a clip saw, and what it should have seen."""
    if hazard.facts.get("gradients") != "scaled":
        return []
    wanted = set(steps)
    for step, number in numbers(trace, "clip"):
        norm, scale, most = (number.values.get(key) for key in ("norm", "scale", "max_norm"))
        if step in wanted and where(number.place or Place()) == hazard.place and norm is not None and scale:
            against = f", clipped to {most:g}" if most is not None else ""
            text = f"gradient norm {norm:.3g} with the loss scale {scale:g} in it, {norm / scale:.3g} without{against}"
            return [measured("gradient_norm", norm, text, steps=[step], at=hazard.place)]
    return []


# One hazard, one finding


def _folded(found: list[Finding], book: Rulebook) -> list[Finding]:
    """A measure that proves exactly one other finding of the run becomes its evidence (``confirmed_by``)."""
    kept = list(found)
    for proof in found:
        able = [one for one in kept if one is not proof and proof.rule in book[one.rule].confirmed_by]
        if len(able) == 1 and _one_cause(proof, able[0]):
            known = able[0]
            kept[kept.index(known)] = replace(known, evidence=(*known.evidence, *_numbers(proof)))
            kept.remove(proof)
    return kept


def _one_cause(proof: Finding, other: Finding) -> bool:
    """Underflow stands where it happens, its cause where the loss went back without a scale: never the same line."""
    if (proof.rule, other.rule) == ("AMP511", "AMP201") or proof.location is None or other.location is None:
        return True
    return (proof.location.path, proof.location.line) == (other.location.path, other.location.line)


def _numbers(proof: Finding) -> tuple[Evidence, ...]:
    """What a finding measured; its message where it has no number."""
    own = tuple(item for item in proof.evidence if item.kind == "number")
    place = proof.location
    return own or (Evidence("runtime", "number", proof.message, path=place.path if place else None),)
