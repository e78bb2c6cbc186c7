"""The rules' ``op`` detectors held against the ops that the walk met.

What a detector may ask for, all of which must hold:

``inputs``    the dtypes in which the op computes, after what its region does to it
``takes``     conditions on its tensors, each met by another one: ``dtype``; ``origin`` (region, cast, model, weights,
              loaded); ``last``, the op that computed it; ``assumed``, of a dtype that holds in one setting alone;
              ``foreign``, of the half type that the region does not have;
              ``first``, the one that is written to or comes first; ``upcast``, of
              what was low; ``counted``, computed from ``arange``; ``fitted``, cast to the dtype of another tensor
``lacks``     dtypes that none of its tensors may have
``constant``  a number it is given: ``argument`` (names), and what ``_constant_fits`` knows
``region``    ``live``, ``disabled``, ``policy`` (the op list it is on), ``dtype``
``whole``     whether it reduces all of its tensor
``in_place``  whether it writes into its first tensor
``when``      ``low_precision``: whether the code is part of a program that enters a region or casts a model
``outputs``   whether what models out of sight return counts as low precision; it does not unless said
``loaded``    whether what models return counts that a library loaded in low precision; it does not unless said
``once``      ``region``: what one region shows counts as one hazard, told where it was met first
``at``        where the finding stands: the ``op``, the ``call`` that leads to it from the region, or the ``region``
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence

from amp_audit import policy
from amp_audit.model import Confidence
from amp_audit.records import record
from amp_audit.rulebook import Detector, Rule, Rulebook, RuleError
from amp_audit.static.dtypes import surface
from amp_audit.static.dtypes.record import Place, Record, Use
from amp_audit.static.dtypes.values import HALVES, LOW, Const, Dtypes, Tensor, rounded
from amp_audit.static.raw import RawFinding, RawStep

_KINDS: Mapping[str, type] = {
    "region": dict,
    "constant": dict,
    "inputs": list,
    "takes": list,
    "lacks": list,
    "outputs": bool,
    "loaded": bool,
    "whole": bool,
    "in_place": bool,
}


def of_uses(record: Record, book: Rulebook, low: Container[str]) -> Iterator[RawFinding]:
    """A finding for each op that is what a detector looks for. ``low`` are the modules of programs that run in low
    precision. Raises RuleError for a detector that cannot be used.
    """
    detectors: dict[str, list[tuple[Rule, Detector]]] = {}
    for rule, detector in book.detectors("static", "op"):
        validate(rule, detector)
        for target in detector.targets:
            detectors.setdefault(target, []).append((rule, detector))
    for use in record.met():
        for rule, detector in detectors.get(surface.canonical(use.op), ()):
            found = _match(use, detector)
            if found is not None and detector.holds({"low_precision": use.place[0] in low}):
                yield _finding(rule, detector, use, found)


def validate(rule: Rule, detector: Detector) -> None:
    """Raises RuleError for options of an ``op`` detector that are not of the right kind."""
    for key, kind in _KINDS.items():
        if key in detector.options and not isinstance(detector.options[key], kind):
            word = {dict: "a mapping", list: "a list", bool: "true or false"}[kind]
            raise RuleError(f"{rule.id}: `{key}` of an `op` detector must be {word}")
    if detector.at not in (None, "op", "call", "region", "optimizer", "restored"):
        raise RuleError(f"{rule.id}: `at` of an `op` detector must be op, call, region, optimizer or restored")


@record(frozen=True, slots=True)
class _Match:
    """``guessed``: it rests on what a model out of sight is taken to return. ``by``: what made the tensor low.
    ``loaded``: it is what such a model returns in the dtype of its weights.
    """

    dtype: str
    constant: Const | None
    sure: bool
    guessed: bool = False
    by: str = ""
    loaded: bool = False


def _match(use: Use, detector: Detector) -> _Match | None:
    """Whether an op is what a detector looks for."""
    options = detector.options
    if not _region_fits(use, options.get("region")) or not _form_fits(use, options):
        return None
    taken = _taken(use, options.get("takes", ()))
    if taken is None or any(tensor.dtypes & {*options.get("lacks", ())} for tensor in use.tensors):
        return None
    guessed = any(tensor.origin == "model" for tensor in taken) or ("inputs" in options and use.origin == "model")
    loaded = any(tensor.origin == "loaded" for tensor in taken) or ("inputs" in options and use.origin == "loaded")
    if (guessed and not options.get("outputs")) or (loaded and not options.get("loaded")):
        return None
    found = _computing(use, detector)
    if found is None:
        return None
    halves = [name for tensor in taken for name in sorted(tensor.dtypes & HALVES)]
    sure = found.sure and all(_surely(tensor.dtypes, wanted) for tensor, wanted in zip(taken, options.get("takes", ())))
    dtype = halves[0] if "inputs" not in options and halves else found.dtype
    by = next((tensor.by for tensor in taken if tensor.low and tensor.by), "the model" if guessed else use.by)
    return _Match("float16" if dtype == LOW else dtype, found.constant, sure, guessed, by, loaded)


def _form_fits(use: Use, options: Mapping[str, object]) -> bool:
    in_place = surface.in_place(use.op)
    return options.get("whole", use.scalar) is use.scalar and options.get("in_place", in_place) is in_place


def _surely(dtypes: Dtypes, wanted: Mapping[str, object]) -> bool:
    """Whether a tensor has one of the dtypes looked for on every path."""
    names = wanted.get("dtype")
    return dtypes <= _with_either(names) if isinstance(names, list) else len(dtypes) == 1 and LOW not in dtypes


def _with_either(names: Sequence[str]) -> frozenset[str]:
    """Dtypes, and what is either half type if both are among them."""
    return frozenset(names) | ({LOW} if {*names} >= HALVES - {LOW} else set())


def _computing(use: Use, detector: Detector) -> _Match | None:
    """Whether the dtype in which an op computes, and its constants, are those looked for."""
    wanted = detector.options.get("inputs")
    dtypes = [*use.computes] if wanted is None else [dtype for dtype in use.computes if dtype in wanted or dtype == LOW]
    constant = detector.options.get("constant")
    sure = len(use.computes) == 1 and LOW not in use.computes
    if constant is None:
        sure = sure or wanted is None or use.computes <= _with_either(wanted)
        return next((_Match("float16" if dtype == LOW else dtype, None, sure) for dtype in sorted(dtypes)), None)
    for dtype in sorted(dtypes):
        concrete = "float16" if dtype == LOW else dtype
        for name, value in use.numbers or _unknown(constant):
            if _constant_fits(name, value, constant, concrete):
                return _Match(concrete, value if use.numbers else None, sure)
    return None


def _unknown(wanted: Mapping[str, object]) -> tuple[tuple[str, Const], ...]:
    """What stands for a number that the code does not tell: ``unless_known`` says that it is taken to be large."""
    return (("end", Const.of(math.inf)),) if wanted.get("unless_known") else ()


def _taken(use: Use, wanted: Sequence[Mapping[str, object]]) -> list[Tensor] | None:
    """The tensors that meet the conditions, one for each; None if some condition is not met."""
    left = [*use.tensors]
    found: list[Tensor] = []
    for condition in wanted:
        tensor = next((tensor for tensor in left if _tensor_fits(tensor, condition, use)), None)
        if tensor is None:
            return None
        found.append(tensor)
        left.remove(tensor)
    return found


def _tensor_fits(tensor: Tensor, wanted: Mapping[str, object], use: Use) -> bool:
    for key, value in wanted.items():
        values = value if isinstance(value, list) else [value]
        if key == "dtype" and not tensor.dtypes & {*values, *((LOW,) if HALVES & {*values} else ())}:
            return False
        if key == "origin" and tensor.origin not in values:
            return False
        if key == "last" and tensor.last not in values:
            return False
        if key == "upcast" and bool(tensor.by) is not value:
            return False
        if key in ("counted", "fitted") and getattr(tensor, key) is not value:
            return False
        if key == "first" and (tensor is use.tensors[0]) is not value:
            return False
        if key == "assumed" and tensor.assumed is not value:
            return False
        if key == "foreign" and _is_foreign(tensor, use) is not value:
            return False
    return True


def _is_foreign(tensor: Tensor, use: Use) -> bool:
    """Whether a tensor surely has the half type that the region does not have; of one that it is only taken to run in
    the dtype is another program's, perhaps.
    """
    halves = HALVES - {LOW}
    region = use.region.dtypes if use.region is not None and not use.region.assumed else frozenset()
    known = len(region) == len(tensor.dtypes) == 1 and not tensor.assumed
    return known and region != tensor.dtypes and region | tensor.dtypes == halves


def _region_fits(use: Use, wanted: Mapping[str, object] | None) -> bool:
    region = use.region
    live = region is not None and region.live
    for key, value in (wanted or {}).items():
        if key == "live" and live is not value:
            return False
        if key == "disabled" and (region is not None and not live) is not value:
            return False
        if key == "dtype" and (region is None or not live or region.dtypes != {value}):
            return False
        if key == "policy" and (region is None or not live or _listed_as(use.op, region.device) != value):
            return False
    return True


def _listed_as(op: str, device: str) -> str | None:
    """The op list that an op is on. What writes into its tensor is on none."""
    return None if surface.in_place(op) and surface.canonical(op) != op else surface.kind_of(op, device)


def _constant_fits(name: str, value: Const, wanted: Mapping[str, object], dtype: str) -> bool:
    """``argument`` (names), ``beyond: finfo.max`` (finite, yet larger than the dtype holds), ``reaches: finfo.max``
    (as large as it holds), ``at_least`` (a number), ``power_of_two`` (false: it is none), ``inexact: integers`` (beyond
    those that the dtype holds all of), ``rounds_to`` (another number than itself, in the dtype)."""
    number = value.number
    arguments = wanted.get("argument")
    if number is None or (isinstance(arguments, list) and name not in arguments):
        return False
    largest = policy.MAX_FINITE.get(dtype, math.inf)
    if wanted.get("beyond") == "finfo.max":
        return math.isfinite(number) and abs(number) > largest
    if wanted.get("reaches") == "finfo.max":
        return math.isfinite(number) and abs(number) == largest
    if "at_least" in wanted:
        return number >= float(str(wanted["at_least"]))
    if "power_of_two" in wanted:
        return (math.frexp(abs(number))[0] == 0.5) is wanted["power_of_two"]
    if "inexact" in wanted:
        return abs(number) > 2.0 ** {"float16": 11, "bfloat16": 8}.get(dtype, 53)
    target = wanted.get("rounds_to")
    return dtype in HALVES and number != target and rounded(number, dtype) == target


def _finding(rule: Rule, detector: Detector, use: Use, match: _Match) -> RawFinding:
    assumed = use.assumed or match.guessed or (match.constant is not None and match.constant.assumed)
    confidence = Confidence.LOW if not match.sure else Confidence.MEDIUM if assumed else Confidence.HIGH
    number = match.constant.number if match.constant is not None else None
    facts: dict[str, object] = {"op": use.op, "dtype": match.dtype, "by": match.by or "a cast", "constant": number}
    if detector.options.get("once") == "region":
        facts["region"] = use.entry
    if use.region is not None and use.region.assumed:
        facts["assumed"] = f"that the code runs under the project's {match.dtype} autocast"
    value = f"{number:g}" if number is not None else ""
    op = (use.joins or use.op).removesuffix("_")
    message = filled(detector.message, {**facts, "value": value, "op": op})
    if message and match.guessed:
        message += ", assuming that the model ends in an op that autocast lowers"
    elif message and match.loaded and assumed:
        message += ", assuming that the model returns the dtype of its weights"
    elif message and assumed and use.region is not None and use.region.assumed:
        message += ", assuming that it runs in the project's autocast region"
    place, related = _stands(use, detector)
    return RawFinding(rule, *place, message, confidence, detector.severity, related, facts)


def _stands(use: Use, detector: Detector) -> tuple[Place, tuple[RawStep, ...]]:
    """Where a finding stands, and what led there or comes of it."""
    if use.after:
        return use.place, tuple(RawStep(*place, text) for text, place in use.after)
    place = {"call": use.call, "region": use.entry}.get(detector.at or "op") or use.place
    if place == use.place:
        return place, ()
    return place, (RawStep(*use.place, f"{use.op.removesuffix('_')} is computed here"),)


def filled(message: str, facts: Mapping[str, object]) -> str:
    """``message`` with ``{word}`` replaced where it is a fact; other braces are left alone."""
    return re.sub(r"\{(\w+)\}", lambda found: str(facts.get(found[1], found[0])), message)
