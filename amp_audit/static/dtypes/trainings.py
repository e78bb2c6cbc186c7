"""Models that are cast and trained: the rules' ``op: cast`` detectors."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping

from amp_audit.model import Confidence
from amp_audit.rulebook import Detector, Rule, Rulebook
from amp_audit.static.dtypes.matching import filled
from amp_audit.static.dtypes.record import Cast, Record, Training
from amp_audit.static.dtypes.values import HALVES, LOW, Dtypes, rounded
from amp_audit.static.dtypes.walk import Walk
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.source.conditions import Facts, exclude

_NORMED = re.compile(
    r"torchvision\.models\.(\w+\.)*"
    r"(resnet|wide_resnet|resnext|densenet|mobilenet|efficientnet|regnet|shufflenet|googlenet|inception|mnasnet|vgg\w+_bn)"
)
"""Models of torchvision that have BatchNorm."""


def of_casts(walk: Walk, book: Rulebook) -> Iterator[RawFinding]:
    """A finding for each cast model in training that a detector looks for."""
    detectors = [pair for pair in book.detectors("static", "op") if "cast" in pair[1].targets]
    trainings = walk.record.trainings
    for training in sorted(trainings, key=lambda one: _depth(walk, one, trainings)):
        facts = _facts(walk, training)
        if facts is None:
            continue
        for rule, detector in detectors:
            inputs = detector.options.get("inputs")
            dtypes = training.cast.dtypes if inputs is None else training.cast.dtypes & {*inputs, LOW}
            if dtypes and detector.holds(facts):
                yield _finding(walk.record, rule, detector, training, {**facts, "dtype": _spoken(dtypes)})


def _depth(walk: Walk, training: Training, others: Iterable[Training]) -> int:
    """How many other models of the same optimizer hold this one: what stands for the others comes first."""
    cast = training.cast
    around = {one.cast.of for one in others if one.optimizer == training.optimizer and one.cast.of != cast.of}
    return sum(walk.inside(cast.of, model) for model in around)


def _facts(walk: Walk, training: Training) -> dict[str, object] | None:
    """What is known of a cast model in training; None if it is not trained in low precision after all.

    ``float16_scaler``: a scaler steps float16 parameters. ``eps``: what becomes of the optimizer's in the dtype.
    ``region``: parts that are built in low precision for one optimizer are one hazard.
    """
    cast, record = training.cast, walk.record
    if any(walk.inside(cast.of, owner) for owner in record.frozen | record.managed):
        return None
    near = any(
        walk.inside(cast.of, model) or walk.inside(model, cast.of)
        for model, under in record.live_calls.items()
        if _meet(cast, under)
    )
    scaler = _meet(cast, record.scaled.get(training.optimizer, ()))
    together = {"region": ("built", training.optimizer), "op": "this one"} if cast.built else {}
    vanishes = training.eps is not None and training.eps > 0 and rounded(training.eps, "float16") == 0
    return {
        "trained": True,
        "autocast": near,
        "scaler": scaler,
        "float16_scaler": scaler and bool(cast.dtypes & {"float16", LOW}),
        "default": cast.default,
        "eps": "vanishes" if vanishes else "stays",
        "batch_norm": _has_batch_norm(walk, cast.of),
        "restored": training.optimizer in record.restored,
        "value": f"{training.eps:g}" if training.eps is not None else "",
        "made": "built in" if cast.built else "cast to",
        **together,
    }


def _meet(cast: Cast, under: Iterable[Facts]) -> bool:
    """Whether some of these conditions can be where a model is cast."""
    return any(not exclude(cast.under, facts) for facts in under)


def _has_batch_norm(walk: Walk, model: Hashable) -> bool:
    """Whether a model is known to have a BatchNorm that stays as it was cast."""
    if model in walk.record.unsettled:
        return False
    made_by = walk.libraries.get(model, "")
    return _NORMED.match(made_by) is not None or any(layer.op == "batch_norm" for layer in walk.layers(model))


def _spoken(dtypes: Dtypes) -> str:
    return " or ".join(sorted(dtypes - {LOW})) or "low precision"


def _finding(
    record: Record, rule: Rule, detector: Detector, training: Training, facts: Mapping[str, object]
) -> RawFinding:
    place, other = training.cast.place, training.optimizer
    at_optimizer = detector.at in ("optimizer", "restored")
    if at_optimizer:
        other, place = place, other if detector.at == "optimizer" else record.restored[other]
    dtypes = training.cast.dtypes
    unsure = len(dtypes) > 1 or LOW in dtypes or training.cast.assumed
    name = training.cast.name or "the model"
    message = filled(detector.message, {**facts, "name": name})
    text = "its parameters are cast here" if at_optimizer else "its parameters go to this optimizer"
    confidence = Confidence.MEDIUM if unsure else Confidence.HIGH
    if training.cast.default and not dtypes <= HALVES:
        confidence = Confidence.LOW
    return RawFinding(rule, *place, message, confidence, detector.severity, (RawStep(*other, text),), facts)
