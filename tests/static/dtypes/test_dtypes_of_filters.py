"""Filters on ``requires_grad``: they leave parameters out where something is frozen, and nothing where nothing is."""

from __future__ import annotations

import pytest

from tests.static.dtypes.judging import filled, misjudged

PROGRAM = """
    import torch
    import torchvision
    from peft import get_peft_model
    from torch import nn
    from transformers import AutoModel

    def train(loader, given, build):
        BODY
        scaler = torch.amp.GradScaler("cuda")
        for x in loader:
            with torch.autocast("cuda"):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""
LAMBDA = "optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()))"
LISTED = "optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad])"


@pytest.mark.parametrize("optimizer", [LAMBDA, LISTED])
@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("model = nn.Linear(8, 2)\nmodel.half()", True),
        ("model = AutoModel.from_pretrained('name')\nmodel.half()", True),
        ("model = torchvision.models.swin_t()\nmodel.half()", True),
        ("model = build()\nmodel.half()", False),
        ("model = given\nmodel.half()", False),
        ("model = nn.Linear(8, 2)\nmodel.bias.requires_grad = True\nmodel.half()", False),
        ("model = nn.Linear(8, 2)\nbuild.freeze(model)\nmodel.half()", False),
    ],
)
def test_a_filter_on_what_is_trained(model: str, found: bool, optimizer: str) -> None:
    program = PROGRAM if "freeze" not in model else PROGRAM.replace("import torchvision", "")
    program = program.replace("    from peft import get_peft_model\n", "")
    assert misjudged(train=filled(program, f"{model}{'  # AMP403' if found else ''}\n{optimizer}")) == []


def test_a_filter_beside_adapters() -> None:
    assert misjudged(train=filled(PROGRAM, f"model = nn.Linear(8, 2)\nmodel.half()\n{LAMBDA}")) == []


@pytest.mark.parametrize("test", ["p.dtype == torch.float32", "p.ndim > 1", "p.requires_grad and p.ndim > 1"])
def test_another_filter(test: str) -> None:
    program = PROGRAM.replace("    from peft import get_peft_model\n", "")
    optimizer = f"optimizer = torch.optim.SGD([p for p in model.parameters() if {test}])"
    assert misjudged(train=filled(program, f"model = nn.Linear(8, 2)\nmodel.half()\n{optimizer}")) == []


MAKER = """
    from torch import nn

    def build(fp16):
        model = nn.Linear(8, 2).cuda()
        if fp16:
            model = model.half(){comment}
        return model
"""
TRAINER = """
    import torch

    class Trainer:
        def __init__(self, model, loader):
            self.model, self.loader = model, loader
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            self.scaler = torch.amp.GradScaler("cuda")

        def fit(self):
            for x in self.loader:
                with torch.autocast("cuda"):
                    loss = self.model(x).mean()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
"""
START = """
    from maker import build
    from trainer import Trainer

    def main(loader):
        Trainer(build({flag}), loader).fit()

    if __name__ == "__main__":
        main(list(range(8)))
"""


@pytest.mark.parametrize(("flag", "comment"), [("True", "  # AMP403"), ("False", "")])
def test_a_model_that_code_without_a_word_of_it_hands_to_a_trainer(flag: str, comment: str) -> None:
    assert misjudged(main=START.format(flag=flag), maker=MAKER.format(comment=comment), trainer=TRAINER) == []


SCALED = """
    import torch
    from torch import nn

    def train(loader, u):
        model = nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for x in loader:
            with torch.autocast("cuda"):
                losses = BODY
            scaler.scale(losses).mean().backward()COMMENT
            scaler.step(optimizer)
            scaler.update()
"""


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        ("model(x)", True),
        ("model(x).squeeze(-1)", True),
        ("model(x).view(-1)", True),
        ("model(x).float()", False),
        ("model(x).mean()", False),
        ("model(x).squeeze(-1) @ u", False),
    ],
)
def test_a_scaled_loss_that_has_dimensions(loss: str, found: bool) -> None:
    assert misjudged(train=SCALED.replace("BODY", loss).replace("COMMENT", "  # AMP219" if found else "")) == []
