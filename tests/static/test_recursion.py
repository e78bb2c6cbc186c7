"""Code that comes to itself again: it is walked once, and what stands around it is read all the same."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.check import check

_TRAINED = """
def train(model, optimizer, scaler, x, thing):
    with torch.autocast("cuda"):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    {use}
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""

_KINDS = {
    "a manager that is a generator": (
        """
        @contextlib.contextmanager
        def lowered(scaler):
            with torch.autocast("cuda"), lowered(scaler):
                yield
        """,
        "with lowered(scaler):\n        pass",
    ),
    "a manager's __enter__": (
        """
        class Lowered:
            def __enter__(self):
                with torch.autocast("cuda"), self:
                    return self
            def __exit__(self, *error):
                pass
        """,
        "with Lowered():\n        pass",
    ),
    "a property": (
        """
        class Held:
            @property
            def scaler(self):
                return self.scaler or torch.amp.GradScaler("cuda")
        """,
        "Held().scaler",
    ),
    "a closure that steps": (
        """
        def again(optimizer, loss):
            def closure():
                loss.backward()
                optimizer.step(closure)
            optimizer.step(closure)
        """,
        "again(torch.optim.LBFGS(thing.parameters()), thing(x))",
    ),
}


@pytest.mark.parametrize("kind", _KINDS)
def test_code_that_comes_to_itself_is_walked_once(tmp_path: Path, kind: str) -> None:
    top, use = _KINDS[kind]
    source = f"import contextlib\nimport torch\n{textwrap.dedent(top)}\n{_TRAINED.format(use=use)}"
    (tmp_path / "train.py").write_text(source)
    result = check([str(tmp_path)], rulebook.load())
    assert not [note for note in result.coverage.notes if "internal error" in note], result.coverage.notes
    assert "AMP202" in {finding.rule for finding in result.findings}
