from __future__ import annotations

import pytest

from amp_audit.report import words


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 10, "0.0%"),
        (10, 10, "100.0%"),
        (1, 3, "33.3%"),
        (1, 10**6, "<0.1%"),
        (10**6 - 1, 10**6, ">99.9%"),
        (1, 0, "-"),
    ],
)
def test_share_never_rounds_something_to_nothing_or_to_all(part: int, whole: int, text: str) -> None:
    assert words.share(part, whole) == text


def test_a_long_name_keeps_its_end() -> None:
    assert words.ending("encoder.layer.11.attention.self.key.bias", 20) == "...ion.self.key.bias"
    assert len(words.ending("a" * 50, 20)) == 20
    assert words.ending("fc1.weight", 20) == "fc1.weight"


def test_ranges() -> None:
    assert words.ranges([1, 2, 3, 5, 100]) == "1-3, 5, 100"
    assert words.ranges([]) == ""
    assert words.ranges(list(range(0, 40, 2)), limit=2) == "0, 2 and 18 more"


def test_units() -> None:
    assert words.size(1023) == "1023 B"
    assert words.size(1536) == "1.5 KiB"
    assert words.work(2_500_000) == "2.5 MFLOP"
    assert words.scale(65536.0) == "65536"
    assert words.scale(0.5) == "0.5"
    assert words.plural(1, "step") == "1 step"
    assert words.plural(2048, "step") == "2,048 steps"
    assert words.listed(["a", "b", "c"], limit=2) == "a, b and 1 more"
