"""What was built out of sight is known by how the code uses it, in whichever file it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.model import Severity
from amp_audit.static.check import check

BORROWED = """
import torch
from calls import Calls


class Trainer:
    def __init__(self, model, optimizer, wrapped=None):
        self.model = model
        self.optimizer = optimizer
        self._scaler = torch.amp.GradScaler("cuda") if wrapped is None else wrapped.init_grad_scaler()

    def fit(self, loader):
        for batch in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model(batch)
            Calls().on_backward(self, {"loss": loss})
            self._scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self._scaler.step(self.optimizer)
            self._scaler.update()
"""


@pytest.mark.parametrize(
    ("backward", "marked"),
    [("trainer._scaler.scale(outputs['loss']).backward()", set()), ("outputs['loss'].backward()", {"AMP209"})],
)
def test_a_scaler_built_out_of_sight_is_one_in_other_files_too(tmp_path: Path, backward: str, marked: set[str]) -> None:
    calls = f"class Calls:\n    def on_backward(self, trainer, outputs):\n        {backward}\n"
    (tmp_path / "train.py").write_text(BORROWED)
    (tmp_path / "calls.py").write_text(calls)
    found = check([str(tmp_path)], rulebook.load()).findings
    assert {each.rule for each in found if each.severity >= Severity.WARNING} == marked
