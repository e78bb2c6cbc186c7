"""What is kept between runs: the same rules as without, and no trouble where nothing can be kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from amp_audit import kept, rulebook

RULE = """\
id: TEAM001
name: no-such-call
severity: warning
summary: We do not call this.
why: It was agreed.
fix: Call the other one.
static: {{call: {target}}}
{more}
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "amp-audit" / "rules"


@pytest.fixture
def rule(tmp_path: Path) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(RULE.format(target="torch.foo", more=""))
    return path


def read(path: Path) -> rulebook.Rule:
    rulebook.load.cache_clear()
    return rulebook.load((path,))["TEAM001"]


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The documents that PyYAML has read."""
    texts: list[str] = []
    load = yaml.load

    def counting(text: str, Loader: type) -> object:
        texts.append(text)
        return load(text, Loader=Loader)

    monkeypatch.setattr(yaml, "load", counting)
    return texts


def test_rules_are_parsed_once_for_the_same_contents(cache: Path, rule: Path, parses: list[str]) -> None:
    first = read(rule)
    shipped = dict(rulebook.load().rules)
    count = len(parses)
    assert read(rule) == first and dict(rulebook.load().rules) == shipped and len(parses) == count
    assert shipped == {key: rulebook.read_rule(path) for key, path in shipped_paths().items()}


def shipped_paths() -> dict[str, Path]:
    paths = sorted(rulebook.shipped_rules().rglob("*.yaml"))
    return {path.stem: path for path in paths}


def test_a_changed_rule_is_read_anew(cache: Path, rule: Path) -> None:
    assert read(rule).static[0].targets == ("torch.foo",)
    rule.write_text(RULE.format(target="torch.bar", more=""))
    assert read(rule).static[0].targets == ("torch.bar",)


@pytest.mark.parametrize("broken", ["", "[]", "{}", "0\n[]", "null", f"{kept.digest(b'[]')}\n[]", "\x00"])
def test_a_broken_document_is_none(cache: Path, rule: Path, broken: str) -> None:
    first = read(rule)
    for path in cache.iterdir():
        path.write_text(broken)
    assert read(rule) == first


def test_where_nothing_can_be_kept_nothing_happens(tmp_path: Path, rule: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert read(rule).id == "TEAM001"


@pytest.mark.parametrize("more", ["thresholds: {1: one, share: 0.5}", "thresholds: {day: 2024-01-01}"])
def test_what_json_would_change_is_not_kept(cache: Path, rule: Path, more: str) -> None:
    rule.write_text(RULE.format(target="torch.foo", more=more))
    wanted = yaml.safe_load(more)["thresholds"]
    assert read(rule).thresholds == wanted and read(rule).thresholds == wanted


def test_only_the_latest_are_kept(tmp_path: Path) -> None:
    for number in range(5):
        kept.store(tmp_path, str(number), [number], most=3)
    assert len(list(tmp_path.iterdir())) == 3
    assert kept.load(tmp_path, "4") == [4]


def test_floats_and_texts_come_back(tmp_path: Path) -> None:
    document = {"a": [1, 1.5, True, None, "ü\n"], "b": {"c": -0.0}}
    assert kept.is_plain(document) and not kept.is_plain({1: 2}) and not kept.is_plain({"a": (1,)})
    kept.store(tmp_path, "x", document, most=1)
    assert repr(kept.load(tmp_path, "x")) == repr(document) == repr(json.loads(json.dumps(document)))
