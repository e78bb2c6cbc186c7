"""The callbacks of transformers and Lightning: a recording for each training, from the frameworks' own loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from amp_audit.integrations.transformers import AmpAudit

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 2)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            return {"loss": torch.nn.functional.cross_entropy(self.fc(x), labels)}

    data = [{"x": torch.randn(4), "labels": torch.tensor(n % 2)} for n in range(12)]
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), per_device_train_batch_size=4, max_steps=3, use_cpu=True, bf16=True, report_to=[]
    )
    callback = AmpAudit(sample="all")
    assert callback.recording is None
    trainer = transformers.Trainer(Model(), arguments, train_dataset=data, callbacks=[callback])
    trainer.train()
    assert callback.recording is not None
    (trace,) = callback.recording.traces
    assert trace.end is not None and (trace.end.steps, trace.end.reason) == (3, "finished")
    assert {row.inputs[0] for step in trace.steps for row in step.ops if row.op == "aten.addmm"} == {"bfloat16"}
    assert callback.recording.findings == ()


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from amp_audit.integrations.lightning import AmpAudit

    class Model(lightning.LightningModule):  # type: ignore[misc,name-defined,unused-ignore]
        def __init__(self, fails: bool = False) -> None:
            super().__init__()
            self.fc, self.fails = torch.nn.Linear(4, 2), fails

        def training_step(self, batch: Any, index: int) -> Any:
            if self.fails and index == 2:
                raise KeyError("mine")
            return self.fc(batch).float().square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(callback: Any, model: Any) -> None:
        trainer = lightning.Trainer(
            max_steps=3, accelerator="cpu", precision="bf16-mixed", logger=False, callbacks=[callback],
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, torch.utils.data.DataLoader(torch.randn(12, 4), 4))

    callback = AmpAudit(sample="all")
    fit(callback, Model())
    assert callback.recording is not None
    (trace,) = callback.recording.traces
    assert trace.end is not None and (trace.end.steps, trace.end.reason) == (3, "finished")
    assert {row.autocast for step in trace.steps for row in step.ops if row.op == "aten.addmm"} == {"bfloat16"}

    with pytest.raises(KeyError):
        fit(callback, Model(fails=True))
    (trace,) = callback.recording.traces
    assert trace.end is not None and (trace.end.steps, trace.end.reason) == (2, "failed")
