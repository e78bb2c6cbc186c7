"""Rule files -> rules. A bad rule file is an error that names the file and the key, never a skipped rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any

from amp_audit import __version__, kept
from amp_audit.events import Kind
from amp_audit.model import Severity
from amp_audit.records import record

DETECTOR_KEYS: Mapping[str, frozenset[str]] = {
    "event": frozenset({"when", "at", "anywhere", "nowhere", "yields_to"}),
    "op": frozenset(
        {
            "inputs",
            "takes",
            "lacks",
            "region",
            "constant",
            "whole",
            "in_place",
            "outputs",
            "loaded",
            "when",
            "once",
            "at",
        }
    ),
    "call": frozenset({"arguments", "when"}),
    "constant": frozenset({"when"}),
    "config": frozenset({"equals", "at_most"}),
    "measure": frozenset({"over", "under", "named", "kept", "when", "cost", "slight"}),
    "raised": frozenset({"phase", "at"}),
    "check": frozenset({"reason"}),
}
"""The kinds of detectors and the keys each may have beside its own; ``COMMON_KEYS`` go with every kind."""

_PARSED = frozenset({"when", "at", "anywhere", "nowhere", "yields_to", "message", "severity"})
COMMON_KEYS = frozenset({"message", "severity", "confidence", "source"})

REQUIRED_KEYS = ("id", "name", "severity", "summary", "why", "fix")
SEEING_KEYS = ("static", "runtime", "refutable", "confirmed_by", "confirmed_severity", "yields_to", "thresholds")
RULE_KEYS = frozenset({*REQUIRED_KEYS, *SEEING_KEYS, "examples", "references"})
EXAMPLE_KEYS = frozenset({"bad", "good", "run", "raises", "subject", "file"})


class RuleError(Exception):
    """A rule file that cannot be used; the message names the file and what is wrong in it."""


@record(frozen=True, slots=True)
class Detector:
    """One way to see a hazard. ``kind`` says which keys of ``options`` mean something (``DETECTOR_KEYS``)."""

    kind: str
    targets: tuple[str, ...]
    when: tuple[tuple[str, tuple[object, ...]], ...] = ()
    at: str | None = None
    anywhere: tuple[str, ...] = ()
    nowhere: tuple[str, ...] = ()
    yields_to: tuple[str, ...] = ()
    message: str = ""
    severity: Severity | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def holds(self, facts: Mapping[str, object]) -> bool:
        """Whether every condition is met; an absent or unknown fact meets none."""
        return all(facts.get(key) in values for key, values in self.when)


@record(frozen=True, slots=True)
class Example:
    """A test of its rule: code with a ``# AMPnnn`` comment on each line a person would want marked."""

    code: str
    bad: bool
    run: bool = False
    raises: str | None = None
    subject: Mapping[str, str] | None = None


@record(frozen=True, slots=True)
class Rule:
    id: str
    name: str
    severity: Severity
    summary: str
    why: str
    fix: str
    static: tuple[Detector, ...] = ()
    runtime: tuple[Detector, ...] = ()
    refutable: bool = False
    confirmed_by: tuple[str, ...] = ()
    confirmed_severity: Severity | None = None
    yields_to: tuple[str, ...] = ()
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()
    references: tuple[str, ...] = ()


@record(frozen=True, slots=True)
class Rulebook:
    """All rules in force, by id."""

    rules: Mapping[str, Rule]

    def __getitem__(self, rule: str) -> Rule:
        return self.rules[rule]

    def __len__(self) -> int:
        return len(self.rules)

    def only(self, rules: Set[str]) -> Rulebook:
        """Those of ``rules``: one that is not in force gives no way to another, and takes none's place."""
        left = {key: rule for key, rule in self.rules.items() if key in rules}
        return self if len(left) == len(self.rules) else Rulebook(left)

    def detectors(self, half: str, kind: str) -> list[tuple[Rule, Detector]]:
        """Every detector of one kind; ``half`` is ``"static"`` or ``"runtime"``."""
        return [
            (rule, found)
            for rule in self.rules.values()
            for found in (rule.static if half == "static" else rule.runtime)
            if found.kind == kind
        ]

    def find(self, word: str) -> Rule | None:
        """A rule by its id or its name, whatever the case."""
        wanted = word.strip().upper()
        return next((r for r in self.rules.values() if wanted in (r.id, r.name.upper())), None)


def shipped_rules() -> Path:
    """The folder of the rules that come with the package, from a wheel and from a checkout alike.

    Raises RuleError when neither is there.
    """
    here = Path(__file__).resolve().parent
    for folder in (here / "_rules", here.parent / "rules"):
        if folder.is_dir():
            return folder
    raise RuleError(f"no rules beside {here}: the installation is incomplete")


@cache
def load(extra: tuple[Path, ...] = ()) -> Rulebook:
    """The shipped rules and those of ``extra`` folders or files; a rule there replaces the shipped one of its id.

    Raises RuleError naming the file and the key.
    """
    found: dict[str, Rule] = {}
    for root in (shipped_rules(), *extra):
        own: dict[str, Path] = {}
        for path, data in _documents(_files(root)).items():
            rule = _rule(path, data)
            if rule.id in own:
                raise RuleError(f"{path}: {rule.id} is already defined in {own[rule.id]}")
            own[rule.id] = path
            found[rule.id] = rule
    return Rulebook({key: found[key] for key in sorted(found)})


def _files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise RuleError(f"{root}: no such file or folder of rules")
    return sorted(p for p in root.rglob("*") if p.suffix in (".yaml", ".yml"))


def read_rule(path: Path) -> Rule:
    """One rule file, validated. Raises RuleError naming the file and the key."""
    return _rule(path, _parsed(path, _text(path)))


MOST_KEPT = 16
"""Sets of rule files whose documents are kept."""


def _documents(paths: list[Path]) -> dict[Path, Any]:
    """The documents of rule files, read by PyYAML once for the same contents: it takes longer than most checks."""
    texts = {path: _text(path) for path in paths}
    where, name = kept.folder("rules"), kept.digest("\0".join([__version__, *texts.values()]).encode())
    known = kept.load(where, name)
    if isinstance(known, list) and len(known) == len(texts):
        kept.use(where, name)
        return dict(zip(texts, known))
    found = {path: _parsed(path, text) for path, text in texts.items()}
    if kept.is_plain(list(found.values())):
        kept.store(where, name, list(found.values()), MOST_KEPT)
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RuleError(f"{path}: cannot be read: {error}") from error


def _parsed(path: Path, text: str) -> Any:
    import yaml  # only here, for the same reason

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise RuleError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


def _rule(path: Path, data: object) -> Rule:
    try:
        return parse_rule(data)
    except RuleError as error:
        raise RuleError(f"{path}: {error}") from None


def parse_rule(data: object) -> Rule:
    """A rule from the mapping of its file. Raises RuleError naming the key."""
    if not isinstance(data, dict):
        raise RuleError("a rule file must be a mapping")
    _known(data, RULE_KEYS, "rule")
    for key in REQUIRED_KEYS:
        if not isinstance(data.get(key), str) or not data[key].strip():
            raise RuleError(f"`{key}` must be a non-empty text")
    return Rule(
        id=data["id"],
        name=data["name"],
        severity=_severity(data["severity"], "severity"),
        summary=data["summary"].strip(),
        why=data["why"].strip(),
        fix=data["fix"].strip(),
        static=_detectors(data.get("static"), "static"),
        runtime=_detectors(data.get("runtime"), "runtime"),
        refutable=_flag(data, "refutable"),
        confirmed_by=_texts(data.get("confirmed_by"), "confirmed_by"),
        confirmed_severity=(
            _severity(data["confirmed_severity"], "confirmed_severity") if "confirmed_severity" in data else None
        ),
        yields_to=_texts(data.get("yields_to"), "yields_to"),
        thresholds=_mapping(data.get("thresholds"), "thresholds"),
        examples=tuple(_example(item, n) for n, item in enumerate(_list(data.get("examples"), "examples"), 1)),
        references=_texts(data.get("references"), "references"),
    )


def _detectors(data: object, where: str) -> tuple[Detector, ...]:
    items = data if isinstance(data, list) else [data] if data is not None else []
    return tuple(_detector(item, where) for item in items)


def _detector(data: object, where: str) -> Detector:
    if not isinstance(data, dict):
        raise RuleError(f"`{where}` must be a mapping or a list of mappings")
    present = [kind for kind in DETECTOR_KEYS if kind in data]
    kinds = [kind for kind in present if not any(kind in DETECTOR_KEYS[other] for other in present)]
    if len(kinds) != 1:
        raise RuleError(f"`{where}` needs exactly one of {', '.join(DETECTOR_KEYS)}")
    kind = kinds[0]
    _known(data, DETECTOR_KEYS[kind] | COMMON_KEYS | {kind}, f"`{where}` with `{kind}`")
    targets = _texts(data[kind], f"{where}.{kind}")
    if kind == "event":
        _check_words(targets, f"{where}.event")
    when = _mapping(data.get("when"), f"{where}.when")
    severity = data.get("severity")
    return Detector(
        kind=kind,
        targets=targets,
        when=tuple((key, tuple(value) if isinstance(value, list) else (value,)) for key, value in when.items()),
        at=data.get("at"),
        anywhere=_texts(data.get("anywhere"), f"{where}.anywhere"),
        nowhere=_texts(data.get("nowhere"), f"{where}.nowhere"),
        yields_to=_texts(data.get("yields_to"), f"{where}.yields_to"),
        message=str(data.get("message", "")).strip(),
        severity=_severity(severity, f"{where}.severity") if severity is not None else None,
        options={key: value for key, value in data.items() if key not in _PARSED and key != kind},
    )


def _check_words(words: Iterable[str], where: str) -> None:
    kinds = {kind.value for kind in Kind}
    for word in words:
        if word.partition(".")[0] not in kinds:
            raise RuleError(f"`{where}`: unknown event {word!r}; the events are {', '.join(sorted(kinds))}")


def _example(data: object, number: int) -> Example:
    where = f"examples, number {number}"
    if not isinstance(data, dict) or len({"bad", "good"} & set(data)) != 1:
        raise RuleError(f"{where}: needs either `bad` or `good`")
    _known(data, EXAMPLE_KEYS, where)
    bad = "bad" in data
    return Example(data["bad" if bad else "good"], bad, _flag(data, "run"), data.get("raises"), data.get("subject"))


def _known(data: Mapping[str, object], known: frozenset[str] | set[str], where: str) -> None:
    for key in data:
        if key not in known:
            raise RuleError(f"{where}: unknown key `{key}`; known are {', '.join(sorted(known))}")


def _severity(word: object, key: str) -> Severity:
    try:
        return Severity.from_word(str(word))
    except ValueError as error:
        raise RuleError(f"`{key}`: {error}") from None


def _flag(data: Mapping[str, object], key: str) -> bool:
    value = data.get(key, False)
    if not isinstance(value, bool):
        raise RuleError(f"`{key}` must be true or false")
    return value


def _list(data: object, key: str) -> list[object]:
    if data is None:
        return []
    if not isinstance(data, list):
        raise RuleError(f"`{key}` must be a list")
    return data


def _texts(data: object, key: str) -> tuple[str, ...]:
    items = [data] if isinstance(data, str) else _list(data, key)
    if not all(isinstance(item, str) for item in items):
        raise RuleError(f"`{key}` must be a text or a list of texts")
    return tuple(str(item) for item in items)


def _mapping(data: object, key: str) -> Mapping[str, Any]:
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise RuleError(f"`{key}` must be a mapping")
    return data
