"""What a function makes of what it is given, followed back to the call that gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.check import check

LOADER = """
import torch
from transformers import AutoModel


def load(name, dtype=None, *, device="cuda"):
    model = AutoModel.from_pretrained(name, torch_dtype=dtype)
    return model.to(device)


class Hub:
    def load(self, name, dtype):
        return self._load(name, kind=dtype)

    def _load(self, name, kind):
        return AutoModel.from_pretrained(name, torch_dtype=kind)
"""
TRAIN = """
import torch
from transformers import Trainer, TrainingArguments
from loader import load


def main(data, settings):
    model = MADE
    arguments = TrainingArguments("out", fp16=True)
    Trainer(model=model, args=arguments, train_dataset=data).train()
"""


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ('load("name", torch.float16)', True),
        ('load("name", dtype="float16", device="cuda:0")', True),
        ('load("name", torch.float32)', False),
        ('load("name", torch.bfloat16)', False),
        ('load("name", settings.dtype)', False),
        ('load("name")', False),
        ("load(*settings, dtype=torch.float16)", False),
    ],
)
def test_a_dtype_that_a_loader_is_given(made: str, found: bool, tmp_path: Path) -> None:
    (tmp_path / "loader.py").write_text(LOADER)
    (tmp_path / "train.py").write_text(TRAIN.replace("MADE", made))
    told = [each for each in check([tmp_path], rulebook.load()).findings if each.rule == "AMP802"]
    assert [each.location.line for each in told if each.location] == ([7] if found else [])
