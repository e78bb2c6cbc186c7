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


GROUPED = """
    import torch
    from torch import nn
    from transformers import AutoModel

    def lists(net):
        decay, rest = [], []
        for name, p in net.named_parameters():
            if p.ndim < 2 or name.endswith("bias"):
                rest.append(p)
            else:
                decay.append(p)
        return [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]

    def shapes(net):
        named = {name: p for name, p in net.named_parameters() if p.requires_grad}
        large, small = [p for p in named.values() if p.dim() > 1], [p for p in named.values() if p.dim() <= 1]
        return [{"params": large}, {"params": small}]

    def train(loader):
        plain = ["bias", "LayerNorm.weight"]
        net = MODEL
        groups = GROUPS
        optimizer = torch.optim.SGD(groups, lr=0.1)
        for x in loader:
            net(x.bfloat16()).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
"""
NAMED = """[
            {"params": [p for n, p in net.named_parameters() if not any(w in n for w in plain)], "weight_decay": 0.1},
            {"params": [p for n, p in net.named_parameters() if any(w in n for w in plain)], "weight_decay": 0.0},
        ]"""
HALF = "nn.Linear(8, 2).to(torch.bfloat16)"


@pytest.mark.parametrize("groups", [NAMED, "lists(net)", "shapes(net)"])
@pytest.mark.parametrize("model", [HALF, "AutoModel.from_pretrained('name', torch_dtype=torch.bfloat16)"])
def test_groups_by_name_or_shape_that_one_optimizer_gets(groups: str, model: str) -> None:
    program = GROUPED.replace("GROUPS", groups).replace("MODEL", f"{model}  # AMP402")
    assert misjudged(train=program) == []


@pytest.mark.parametrize(
    "groups",
    [
        "[p for n, p in net.named_parameters() if 'head' in n]",
        "[p for n, p in net.named_parameters() if p.dtype == torch.float32]",
        "[[p for p in net.parameters() if p.dtype == torch.float32], [p for p in net.parameters() if p.ndim > 1]][0]",
    ],
)
def test_one_choice_is_no_group_of_all(groups: str) -> None:
    assert misjudged(train=GROUPED.replace("GROUPS", groups).replace("MODEL", HALF)) == []


def test_groups_where_something_is_frozen() -> None:
    frozen = (
        GROUPED.replace("GROUPS", NAMED)
        .replace("MODEL", HALF)
        .replace("        groups", "        freeze(net)\n        groups", 1)
    )
    assert misjudged(train=frozen) == []


CHOSEN = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(8, 8).half()MARK
            self.prompt, self.score = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.score(self.body(self.prompt(x)))

    def main(loader):
        model = Net().cuda()
        one, two = ([p for n, p in model.named_parameters() if ONE], [p for n, p in model.named_parameters() if TWO])
        optimizer = torch.optim.AdamW([{"params": one, "lr": 1e-3}, {"params": two, "lr": 1e-4}])
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            with torch.autocast("cuda"):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("one", "two", "whole"),
    [
        ("n.startswith('prompt')", "n.startswith('score')", False),
        ("n.startswith('body')", "not n.startswith('body')", True),
        ("'body' in n", "'score' in n", False),
        ("'body' in n", "'body' not in n", True),
        ("p.ndim >= 2", "p.ndim < 2", True),
        ("p.ndim >= 2", "p.ndim < 1", False),
        ("not any(w in n for w in names)", "any(w in n for w in names)", True),
        ("any(w in n for w in names)", "any(w in n for w in others)", False),
    ],
)
def test_two_choices_are_the_whole_where_one_takes_what_the_other_leaves(one: str, two: str, whole: bool) -> None:
    program = CHOSEN.replace("ONE", one).replace("TWO", two).replace("MARK", "  # AMP403" if whole else "")
    assert misjudged(train=program) == []
