"""The conditions that names were assigned: ``half = mode == "fp16"``."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from amp_audit.static.dtypes.frames import Frame
from amp_audit.static.source import ir
from amp_audit.static.source.conditions import Facts, facts_of, last_bindings
from amp_audit.static.source.traverse import dotted_text


class Meanings:
    """What names mean in the functions that assign them; those of a module and of objects mean it in all of it."""

    def __init__(self) -> None:
        self._held: dict[Hashable, ir.Expr] = {}
        self._texts: set[str] = set()
        self._bound: dict[tuple[str, int], Mapping[str, int]] = {}
        self._told: dict[tuple[int, bool], tuple[Facts, list[str]]] = {}

    def forget(self, frame: Frame, target: ir.Expr) -> None:
        """Something is bound to a name or an attribute."""
        if self._texts and dotted_text(target) in self._texts:
            self._held.pop(_key(frame, target), None)

    def keep(self, frame: Frame, target: ir.Expr, condition: ir.Expr) -> None:
        """A condition was bound to a name or an attribute, whatever the path."""
        if isinstance(target, (ir.Name, ir.Attr)):
            self._held[_key(frame, target)] = condition
            self._texts.add(dotted_text(target))

    def facts_of(self, frame: Frame, test: ir.Expr, truth: bool) -> Facts:
        """What is known in a function where a condition is true, or false."""
        told = self._told.get((id(test), truth))
        if told is not None and self._texts.isdisjoint(told[1]):
            return told[0]
        bound = self._bound.get(frame.scope)
        if bound is None:
            bound = self._bound[frame.scope] = last_bindings(frame.body)
        asked: list[str] = []

        def meaning(text: str) -> ir.Expr | None:
            asked.append(text)
            return self._of(frame, text)

        facts = facts_of(test, truth, meaning, bound)
        if self._texts.isdisjoint(asked):
            self._told[id(test), truth] = facts, asked
        return facts

    def _of(self, frame: Frame, text: str) -> ir.Expr | None:
        if text.startswith("self."):
            return self._held.get((frame.module.path, text))
        held = self._held.get((frame.scope, text))
        root = text.partition(".")[0]
        if held is None and root not in frame.env and root not in frame.outer:
            return self._held.get((frame.module.path, text))
        return held


def subject(text: str) -> str:
    """What a spelled condition speaks of: what it compares, or all of it."""
    return text.partition(" == ")[0]


def is_condition(node: ir.Expr) -> bool:
    """Whether an expression is a comparison, or made of conditions."""
    return isinstance(node, (ir.Compare, ir.BoolOp)) or (isinstance(node, ir.Unary) and node.op == "not")


def _key(frame: Frame, target: ir.Expr) -> Hashable:
    text = dotted_text(target)
    wide = frame.body is frame.module.body or text.startswith("self.")
    return (frame.module.path if wide else frame.scope, text)
