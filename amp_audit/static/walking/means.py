"""What hazards are made of: what must be in some code for the rules' events to be met there."""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Iterable

from amp_audit.records import record
from amp_audit.rulebook import Rulebook


class Means(enum.IntFlag):
    """What events and hazards are made of, as far as the identifiers of code tell."""

    NONE = 0
    REGION = 1
    SCALER = 2
    BACKWARD = 4
    STEP = 8
    CLIP = 16
    CLEAR = 32
    HANDOVER = 64
    WRITE = 128
    DTYPE = 256
    LEAVE_OUT = 512
    HOOK = 1024
    BUILD = 2048
    UPDATE = 4096
    UNGRADED = 8192
    UNCACHED = 16384
    REPLICAS = 32768
    TRACE = 65536


_OF_SCALERS = frozenset(
    {"unscale", "scale", "update", "scale_read", "descale", "loss_read", "pickle", "backward.scaled", "step.scaler"}
)
_OF_WORDS: dict[str, Means] = {
    "backward": Means.BACKWARD,
    "step": Means.STEP,
    "clip": Means.CLIP,
    "zero_grad": Means.CLEAR,
    "region_enter": Means.REGION,
    "region_exit": Means.REGION,
    "scaler_new": Means.BUILD,
    "thread": Means.HANDOVER,
    "leave_out": Means.LEAVE_OUT | Means.REPLICAS,
    "hook": Means.HOOK,
    "weight_write": Means.WRITE,
    "evaluate": Means.UNGRADED,
    "jit_trace": Means.TRACE,
}
_BACKWARD = Means.BACKWARD
_OF_FACTS: dict[tuple[str, object], Means] = {
    ("region", "live"): Means.REGION,
    ("stale", "step"): Means.REGION | Means.STEP,
    ("stale", "write"): Means.REGION | Means.WRITE,
    ("kept", True): Means.REGION,
    ("blank", True): Means.REGION | Means.UNGRADED,
    ("recast", True): Means.REGION | Means.UNCACHED,
    ("dtype_conflict", True): Means.REGION | Means.DTYPE,
    ("ran", "inside"): Means.REGION,
    ("trained", "inside"): Means.REGION | _BACKWARD,
    ("trained", "outside"): _BACKWARD,
    ("compared", "inside"): Means.REGION | _BACKWARD,
    ("dtypes", "differ"): Means.REGION | _BACKWARD,
    ("after", "backward"): _BACKWARD | Means.SCALER,
    ("gradients", "plain"): _BACKWARD,
    **dict.fromkeys([("gradients", how) for how in ("scaled", "unscaled", "mixed")], _BACKWARD | Means.SCALER),
    ("consumed", True): Means.STEP,
    ("cleared", True): _BACKWARD | Means.CLEAR,
    ("clipped_before", True): Means.CLIP,
    **dict.fromkeys([("after", "step"), ("phase", "stepped"), ("dirty", "stepped")], Means.SCALER | Means.STEP),
    ("dirty", "unscaled"): Means.SCALER,
    **dict.fromkeys([(name, True) for name in ("leftover", "summed", "wiped", "premature")], _BACKWARD),
    **dict.fromkeys([("wasted", how) for how in ("every", "between")], _BACKWARD),
    **dict.fromkeys([(name, True) for name in ("midway", "other_scaler", "shared", "scaler_replaced")], Means.SCALER),
}
"""What must have been there before for a fact to hold; facts that are not here ask for nothing."""


_OF_PAIRS = {
    ("backward", "dtype"): Means.REGION,
    ("scaler_new", "dtype"): Means.DTYPE,
    ("step", "sharded"): Means.SCALER,
    ("step", "blind"): Means.SCALER,
}


def of_word(word: str) -> Means:
    """What an event needs to happen that rules call by this word."""
    found = _OF_WORDS.get(word.partition(".")[0], Means.NONE)
    scaled = word in _OF_SCALERS or word.startswith("backward.scaled")
    return found | Means.SCALER if scaled else found


@record(frozen=True, slots=True)
class Danger:
    """What one rule's event needs; ``mixed``: a region or a scaler as well."""

    needs: Means
    mixed: bool

    def within(self, means: Means) -> bool:
        """Whether code that has these means may come to it."""
        return self.needs & ~means == 0 and (not self.mixed or bool(means & (Means.REGION | Means.SCALER)))


def dangers(book: Rulebook) -> frozenset[Danger]:
    """What the event detectors of a book need at least."""
    found = set()
    for _, detector in book.detectors("static", "event"):
        facts = Means.NONE
        for name, values in detector.when:
            facts |= _common(_OF_FACTS.get((name, value), Means.NONE) for value in values)
        asked = {name for name, _ in detector.when}
        for target in detector.targets:
            needs = of_word(target) | facts
            needs |= functools.reduce(operator.or_, (_asked(name, target) for name in asked), Means.NONE)
            if not target.startswith(("step", "zero_grad")):  # of these the rest may happen in another entry
                needs |= sum((of_word(word) & Means.SCALER for word in detector.anywhere), Means.NONE)
            found.add(Danger(needs, ("mixed", (True,)) in detector.when))
    return frozenset(found)


def _asked(fact: str, target: str) -> Means:
    """What a fact needs that says another thing of each event."""
    kind = target.partition(".")[0]
    return _OF_PAIRS.get((kind, fact), Means.NONE)


def _common(alternatives: Iterable[Means]) -> Means:
    """What all of several alternatives need."""
    return functools.reduce(operator.and_, alternatives)


def used(means: Means) -> Means:
    """A scaler that is built and stepped with is used, whatever it is called."""
    return means | Means.SCALER if means & Means.BUILD and means & (Means.STEP | Means.UPDATE) else means
