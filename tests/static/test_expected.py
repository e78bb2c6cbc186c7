"""Errors that a test asks for are no findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.static.found import lines

SOURCE = """import pytest
import torch
from torch import nn
import unittest


class Tests(unittest.TestCase):
    {mark}
    def test_order(self):
        scaler = torch.amp.GradScaler("cuda")
        {before}
            scaler.update()
        {after}
"""


@pytest.mark.parametrize(
    ("mark", "before", "after"),
    [
        ("", "with pytest.raises(AssertionError):", "pass"),
        ("", "with self.assertRaises(AssertionError):", "pass"),
        ("", "with torch.no_grad(), self.assertRaisesRegex(AssertionError, 'No inf'):", "pass"),
        ("", "try:", "except AssertionError:\n            pass"),
        ("", "try:", "except (ValueError, AssertionError) as error:\n            print(error)"),
        ("@unittest.expectedFailure", "if True:", "pass"),
        ("@pytest.mark.xfail(reason='order')", "if True:", "pass"),
    ],
)
def test_an_error_that_is_asked_for(tmp_path: Path, mark: str, before: str, after: str) -> None:
    assert lines(tmp_path, "AMP206", SOURCE.format(mark=mark, before=before, after=after)) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("try:", "except Exception:\n            print('skipped')"),
        ("try:", "except RuntimeError:\n            raise"),
        ("with torch.no_grad():", "pass"),
    ],
)
def test_wider_handlers_ask_for_none(tmp_path: Path, before: str, after: str) -> None:
    assert lines(tmp_path, "AMP206", SOURCE.format(mark="", before=before, after=after)) == [12]
