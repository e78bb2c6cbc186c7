"""What one place gives away: the rules' ``call``, ``constant`` and ``config`` detectors, and the ``check`` functions.

A ``call`` detector names what is called, canonically; a method of a GradScaler of any kind is
``torch.amp.GradScaler.<method>``, and calling one is ``torch.amp.GradScaler.__call__``. Scalers that are disabled by a
literal are left alone. Its conditions:

``arguments``
    parameter -> conditions, all of which must hold: ``kind`` (``Origins.kinds``), ``given`` (true or false),
    ``keyword`` (true: given by its name), ``values`` (literals, or canonical dotted names), ``at_most`` and
    ``at_least`` (of a number known from literals alone).
``when``
    facts of the site (``facts.Facts``).

A ``constant`` detector names a setting of a library, as an attribute of its module; the ``value`` in its ``when`` are
the literals that may not be assigned to it. An attribute of ``torch.amp.GradScaler`` stands for reading it off one,
outside any test that asks whether mixed precision is on; ``switchable`` says whether an argument can turn that scaler
off, ``portable`` whether the module that builds it also runs without CUDA.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from amp_audit.model import Confidence
from amp_audit.rulebook import Detector, Rule, Rulebook
from amp_audit.static.binding.origins import Origins, Where
from amp_audit.static.binding.project import Project, Scope
from amp_audit.static.binding.signatures import UNSURE, argument
from amp_audit.static.raw import RawFinding, RawStep
from amp_audit.static.source import ir
from amp_audit.static.source.literals import number
from amp_audit.static.source.traverse import last_word, statements, statements_saying
from amp_audit.static.spots.configs import Configs
from amp_audit.static.spots.devices import Choices, is_disabled
from amp_audit.static.spots.facts import Facts, uses_low_precision
from amp_audit.static.spots.internals import unguarded
from amp_audit.static.spots.sites import Site, sites

Check = Callable[[Rule, Detector, ir.Module, Project, Origins], Iterator[RawFinding]]

_SCALER = "torch.amp.GradScaler"
_METHODS = frozenset({"scale", "step", "update", "unscale_", "backward"})


def find(project: Project, book: Rulebook, asked: Container[str] | None = None) -> tuple[list[RawFinding], list[str]]:
    """Findings of all ``call`` and ``check`` detectors in the files asked for (None: in all), and a note for each
    module in which one failed.
    """
    calls, configs = _Calls(project, book), Configs(project, book)
    settings = _Settings(project, book, calls.origins, calls.choices)
    checks = [(rule, detector, _function(detector)) for rule, detector in book.detectors("static", "check")]
    found: list[RawFinding] = []
    notes: list[str] = []
    for module in project.modules.values():
        if asked is not None and module.path not in asked:
            continue
        try:
            found += calls.of(module)
            found += settings.of(module)
            found += configs.of(module)
            for rule, detector, check in checks:
                found += check(rule, detector, module, project, calls.origins)
        except Exception as error:  # one strange module must not cost the others their findings
            notes.append(f"{module.path}: internal error in the patterns: {type(error).__name__}: {error}")
    return found, notes


def _function(detector: Detector) -> Check:
    """The function that a ``check`` detector names as ``module:function``."""
    module, _, name = detector.targets[0].partition(":")
    found: Check = getattr(importlib.import_module(module), name)
    return found


class _Calls:
    """The ``call`` detectors of a rulebook, ready to be held against modules."""

    def __init__(self, project: Project, book: Rulebook) -> None:
        self.project = project
        self.origins = Origins(project)
        self.choices = Choices()
        self._by_target: dict[str, list[tuple[Rule, Detector]]] = {}
        for rule, detector in book.detectors("static", "call"):
            for target in detector.targets:
                self._by_target.setdefault(target, []).append((rule, detector))
        self._words = _spellings({target.rpartition(".")[2] for target in self._by_target}, project)
        self._has_scalers = any("GradScaler" in word for module in project.modules.values() for word in module.words)

    def of(self, module: ir.Module) -> Iterator[RawFinding]:
        """Findings in one module."""
        # A scaler built elsewhere is still called one where it is used; looking for others is a walk over every call.
        may_scale = self._has_scalers and any("scaler" in word.lower() for word in module.words)
        if self._words.isdisjoint(module.words) and not may_scale:
            return
        for site in map(self._with_keywords, sites(module)):
            name = self._name(site, may_scale)
            facts = None
            for rule, detector in self._by_target.get(name, ()) if name else ():
                facts = facts or Facts(site, self.project, self.origins, self.choices)
                finding = self._match(rule, detector, site, name or "", facts)
                if finding is not None:
                    yield finding

    def _with_keywords(self, site: Site) -> Site:
        """A site whose call has the keywords of the dicts that it unpacks."""
        call = self.origins.unpacked(site.call, site.where)
        return site if call is site.call else replace(site, call=call)

    def _name(self, site: Site, may_scale: bool) -> str | None:
        """What a site calls, as targets name it; methods of scalers only with ``may_scale``."""
        where, func = site.where, site.call.func
        word = last_word(func)
        if word in self._words:
            name = self.project.called(where.module, func, where.scope)
            if name is not None:
                return name
        if not may_scale:
            return None
        if isinstance(func, ir.Attr) and word in _METHODS and self._is_live_scaler(func.base, site):
            return f"{_SCALER}.{word}"
        plain = isinstance(func, ir.Name) or (isinstance(func, ir.Attr) and self.origins.is_self(func.base, where))
        return f"{_SCALER}.__call__" if plain and not site.bare and self._is_live_scaler(func, site) else None

    def _is_live_scaler(self, expr: ir.Expr, site: Site) -> bool:
        made = self.origins.constructors(expr, site.where)
        return made is not None and not any(is_disabled(call) for call, _ in made)

    def _match(self, rule: Rule, detector: Detector, site: Site, name: str, facts: Facts) -> RawFinding | None:
        sure = True
        for param, wanted in detector.options.get("arguments", {}).items():
            verdict = self._argument(param, wanted, site, name)
            if verdict is None:
                return None
            sure = sure and verdict
        if not detector.holds(facts):
            return None
        message = detector.message.replace("{name}", name) if detector.message else ""
        confidence = Confidence.HIGH if sure and facts.sure else Confidence.MEDIUM
        if "confidence" in detector.options:
            confidence = min(confidence, Confidence.from_word(detector.options["confidence"]))
        return RawFinding(rule, site.where.module.path, site.at, message, confidence, detector.severity)

    def _argument(self, param: str, wanted: Mapping[str, Any], site: Site, name: str) -> bool | None:
        """Whether an argument meets its conditions surely (True) or by its name (False); None when it does not."""
        given = argument(site.call, param, name)
        if given is UNSURE:
            return None
        if "given" in wanted and wanted["given"] is not (given is not None):
            return None
        if wanted.get("keyword") and not (isinstance(given, ir.Arg) and given.keyword == param):
            return None
        if not wanted.keys() & {"kind", "values", "at_most", "at_least"}:
            return True
        if not isinstance(given, ir.Arg):
            return None
        sure = True
        if "kind" in wanted:
            kinds, sure = self.origins.kinds(given.value, site.where)
            if not kinds or not kinds <= set(wanted["kind"]):
                return None
        sure = sure and not any(origin.assumed for origin in self.origins.of(given.value, site.where))
        return sure if self._value_fits(given.value, wanted, site) else None

    def _value_fits(self, expr: ir.Expr, wanted: Mapping[str, Any], site: Site) -> bool:
        origins = self.origins.of(expr, site.where)
        if wanted.keys() & {"at_most", "at_least"}:
            low, high = wanted.get("at_least", -math.inf), wanted.get("at_most", math.inf)
            numbers = [number(origin.expr) for origin in origins]
            return bool(numbers) and all(value is not None and low <= value <= high for value in numbers)
        if "values" not in wanted:
            return True
        values = [self._literal(origin.expr, origin.where) for origin in origins]
        return bool(values) and set(values) <= set(wanted["values"])

    def _literal(self, expr: ir.Expr | None, where: Where) -> object:
        if isinstance(expr, ir.Const):
            return expr.value
        return self.project.qualified(where.module, expr, where.scope) if expr is not None else None


class _Settings:
    """The ``constant`` detectors of a rulebook: assignments to the settings of a library, reads of its internals."""

    def __init__(self, project: Project, book: Rulebook, origins: Origins, choices: Choices) -> None:
        self.project = project
        self.origins = origins
        self.choices = choices
        self._by_target: dict[str, list[tuple[Rule, Detector]]] = {}
        for rule, detector in book.detectors("static", "constant"):
            for target in detector.targets:
                self._by_target.setdefault(target, []).append((rule, detector))
        self._words = frozenset(target.rpartition(".")[2] for target in self._by_target)
        internals = (target for target in self._by_target if target.startswith(f"{_SCALER}."))
        self._internals = frozenset(target.rpartition(".")[2] for target in internals)

    def of(self, module: ir.Module) -> Iterator[RawFinding]:
        """Findings in one module."""
        if not self._words.isdisjoint(module.words):
            yield from self._assigned(module)
        if not self._internals.isdisjoint(module.words):
            yield from self._read(module)

    def _read(self, module: ir.Module) -> Iterator[RawFinding]:
        """What is read off scalers."""
        for attribute, where in unguarded(module.body, Where(module), self._internals):
            made = self.origins.constructors(attribute.base, where)
            if not made:
                continue
            call, at = made[0]
            switchable = any(map(_is_switched, made))
            portable = any(self.choices.of(place.module).others for _, place in made)
            built = RawStep(at.module.path, call.at, "the scaler is built here")
            for rule, detector in self._by_target.get(f"{_SCALER}.{attribute.name}", ()):
                if detector.holds({"switchable": switchable, "portable": portable}):
                    message = detector.message.replace("{name}", attribute.name)
                    sure = Confidence.from_word(detector.options.get("confidence", "high"))
                    place = (module.path, attribute.at)
                    yield RawFinding(rule, *place, message, sure, detector.severity, related=(built,))

    def _assigned(self, module: ir.Module) -> Iterator[RawFinding]:
        for scope, node in _assignments(module.body, None):
            for target in node.targets:
                if not isinstance(target, ir.Attr) or target.name not in self._words:
                    continue
                name = self.project.qualified(module, target, scope)
                for rule, detector in self._by_target.get(name or "", ()):
                    if detector.holds({"value": _value(node.value), "low_precision": uses_low_precision(module)}):
                        yield RawFinding(rule, module.path, node.at, detector.message, severity=detector.severity)


def _is_switched(made: tuple[ir.Call, Where]) -> bool:
    """Whether the call that makes a scaler has a flag for it which is not true by a literal."""
    given = next((arg.value for arg in made[0].args if arg.keyword == "enabled"), None)
    return given is not None and not (isinstance(given, ir.Const) and given.value is True)


def _value(expr: ir.Expr) -> object:
    """A literal's value; for all else something that no rule can ask for."""
    return expr.value if isinstance(expr, ir.Const) else expr


def _assignments(body: Sequence[ir.Stmt], scope: Scope | None) -> Iterator[tuple[Scope | None, ir.Assign]]:
    for node in statements(body):
        if isinstance(node, ir.Assign):
            yield scope, node
        elif isinstance(node, ir.Function):
            yield from _assignments(node.body, Scope(node, scope))
        elif isinstance(node, ir.Class):
            yield from _assignments(node.body, scope)


def _spellings(words: set[str], project: Project) -> frozenset[str]:
    """The last words by which modules of the project may call what ends in one of ``words``: their aliases too."""
    found = set(words)
    for module in project.modules.values():
        for node in statements_saying(module.body, found) if not found.isdisjoint(module.words) else ():
            if isinstance(node, ir.Import):
                found |= {local for local, target in node.bindings if target.rpartition(".")[2] in found}
            elif isinstance(node, ir.Assign) and _last_words(node.value) & found:
                found |= {word for target in node.targets for word in _last_words(target)}
    return frozenset(found)


def _last_words(expr: ir.Expr) -> set[str]:
    if isinstance(expr, ir.IfExp):
        return _last_words(expr.body) | _last_words(expr.orelse)
    if isinstance(expr, (ir.Name, ir.Attr)):
        return {last_word(expr)}
    return set()
