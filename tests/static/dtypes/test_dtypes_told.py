"""What frameworks run in regions of their own, in the precision that they are told."""

from __future__ import annotations

import pytest

from tests.static.dtypes.judging import misjudged

MODULE = """
    import MODULES
    import torch
    from torch import nn

    class Net(NAME.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(8, 1)
            self.loss = nn.BCELoss()

        def scores(self, x, mask):
            return self.net(x).masked_fill(mask, -1e9)OVERFLOWS

        def training_step(self, batch, index):
            x, mask, y = batch
            return self.loss(torch.sigmoid(self.scores(x, mask)), y)BANNED

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)
"""
TRAIN = """
    import MODULES
    from net import Net

    def main(loader):
        NAME.Trainer(devices=1, TOLD).fit(Net(), loader)
"""
OVERFLOWS, BANNED = "  # AMP501", "  # AMP315"


def filled(text: str, imported: str, **words: str) -> str:
    text = text.replace("MODULES", imported).replace("NAME", imported.rpartition(" ")[2])
    for word, value in words.items():
        text = text.replace(word, value)
    return text


@pytest.mark.parametrize("imported", ["lightning as L", "pytorch_lightning as pl"])
@pytest.mark.parametrize(
    ("told", "overflows", "banned"),
    [
        ('precision="16-mixed"', OVERFLOWS, BANNED),
        ("precision=16", OVERFLOWS, BANNED),
        ('precision="bf16-mixed"', "", BANNED),
        ('precision="bf16-mixed", accelerator="cpu"', "", ""),
        ('precision="32-true"', "", ""),
        ("max_epochs=3", "", ""),
        ("precision=loader.precision", "", ""),
    ],
)
def test_the_precision_of_the_trainer(told: str, overflows: str, banned: str, imported: str) -> None:
    net = filled(MODULE, imported, OVERFLOWS=overflows, BANNED=banned)
    assert misjudged(net=net, train=filled(TRAIN, imported, TOLD=told)) == []


def test_trainers_of_several_precisions() -> None:
    net = filled(MODULE, "lightning as L", OVERFLOWS="", BANNED="")
    trains = {"one": 'precision="16-mixed"', "two": 'precision="32-true"'}
    assert (
        misjudged(net=net, **{name: filled(TRAIN, "lightning as L", TOLD=told) for name, told in trains.items()}) == []
    )


OWN = """
    import lightning as L
    import torch
    from torch import nn

    class Net(L.LightningModule):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def training_step(self, batch, index):
            x, y = batch
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out = self.net(x)
            return nn.functional.cross_entropy(out, y)MARK

    def main(net, loader):
        L.Trainer(TOLD).fit(Net(net), loader)
"""


@pytest.mark.parametrize(("told", "mark"), [('precision="bf16-mixed"', ""), ("", "  # AMP309")])
def test_a_region_of_its_own_within_that_of_the_trainer(told: str, mark: str) -> None:
    assert misjudged(train=OWN.replace("TOLD", told).replace("MARK", mark)) == []


GIVEN = """
    import torch
    from accelerate import Accelerator
    from torch import nn
    from transformers import Trainer, TrainingArguments

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(8, 1)

        def forward(self, x, mask):
            return self.net(x).masked_fill(mask, -1e9).softmax(-1)MARK

    def with_trainer(data):
        arguments = TrainingArguments("out", num_train_epochs=1, TRAINER)
        Trainer(model=Net(), args=arguments, train_dataset=data).train()

    def with_accelerator(loader):
        accelerator = Accelerator(ACCELERATOR)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
        for x, mask in loader:
            accelerator.backward(net(x, mask).mean())
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("trainer", "accelerator", "found"),
    [
        ("fp16=True", "", True),
        ("bf16=False", 'mixed_precision="fp16"', True),
        ("bf16=True", 'mixed_precision="bf16"', False),
        ("fp16=False", 'mixed_precision="no"', False),
        ("fp16=data.half", "mixed_precision=None", False),
    ],
)
def test_models_that_a_framework_trains(trainer: str, accelerator: str, found: bool) -> None:
    program = GIVEN.replace("TRAINER", trainer).replace("ACCELERATOR", accelerator)
    assert misjudged(train=program.replace("MARK", OVERFLOWS if found else "")) == []
