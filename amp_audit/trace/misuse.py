"""Calls that torch refuses or misunderstands, as a run shows them: errors by their text, arguments by what became of
them, regions that nothing entered."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from amp_audit.model import Confidence, Finding, Location, Subject
from amp_audit.rulebook import Detector, Rule, Rulebook
from amp_audit.trace.measures import Measure, finding, measured, numbers
from amp_audit.trace.replay import where
from amp_audit.trace.schema import Place, Trace


def raised(trace: Trace, book: Rulebook) -> Iterator[Finding]:
    """Each rule whose ``runtime: {raised: PATTERNS}`` finds the error of an op, or the one that ended the program.

    A pattern is looked for in ``TypeError: message``; of an op's error only the message is known. With ``phase`` only
    errors of that phase count; with ``at: region`` the finding stands where the region was entered last.
    """
    detectors = [(rule, one, re.compile("|".join(one.targets))) for rule, one in book.detectors("runtime", "raised")]
    seen: set[tuple[str, Location | None]] = set()
    for step, number in numbers(trace, "raised"):
        text, place = number.subject or "", where(number.place or Place())
        for rule, detector, pattern in detectors:
            if (rule.id, place) in seen or not pattern.search(text):
                continue
            if detector.options.get("phase", number.phase) != number.phase:
                continue
            seen.add((rule.id, place))
            evidence = measured("raised", 1, f"raised {text}", steps=[step], at=place)
            stands = _entered(trace, step) if detector.at == "region" else place
            yield _at(finding(rule, detector.message or rule.summary, stands, [evidence]), stands)


def _entered(trace: Trace, last: int) -> Location | None:
    """Where a region was entered last, up to a step."""
    events = [row for record in trace.steps if record.step <= last for row in record.events]
    return next((where(row.place) for row in reversed(events) if row.kind == "region_enter"), None)


def _at(found: Finding, place: Location | None) -> Finding:
    return found if place is not None else replace(found, subject=Subject("run", "run"))


_DEVICES = frozenset({"cpu", "cuda", "xpu", "mps", "hpu", "mtia", "ipu", "xla", "maia", "privateuseone", "meta", "npu"})


def scaler_device(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """Scalers whose device is none: with ``named`` a word that names no device, without it something else altogether.

    Backends that register a name of their own are known by an index or by being in the header.
    """
    for record in trace.steps:
        for row in record.events:
            if row.kind != "scaler_new" or row.device is None:
                continue
            word = row.device.partition(":")[0]
            other = word in ("True", "False", "None") or word[:1].isdigit() or word.startswith(("-", "."))
            known = word in _DEVICES or word in trace.header.device
            if known or other == bool(detector.options.get("named")):
                continue
            place = where(row.place)
            state = "on" if row.enabled else "off"
            text = f"the scaler is built with device={row.device} and is {state}"
            evidence = [measured("scaler_device", 1, text, steps=[record.step], at=place)]
            yield _at(finding(rule, detector.message or text, place, evidence), place)


def closures(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """Places where an enabled scaler stepped an optimizer with a closure that went backward within that step."""
    places: dict[Location | None, list[tuple[int, int]]] = {}
    for step, number in numbers(trace, "closure"):
        backwards = int(number.values.get("backwards") or 0)
        if backwards:
            places.setdefault(where(number.place or Place()), []).append((step, backwards))
    for place, seen in places.items():
        (step, backwards), steps = seen[0], [step for step, _ in seen]
        text = f"{backwards} backwards inside scaler.step in step {step}, after its inf check"
        evidence = [measured("backwards", backwards, text, steps=steps, at=place)]
        yield _at(finding(rule, detector.message or text, place, evidence), place)


def dtype_refused(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """Places whose autocast regions are off because the device has no autocast in the dtype they were given."""
    for step, number in numbers(trace, "dtype_refused"):
        place = where(number.place or Place())
        text = f"a region of {number.dtype} is switched off here"
        evidence = [measured("dtype_refused", 1, text, steps=[step], at=place)]
        yield _at(finding(rule, detector.message or text, place, evidence), place)


def never_entered(trace: Trace, rule: Rule, detector: Detector) -> Iterator[Finding]:
    """Places that built autocast regions of which no code entered one, as long as the program was watched.

    Of low confidence by itself: what comes later may enter them. It confirms what was read.
    """
    for step, number in numbers(trace, "region_unused"):
        place = where(number.place or Place())
        built = int(number.values.get("built") or 0)
        text = f"{built} built here in {step} steps, none entered"
        found = finding(rule, detector.message or text, place, [measured("built", built, text, at=place)])
        yield _at(replace(found, confidence=Confidence.LOW), place)


MISUSES: Mapping[str, Measure] = {
    "scaler_device": scaler_device,
    "closures": closures,
    "dtype_refused": dtype_refused,
    "never_entered": never_entered,
}
