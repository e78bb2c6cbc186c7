"""Inline suppressions through the whole check: what they silence, and what silences nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.check import CheckResult, Options, check
from amp_audit.static.source.suppress import directives

BOOK = rulebook.load()
HEAD = "import torch\n"
BAD = "scaler = torch.cuda.amp.GradScaler()"


def run(folder: Path, source: str, rules: frozenset[str] | None = None) -> CheckResult:
    path = folder / "train.py"
    path.write_text(source)
    return check([path], BOOK, Options(rules=rules))


def found(result: CheckResult) -> list[tuple[str, int]]:
    return [(f.rule, f.location.line) for f in result.findings if f.location is not None]


@pytest.mark.parametrize(
    "source",
    [
        f"{HEAD}{BAD}  # amp-audit: ignore[AMP101] old torch\n",
        f"{HEAD}{BAD}  # amp-audit: ignore[deprecated-amp-api]\n",
        f"{HEAD}{BAD}  # amp-audit: ignore[amp101]\n",
        f"{HEAD}# amp-audit: ignore-next-line[AMP101]: old torch\n{BAD}\n",
        f"# amp-audit: ignore-file[AMP101]\n{HEAD}{BAD}\n",
        f"{HEAD}{BAD}\n# amp-audit: ignore-file[AMP101]\n",
        f"{HEAD}# amp-audit: ignore-next-line[AMP101]\n\n# old torch\n{BAD}\n",
        f"{HEAD}# amp-audit: ignore-begin[AMP101] old torch\nx = 1\n{BAD}\n# amp-audit: ignore-end[AMP101]\n",
        f"{HEAD}scaler = torch.cuda.amp.GradScaler(\n    enabled=True,\n)  # amp-audit: ignore[AMP101]\n",
    ],
)
def test_a_suppression_silences_its_rule(tmp_path: Path, source: str) -> None:
    assert found(run(tmp_path, source)) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (f"{HEAD}{BAD}  # amp-audit: ignore[AMP202]\n", [("AMP101", 2), ("AMP002", 2)]),
        (f"{HEAD}{BAD}\nx = 1  # amp-audit: ignore[AMP101]\n", [("AMP101", 2), ("AMP002", 3)]),
        (f"{HEAD}{BAD}  # amp-audit: ignore[AMP101, AMP202]\n", [("AMP002", 2)]),
        (f"{HEAD}{BAD}  # amp-audit: ignore\n", [("AMP101", 2), ("AMP002", 2)]),
        (f"{HEAD}{BAD}  # amp-audit: ignore[AMP999]\n", [("AMP101", 2), ("AMP002", 2)]),
        (
            f"{HEAD}# amp-audit: ignore-begin[AMP101]\n# amp-audit: ignore-end[AMP101]\n{BAD}\n",
            [("AMP101", 4), ("AMP002", 2)],
        ),
        (f"{HEAD}# amp-audit: ignore-begin[AMP101]\n{BAD}\n", [("AMP101", 3), ("AMP002", 2)]),
        (f"{HEAD}{BAD}\n# amp-audit: ignore-end[AMP101]\n", [("AMP101", 2), ("AMP002", 3)]),
        (
            f"{HEAD}# amp-audit: ignore-begin[AMP101]\n{BAD}\n# amp-audit: ignore-begin[AMP101]\n"
            f"{BAD}\n# amp-audit: ignore-end[AMP101]\n",
            [("AMP002", 4)],
        ),
        (f"{HEAD}# amp-audit: ignore-next-line[AMP101]\nx = 1\n{BAD}\n", [("AMP101", 4), ("AMP002", 2)]),
        (f"{HEAD}{BAD}\n# amp-audit: ignore-next-line[AMP101]\n", [("AMP101", 2), ("AMP002", 3)]),
        (f"{HEAD}{BAD}\ns = '# amp-audit: ignore-file[AMP101]'\n", [("AMP101", 2)]),
    ],
)
def test_what_silences_nothing_is_reported(tmp_path: Path, source: str, expected: list[tuple[str, int]]) -> None:
    assert sorted(found(run(tmp_path, source))) == sorted(expected)


def test_a_suppression_of_a_rule_that_was_not_run_is_not_unused(tmp_path: Path) -> None:
    source = f"{HEAD}{BAD}  # amp-audit: ignore[AMP202]\n"
    assert ("AMP002", 2) not in found(run(tmp_path, source, frozenset({"AMP101", "AMP002"})))
    assert ("AMP002", 2) not in found(run(tmp_path, source, frozenset(BOOK.rules) - {"AMP002"}))


def test_a_rule_that_only_a_run_can_see_does_not_count_as_unused(tmp_path: Path) -> None:
    source = f"{HEAD}{BAD}  # amp-audit: ignore[AMP101, AMP511]\n"
    assert found(run(tmp_path, source)) == []


def test_the_place_of_an_unused_word(tmp_path: Path) -> None:
    result = run(tmp_path, f"{HEAD}{BAD}  # amp-audit: ignore[AMP101, AMP202] x\n")
    place = result.findings[0].location
    assert place is not None
    line = f"{BAD}  # amp-audit: ignore[AMP101, AMP202] x"
    assert place.end_column is not None
    assert line[place.column - 1 : place.end_column - 1] == "AMP202"


def test_comments_before_syntax_that_tokenize_refuses_still_count() -> None:
    found = directives("x = 1  # amp-audit: ignore[AMP101]\n(\n", BOOK)
    assert [directive.rule for directive in found] == ["AMP101"]


def test_what_is_wrong_with_a_block_is_said(tmp_path: Path) -> None:
    result = run(tmp_path, f"{HEAD}# amp-audit: ignore-begin[AMP101]\n{BAD}\n")
    assert [f.message for f in result.findings if f.rule == "AMP002"] == [
        "no `ignore-end[AMP101]` after this `ignore-begin`, so it ignores nothing"
    ]


def test_a_rule_may_be_ignored_in_several_blocks(tmp_path: Path) -> None:
    block = f"# amp-audit: ignore-begin[AMP101]\n{BAD}\n# amp-audit: ignore-end[AMP101]\n"
    assert found(run(tmp_path, f"{HEAD}{block}{BAD}\n{block}")) == [("AMP101", 5)]


def test_brackets_that_are_never_closed_cost_nothing(tmp_path: Path) -> None:
    result = run(tmp_path, f"{HEAD}x = 1  # amp-audit: ignore[AMP202\n{BAD}\n")
    assert ("AMP101", 3) in found(result) and not result.coverage.files_failed


def test_a_lone_carriage_return_ends_a_line(tmp_path: Path) -> None:
    result = run(tmp_path, f"{HEAD}x = 1\r{BAD}  # amp-audit: ignore[AMP101]\ny = 2  # amp-audit: ignore[AMP202]\n")
    assert found(result) == [("AMP002", 4)]
