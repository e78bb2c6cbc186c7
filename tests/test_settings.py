from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from amp_audit import rulebook, settings
from amp_audit.model import Confidence, Finding, Location, Severity, Verdict
from amp_audit.settings import Configuration, Flags, Settings, SettingsError

BOOK = rulebook.load()


def configured(folder: Path, text: str) -> Settings:
    (folder / "pyproject.toml").write_text(f"[tool.amp-audit]\n{text}\n", encoding="utf-8")
    return settings.read(folder)


def finding(rule: str, path: str = "train.py", **changes: object) -> Finding:
    severity = BOOK[rule].severity
    base = Finding(rule, BOOK[rule].name, severity, Confidence.HIGH, "message", Location(path, 1))
    return replace(base, **changes)  # type: ignore[arg-type]


def test_the_nearest_table_upwards_counts(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.amp-audit]\nselect = ["AMP2"]\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'no table of ours'\n")
    read = settings.read(inner)
    assert read.select == ("AMP2",) and read.root == tmp_path


def test_without_a_table_everything_is_in_force(tmp_path: Path) -> None:
    read = settings.read(tmp_path)
    assert read.selected(BOOK) == frozenset(BOOK.rules)
    assert read.min_confidence is Confidence.MEDIUM and read.fail_on is None


def test_all_keys(tmp_path: Path) -> None:
    (tmp_path / "my_rules").mkdir()
    read = configured(
        tmp_path,
        """
        select = ["AMP2", "AMP101"]
        ignore = ["clip-before-unscale"]
        exclude = ["vendored"]
        per-file-ignores = {"tests/*" = ["AMP201"]}
        fail-on = "info"
        min-confidence = "low"
        severity = {AMP101 = "error"}
        rules = ["my_rules"]
        baseline = "known.json"
        """,
    )
    chosen = read.selected(BOOK)
    assert "AMP101" in chosen and "AMP203" in chosen and "AMP202" not in chosen and "AMP302" not in chosen
    assert (read.fail_on, read.min_confidence) == (Severity.INFO, Confidence.LOW)
    assert read.excluded(str(tmp_path / "vendored" / "a.py")) and not read.excluded(str(tmp_path / "a.py"))
    assert read.rules == (tmp_path / "my_rules",) and read.baseline == tmp_path / "known.json"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("selct = []", "unknown key `selct`"),
        ("select = 'AMP202'", "`select` of"),
        ("select = [202]", "`select` of"),
        ("fail-on = 'fatal'", "`fail-on` of"),
        ("min-confidence = 3", "`min-confidence` of"),
        ("per-file-ignores = ['AMP202']", "`per-file-ignores` of"),
        ("severity = {AMP202 = 'fatal'}", "`severity.AMP202` of"),
        ("select = [", "cannot be read"),
        ("rules = ['nowhere']", "`rules` of"),
        ("baseline = 3", "`baseline` of"),
    ],
)
def test_an_error_names_key_and_file_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as error:
        configured(tmp_path, text)
    message = str(error.value)
    assert words in message and str(tmp_path / "pyproject.toml") in message and "\n" not in message


@pytest.mark.parametrize(
    "text",
    [
        "select = ['AMP999']",
        "ignore = ['E501']",
        "per-file-ignores = {'a' = ['AMP9999']}",
        "severity = {nope = 'info'}",
    ],
)
def test_a_rule_that_does_not_exist_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match=r"unknown rule .*pyproject\.toml"):
        configured(tmp_path, text).check(BOOK)


def test_a_rule_of_the_command_line_is_named_by_its_flag(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"unknown rule 'AMP999' in --select"):
        settings.read(tmp_path).with_flags(Flags(select=("AMP999",))).check(BOOK)


def test_a_retired_rule_comes_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "RETIRED", {"AMP299": "AMP205 sees it now"})
    with pytest.raises(SettingsError, match="retired: AMP205 sees it now"):
        configured(tmp_path, "ignore = ['AMP299']").check(BOOK)


def test_flags_replace_select_and_add_to_ignore(tmp_path: Path) -> None:
    read = configured(tmp_path, "select = ['AMP2']\nignore = ['AMP202']\nfail-on = 'error'")
    combined = read.with_flags(Flags(select=("AMP3", "AMP202"), ignore=("AMP301",), fail_on="info"))
    assert combined.selected(BOOK) == {r for r in BOOK.rules if r.startswith("AMP3")} - {"AMP301"}
    assert combined.fail_on is Severity.INFO


def test_findings_are_filtered_by_rule_and_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    read = configured(tmp_path, "ignore = ['AMP302']\nper-file-ignores = {'tests/*' = ['AMP202'], 'old' = ['AMP2']}")
    given = [
        finding("AMP202", "tests/test_a.py"),
        finding("AMP203", "tests/test_a.py"),
        finding("AMP302"),
        finding("AMP203", str(tmp_path / "old" / "deep" / "b.py")),
        finding("AMP202", "/elsewhere/tests/c.py"),
    ]
    kept = {(f.rule, f.location.path) for f in read.filtered(given, BOOK) if f.location}
    assert kept == {("AMP203", "tests/test_a.py"), ("AMP202", "/elsewhere/tests/c.py")}


def test_severity_is_the_users_and_not_reproduced_lowers_it(tmp_path: Path) -> None:
    read = configured(tmp_path, "severity = {AMP202 = 'error', AMP203 = 'info'}")
    given = [finding("AMP202", verdict=Verdict.NOT_REPRODUCED), finding("AMP203"), finding("AMP302")]
    found = {f.rule: f.severity for f in read.filtered(given, BOOK)}
    assert found == {"AMP202": Severity.WARNING, "AMP203": Severity.INFO, "AMP302": BOOK["AMP302"].severity}


@pytest.mark.parametrize("word", ["AMP2", "AMP2xx", "amp2XX", "AMP20x"])
def test_a_group_is_the_beginning_of_ids(word: str) -> None:
    start = "AMP20" if "0" in word else "AMP2"
    assert settings.matching(word, BOOK) == {rule for rule in BOOK.rules if rule.startswith(start)} != set()


def test_a_group_without_rules_is_unknown() -> None:
    assert settings.matching("AMPxxx", BOOK) == frozenset(BOOK.rules)
    assert settings.matching("AMP99", BOOK) == settings.matching("AMP2xxx", BOOK) == frozenset()


@pytest.mark.parametrize(
    ("pattern", "path", "meant"),
    [
        ("vendored", "deep/vendored/a.py", True),
        ("test_*.py", "deep/test_a.py", True),
        ("deep/vendored/", "deep/vendored/a.py", True),
        ("deep/*/a.py", "deep/vendored/a.py", True),
        ("**/a.py", "a.py", True),
        ("**/a.py", "deep/a.py", True),
        ("./deep/a.py", "deep/a.py", True),
        ("deep/vendored", "vendored/a.py", False),
        ("vend", "vendored/a.py", False),
        ("a", "a.py", False),
        ("", "a.py", False),
    ],
)
def test_which_files_a_pattern_means(tmp_path: Path, pattern: str, path: str, meant: bool) -> None:
    assert Settings(root=tmp_path, exclude=(pattern,)).excluded(str(tmp_path / path)) is meant


# Each file's own table


def nested(folder: Path, table: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(f"[tool.amp-audit]\n{table}\n")
    return folder


def test_each_file_has_the_settings_of_the_nearest_table(tmp_path: Path) -> None:
    nested(tmp_path, "ignore = ['AMP202']")
    nested(tmp_path / "one", "ignore = ['AMP203']")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "pyproject.toml").write_text("[project]\nname = 'x'\n[[[broken")
    found = Configuration(settings.read(tmp_path), Flags(ignore=("AMP302",)))
    assert found.of(str(tmp_path / "one" / "deep" / "a.py")).ignore == ("AMP203", "AMP302")
    assert found.of(str(tmp_path / "two" / "a.py")) is found.of(str(tmp_path / "a.py")) is found.base
    assert found.base.ignore == ("AMP202", "AMP302")


def test_a_file_without_a_table_has_the_working_directorys(tmp_path: Path) -> None:
    nested(tmp_path / "here", "ignore = ['AMP202']")
    found = Configuration(settings.read(tmp_path / "here"))
    assert found.of(str(tmp_path / "elsewhere" / "a.py")) is found.of(None) is found.base


def test_an_error_in_a_nested_table_names_its_file(tmp_path: Path) -> None:
    nested(tmp_path / "one", "selct = []")
    with pytest.raises(SettingsError, match=r"unknown key `selct` .*one/pyproject\.toml"):
        Configuration(settings.read(tmp_path)).of(str(tmp_path / "one" / "a.py"))


def test_settings_of_the_caller_hold_for_every_file(tmp_path: Path) -> None:
    nested(tmp_path / "one", "ignore = ['AMP203']")
    given = Settings(root=tmp_path, ignore=("AMP101",))
    assert Configuration(given, follow_files=False).of(str(tmp_path / "one" / "a.py")).ignore == ("AMP101",)
