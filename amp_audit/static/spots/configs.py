"""``config`` detectors: what a configuration says, as a dict in the code or as a JSON file.

A detector names paths of keys (``fp16.enabled``), all of which must lead to a literal that meets its condition in one
dict: ``equals`` a value, or a number ``at_most``. The finding stands at the last of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator

from amp_audit.model import Confidence, Finding, Location
from amp_audit.rulebook import Detector, Rule, Rulebook
from amp_audit.static.binding.dicts import entries, filled, is_dict
from amp_audit.static.binding.project import Project
from amp_audit.static.findings import fingerprint
from amp_audit.static.raw import RawFinding
from amp_audit.static.source import ir
from amp_audit.static.source.jsontext import members, skip_space
from amp_audit.static.source.literals import number
from amp_audit.static.source.selection import path_in_project
from amp_audit.static.source.sources import Unreadable, read_bytes
from amp_audit.static.source.traverse import parts, statements

_READERS = frozenset(
    {"deepspeed", "DeepSpeedPlugin", "Accelerator", "TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig"}
)
"""What takes such configurations: a project that names none of these has none."""


class Configs:
    """The ``config`` detectors of a rulebook, for the dicts of a project."""

    def __init__(self, project: Project, book: Rulebook) -> None:
        has_readers = any(not _READERS.isdisjoint(module.words) for module in project.modules.values())
        self._detectors = book.detectors("static", "config") if has_readers else []

    def of(self, module: ir.Module) -> Iterator[RawFinding]:
        """Findings in the dicts of one module, outer ones first; one that lies in another is not looked at apart."""
        if not self._detectors:
            return
        for part in parts(module.body, into=True):
            if is_dict(part):
                yield from self._in(part, module)
        functions = (node for node in statements(module.body, into=True) if isinstance(node, ir.Function))
        for body in (module.body, *(function.body for function in functions)):
            for config in filled(body):
                yield from self._in(config, module)

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


def lookup(config: ir.Expr | None, path: str) -> ir.Expr | None:
    """What the keys of a path lead to in a dict of the code; None where one is not there, or not known."""
    for key in path.split("."):
        config = dict(entries(config)).get(key) if config is not None else None
    return config


# Files


def in_json(data: bytes | None, path: str) -> bool | None:
    """What the keys of a path lead to in a JSON document, if that is true or false."""
    try:
        content = json.loads(data.decode("utf-8-sig")) if data is not None else None
    except (ValueError, RecursionError):
        return None
    for key in path.split("."):
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, bool) else None


_LARGEST_FILE = 1 << 18
_NEWLINE = re.compile(r"\r\n|\r|\n")


def in_files(paths: Iterable[str], book: Rulebook) -> tuple[list[Finding], int]:
    """Findings in JSON files, and how many of these are configurations. What is no JSON is none."""
    detectors = book.detectors("static", "config")
    found: list[Finding] = []
    read = 0
    for path in paths if detectors else ():
        text = _text(path)
        if text is None:
            continue
        read += 1
        for rule, detector in detectors:
            spans = [_span(text, target) for target in detector.targets]
            if all(span is not None and _value_fits(json.loads(text[slice(*span)]), detector) for span in spans):
                found.append(_in_file(rule, detector, path, text, spans[-1] or (0, 0)))
    return found, read


def _text(path: str) -> str | None:
    """The text of a file that is a JSON object with a section for a low precision."""
    try:
        if os.path.getsize(path) > _LARGEST_FILE:
            return None
        text = read_bytes(path).decode("utf-8-sig")
        content = json.loads(text)
    except (OSError, Unreadable, ValueError, RecursionError):
        return None
    sections = ("fp16", "bf16", "bfloat16", "amp")
    is_config = isinstance(content, dict) and any(isinstance(content.get(section), dict) for section in sections)
    return text if is_config else None


def _span(text: str, target: str) -> tuple[int, int] | None:
    """Where the value stands that the keys of a path lead to."""
    span: tuple[int, int] | None = (skip_space(text, 0), len(text))
    for key in target.split("."):
        if span is None or text[span[0]] != "{":
            return None
        span = dict(members(text, span[0])).get(key)
    return span


def _value_fits(value: object, detector: Detector) -> bool:
    if "at_most" in detector.options:
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        return plain and isinstance(value, (int, float)) and value <= detector.options["at_most"]
    return value is detector.options.get("equals")


def _in_file(rule: Rule, detector: Detector, path: str, text: str, span: tuple[int, int]) -> Finding:
    before = _NEWLINE.split(text[: span[0]])
    line, column = len(before), len(before[-1]) + 1
    place = Location(path, line, column, line, column + span[1] - span[0])
    mark = fingerprint(path_in_project(path), rule.id, "", detector.targets[-1], 0)
    severity = rule.severity if detector.severity is None else detector.severity
    message = detector.message or rule.summary
    return Finding(rule.id, rule.name, severity, Confidence.HIGH, message, place, fingerprint=mark)
