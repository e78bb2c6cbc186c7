"""What is carried from step to step: running sums, moving averages, optimizer state, tables of positions."""

from __future__ import annotations

import pytest

from tests.static.dtypes.judging import filled, misjudged

SUMS = """
    import torch
    from torch import nn

    def train(model, loader, optimizer, scaler):
        model.train()
        head = nn.Linear(8, 8)
        START
        for x in loader:
            with torch.autocast("cuda"):
                out = head(model(x))
                loss = out.abs().mean()
            BODY
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""


def sums(start: str, body: str) -> None:
    assert misjudged(train=filled(SUMS.replace("START", start), body)) == []


@pytest.mark.parametrize(
    ("start", "body"),
    [
        ("total = 0", "total += loss  # AMP412"),
        ("total = 0.0", "total += loss.detach() * 2  # AMP412"),
        ("total = torch.zeros((), dtype=torch.float16)", "total += loss.detach().float()  # AMP412"),
        ("total = torch.zeros((), dtype=torch.bfloat16)", "total += 1  # AMP412"),
    ],
)
def test_sums_that_stop_growing(start: str, body: str) -> None:
    sums(start, body)


@pytest.mark.parametrize(
    ("start", "body"),
    [
        ("total = 0", "total += loss.item()"),
        ("total = 0", "total += loss.float()"),
        ("total = torch.zeros(())", "total += loss"),
        ("total = 0", "total = 0\ntotal += loss"),
        ("total = 0", "for part in out.chunk(2):\n    total += part.float().mean()"),
        ("total = 0", "parts = 0\nfor part in out.chunk(2):\n    parts += part.mean()"),
        ("count = 0", "count += 1"),
        ("total = 1", "total += nn.functional.mse_loss(out.float(), x)"),
    ],
)
def test_sums_that_grow(start: str, body: str) -> None:
    sums(start, body)


AVERAGES = """
    import copy
    import torch
    from torch import nn

    def train(model, loader, optimizer, decay):
        model = model.bfloat16()
        BODY
"""


@pytest.mark.parametrize(
    "body",
    [
        "ema = copy.deepcopy(model)\nfor a, b in zip(ema.parameters(), model.parameters()):\n"
        "    a.data.mul_(decay).add_(b.data, alpha=1 - decay)  # AMP412",
        "ema = copy.deepcopy(model)\nfor a, b in zip(ema.parameters(), model.parameters()):\n"
        "    a.lerp_(b, 1 - decay)  # AMP412",
        "ema = copy.deepcopy(model)\nown = model.state_dict()\nfor name, value in ema.state_dict().items():\n"
        "    value.mul_(decay).add_(own[name], alpha=1 - decay)  # AMP412",
    ],
)
def test_averages_in_low_precision(body: str) -> None:
    assert misjudged(train=filled(AVERAGES, body)) == []


@pytest.mark.parametrize(
    "body",
    [
        "ema = copy.deepcopy(model).float()\nfor a, b in zip(ema.parameters(), model.parameters()):\n"
        "    a.mul_(decay).add_(b, alpha=1 - decay)",
        "for p in model.parameters():\n    p.data.add_(p.grad, alpha=-decay)",
        "for p in model.parameters():\n    p.data.mul_(decay)",
        "torch.save({name: value.half() for name, value in model.state_dict().items()}, 'w.pt')",
    ],
)
def test_averages_in_float32_and_other_updates(body: str) -> None:
    assert misjudged(train=filled(AVERAGES, body)) == []


TABLES = """
    import torch
    from torch import nn

    class Rotary(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            rate = 1.0 / 10000 ** (torch.arange(0, dim, 2) / dim)
            self.register_buffer("table", TABLE)
            self.plain = rate

        def forward(self, x):
            return x * self.table

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rotary = Rotary()
            self.body = nn.Linear(8, 8)

    def serve(x):
        net = Net()
        BODY
        return net(x)
"""


@pytest.mark.parametrize(
    ("table", "body"),
    [
        ("rate", "net.half()  # AMP414"),
        ("rate * 2", "net = net.cuda().to(torch.bfloat16)  # AMP414"),
        ("rate.cos()", "net = net.cuda().to(torch.bfloat16)"),
        ("torch.cat([rate, rate])", "net.rotary.to(dtype=torch.float16)  # AMP414"),
        ("rate", "net.body.half()"),
        ("rate", "net.to('cuda')"),
        ("rate", "net.float()"),
        ("torch.arange(64)", "net.half()"),
        ("torch.ones(64)", "net.half()"),
    ],
)
def test_tables_that_are_cast_along(table: str, body: str) -> None:
    assert misjudged(train=filled(TABLES.replace("TABLE", table), body)) == []


AVERAGED = """
    import torch
    from {module} import {name}

    def train(loader, build):
        model = build().bfloat16()  # AMP402
        average = {name}(model){cast}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in loader:
            optimizer.zero_grad()
            model(x).float().mean().backward()
            optimizer.step()
            average.{method}(model){comment}
"""


@pytest.mark.parametrize(
    ("module", "name", "method"),
    [("torch.optim.swa_utils", "AveragedModel", "update_parameters"), ("timm.utils", "ModelEmaV2", "update")],
)
def test_averages_that_libraries_keep(module: str, name: str, method: str) -> None:
    known = {"module": module, "name": name, "method": method}
    assert misjudged(train=AVERAGED.format(**known, cast="", comment="  # AMP412")) == []
    assert misjudged(train=AVERAGED.format(**known, cast=".float()", comment="")) == []
    assert misjudged(train=AVERAGED.format(**{**known, "method": "eval"}, cast="", comment="")) == []


KEPT = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)
            self.seen = 0

        def forward(self, x):
            out = self.layer(x)
            self.seen += out.mean()
            return out

    class Meter:
        def __init__(self):
            self.reset()

        def reset(self):
            self.sum, self.count = 0, 0
            self.total = 0

        def update(self, value, n=1):
            self.total += value * nMETERED
            self.count += n

    class Trainer:
        def __init__(self):
            self.net = Net().cuda()
            self.optimizer = torch.optim.AdamW(self.net.parameters())

        def epoch(self, loader):
            self.running = 0.0
            totals = {"loss": 0.0}
            meter = Meter()
            for x in loader:
                self.optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = -self.net(x).mean()
                loss.backward()
                self.optimizer.step()
                BODY
            return self.running, totals

    Trainer().epoch([])
"""


@pytest.mark.parametrize(
    ("body", "metered"),
    [
        ("self.running += loss.detach()  # AMP412", ""),
        ('totals["loss"] += loss.detach()  # AMP412', ""),
        ("meter.update(loss.detach(), x.size(0))", "  # AMP412"),
        ("self.running += loss.item()", ""),
        ('totals["loss"] += loss.detach().float()', ""),
        ("meter.update(loss.item(), x.size(0))", ""),
        ("self.running = 0.0\nself.running += loss.detach()", ""),
        ('totals = {"loss": 0.0}\ntotals["loss"] += loss.detach()', ""),
        ("self.running += loss.detach()\nprint(self.running)\nself.running = 0.0", ""),
        ("self.running += loss.detach()\nif len(x) > 9:\n    self.running = 0.0", ""),
        ('totals["loss"] += loss.detach()\nif len(x) > 9:\n    totals["loss"] = 0.0', ""),
        ('if len(x) > 9:\n    totals["loss"] = 0\ntotals["loss"] += loss.detach()', ""),
        ("meter.reset()\nmeter.update(loss.detach())", ""),
        ("meter = Meter()\nmeter.update(loss.detach())", ""),
    ],
)
def test_sums_in_attributes_and_entries(body: str, metered: str) -> None:
    assert misjudged(train=filled(KEPT.replace("METERED", metered), body)) == []


VIEWS = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x):
            return self.layer(x)

    class Trainer:
        def __init__(self):
            self.net = Net().cuda()
            self.optimizer = torch.optim.AdamW(self.net.parameters())

        def epoch(self, loader):
            for x in loader:
                self.loss, total, parts = 0, 0, {"loss": 0}
                self.optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    for view in x.chunk(2):
                        BODY
                (self.loss + total + parts["loss"]).backward()
                self.optimizer.step()

    Trainer().epoch([])
"""


@pytest.mark.parametrize(
    "body",
    ["self.loss += self.net(view).mean()", "total += self.net(view).mean()", 'parts["loss"] += self.net(view).mean()'],
)
def test_the_terms_of_one_loss_are_no_sum_over_rounds(body: str) -> None:
    assert misjudged(train=filled(VIEWS, body)) == []
