"""``config`` detectors: what a configuration that is written as a dict in the code says.

A detector names paths of keys (``fp16.enabled``), all of which must lead to a literal that meets its condition in one
dict: ``equals`` a value, or a number ``at_most``. The finding stands at the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from amp_audit.rulebook import Detector, Rule, Rulebook
from amp_audit.static import ir
from amp_audit.static.literals import number
from amp_audit.static.raw import RawFinding
from amp_audit.static.traverse import expressions, statements, walk


class Configs:
    """The ``config`` detectors of a rulebook."""

    def __init__(self, book: Rulebook) -> None:
        self._detectors = book.detectors("static", "config")

    def of(self, module: ir.Module) -> Iterator[RawFinding]:
        """Findings in the dicts of one module, outer ones first; one that lies in another is not looked at apart."""
        if not self._detectors:
            return
        for node in statements(module.body, into=True):
            for expression in expressions(node):
                for part in walk(expression):
                    if is_dict(part):
                        yield from self._in(part, module)

    def _in(self, config: ir.Expr, module: ir.Module) -> Iterator[RawFinding]:
        for rule, detector in self._detectors:
            if all(_fits(lookup(config, target), detector) for target in detector.targets):
                yield _finding(rule, detector, module, config)


def _finding(rule: Rule, detector: Detector, module: ir.Module, config: ir.Expr) -> RawFinding:
    last = lookup(config, detector.targets[-1])
    at = last.at if last is not None else config.at
    return RawFinding(rule, module.path, at, detector.message, severity=detector.severity)


def _fits(value: ir.Expr | None, detector: Detector) -> bool:
    if value is None:
        return False
    if "at_most" in detector.options:
        found = number(value)
        return found is not None and found <= detector.options["at_most"]
    return isinstance(value, ir.Const) and value.value is detector.options.get("equals")


def is_dict(expr: ir.Expr) -> bool:
    """A dict display, or a call of ``dict`` with keywords."""
    return isinstance(expr, ir.Mapping) or (
        isinstance(expr, ir.Call) and isinstance(expr.func, ir.Name) and expr.func.id == "dict"
    )


def lookup(config: ir.Expr | None, path: str) -> ir.Expr | None:
    """What the keys of a path lead to in a dict of the code; None where one is not there, or not known."""
    for key in path.split("."):
        config = dict(_members(config)).get(key) if config is not None else None
    return config


def _members(config: ir.Expr) -> Iterator[tuple[str, ir.Expr]]:
    if isinstance(config, ir.Mapping):
        for key, value in config.items:
            if isinstance(key, ir.Const) and isinstance(key.value, str):
                yield key.value, value
    elif isinstance(config, ir.Call) and is_dict(config):
        yield from ((arg.keyword, arg.value) for arg in config.args if arg.keyword is not None)
