"""AMP607: float32 tables that make float32 of what a region, or a cast by hand, has made low."""

from __future__ import annotations

import pytest

from tests.static.dtypes.judging import filled, misjudged

NETWORK = """
    import numpy as np
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Net(nn.Module):
        def __init__(self, width=8, **options):
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)
            self.conv, self.bn, self.norm = nn.Conv1d(8, 8, 3), nn.BatchNorm1d(8), nn.LayerNorm(8)
            self.embed, self.drop = nn.Embedding(8, 8), nn.Dropout(0.1)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2)
            self.weight = nn.Parameter(torch.ones(8))
            self.plain = torch.linspace(0, 1, 8)
            self.options = options
            self.register_buffer("table", torch.arange(8).float() / width)
            self.register_buffer("named", tensor=torch.ones(4, 8), persistent=False)
            self.register_buffer("given", options["given"])
            self.register_buffer("blank", torch.zeros(8))
            self.register_buffer("kept", torch.zeros(4, 8))
            self.kept[:, 0] = torch.sin(self.table)
            self.register_buffer("queue", torch.zeros(4, 8))
            self.register_buffer("sinusoids", self.angles(width))
            self.numpy = torch.from_numpy(np.sin(np.arange(8))).float()

        def angles(self, width):
            return torch.FloatTensor(np.array([[i / width for i in range(width)]])).unsqueeze(0)

        def rms(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

        def forward(self, x, mask):
            h = self.one(x)
            BODY

    def train(loader):
        model = Net().cuda()
        for x, mask in loader:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                model(x, mask)
"""


def network(body: str) -> None:
    assert misjudged(train=filled(NETWORK, body)) == []


@pytest.mark.parametrize(
    "table",
    [
        "self.table",
        "self.named",
        "self.kept",
        "self.sinusoids[:, :4]",
        "self.numpy.to(h.device)",
        "self.plain.to(h.device)",
        "self.named[:, :4]",
        "self.table[None]",
        "self.named[..., 0]",
        "self.table.expand(4, 8)",
        "torch.rand(h.shape, device=h.device)",
        "torch.ones(4, 8, dtype=torch.float32)",
        "torch.full((4, 8), 0.5)",
        "torch.tensor([1.0, 2.0])",
        "torch.cat([self.table, self.plain])",
        "(0.1 * torch.randn(8)).exp()",
        "(torch.rand(8) < 0.5).float()",
        "-self.table.unsqueeze(0)",
    ],
)
def test_what_a_table_widens_runs_in_float32_until_a_product(table: str) -> None:
    network(f"return self.two(F.relu(h * {table}))  # AMP607")


@pytest.mark.parametrize(
    "other",
    [
        "self.weight",
        "self.embed(mask)",
        "self.norm(h)",
        "mask",
        "mask.float()",
        "self.given",
        "torch.from_numpy(mask).float()",
        "self.table[3]",
        "self.table.mean()",
        "self.table.sum()",
        "self.table.amax(0)",
        "torch.sqrt(torch.tensor([0.5])).squeeze(0)",
        "torch.ones(1).view(())",
        "torch.ones(8).norm(dim=0)",
        "torch.tensor(0.5)",
        "torch.ones(())",
        "torch.ones([])",
        "torch.full((8,), 1)",
        "torch.ones(8, dtype=h.dtype)",
        "torch.ones(8, dtype=torch.bfloat16)",
        "torch.ones(8, **self.options)",
        "self.table.to(h.dtype)",
        "self.table.to(h)",
        "self.table.type_as(h)",
        "self.table.to(h.device, h.dtype)",
        "self.table.bfloat16()",
        "torch.randn_like(h)",
        "h.new_ones(8)",
        "torch.arange(8)",
        "torch.zeros(8)",
        "self.blank",
        "2.0",
    ],
)
def test_what_is_no_table_or_no_float32_widens_nothing_that_is_told(other: str) -> None:
    network(f"return self.two(F.relu(h * {other}))")


@pytest.mark.parametrize(
    "body",
    [
        """
        h = self.drop(h + self.table)  # AMP607
        return self.encoder(h)
        """,
        """
        h = h + self.table  # AMP607
        return self.encoder(h)
        """,
        """
        h = h + self.table  # AMP607
        h = h + self.two(self.norm(h))
        return self.two(self.norm(h))
        """,
        """
        h = torch.cat([h, torch.zeros(2, 8)])  # AMP607
        return self.two(F.gelu(h).view(-1, 8))
        """,
        """
        h = torch.where(mask, h, torch.zeros(1))  # AMP607
        return self.two(torch.tanh(h))
        """,
        """
        for scale in range(3):
            h = h * self.table  # AMP607
            h = self.bn(h)
            h = self.conv(h)
        return h
        """,
        """
        a = F.silu(h - self.table)  # AMP607
        b = F.silu(self.plain + h)  # AMP607
        return self.two(a * b)
        """,
        """
        h = h + self.table  # AMP607
        h = h + self.two(self.rms(h.float()).type_as(h))
        return self.two(self.rms(h.float()).type_as(h))
        """,
        """
        h = F.relu(h * self.table)  # AMP607
        return F.scaled_dot_product_attention(h, h, h)
        """,
    ],
)
def test_whatever_runs_in_float32_on_the_way(body: str) -> None:
    network(body)


@pytest.mark.parametrize(
    "body",
    [
        "return self.two(h * self.table)",
        "return self.two(self.norm(h + self.table))",
        "return self.two(F.relu(self.norm(h + self.table)))",
        "return F.dropout((h @ h.T + self.table).softmax(-1)) @ h",
        "scores = torch.cat([torch.zeros(4, 1), h], -1)[:, 1:] + h\nreturn scores.softmax(-1) @ h",
        "return self.two(F.relu(self.rms(h + self.table)))",
        "return self.two(h * self.table + h.flip(-1) * self.plain)",
        "return self.two((h - self.table) / self.plain)",
        "return self.two(F.relu((h * self.table).to(h.dtype)))",
        "return self.two(F.relu((h * self.table).bfloat16()))",
        "return self.two(F.relu((h * self.table).float()))",
        "return self.two(F.relu(h.float() * self.table))",
        "return self.two(F.relu(self.embed(mask) + self.table))",
        "return self.two(F.relu(self.norm(h) + self.table))",
        "return self.two(F.relu(torch.cat([h * self.table, self.norm(h)])))",
        "return self.two(torch.sin(h * self.table))",
        "return torch.sigmoid(h) * 2 + self.table",
        "return F.relu(h - self.table).mean()",
        "return F.l1_loss(F.relu(h * self.table), mask)",
        "h *= self.table\nreturn self.two(F.relu(h))",
        "for one in self.table:\n    h = self.two(F.relu(h * one))\nreturn h",
        "total = torch.zeros(8)\ntotal = total + h\nreturn self.two(F.relu(total))",
        "s = torch.zeros(8)\nfor _ in range(3):\n    s = self.two(F.relu(torch.cat([h, s])))\nreturn s",
        "s = torch.zeros(8)\nfor _ in x:\n    h = F.relu(torch.where(mask, 1 - s, h))\n    s += h\nreturn self.two(h)",
        "self.state = torch.zeros(8)\nreturn self.two(F.relu(torch.cat([h, self.state])))",
        "self.queue[0] = self.norm(h)\nreturn self.two(F.relu(h * self.queue))",
        "out = torch.ones(8)\nout[0] = mask\nreturn self.two(F.relu(h * out))",
        "with torch.autocast('cuda', enabled=False):\n    return self.two(F.relu(h.float() * self.table))",
    ],
)
def test_what_is_meant_or_costs_next_to_nothing(body: str) -> None:
    network(body)


def test_a_positional_table_beside_embeddings_and_beside_a_layer() -> None:
    """The same module after an embedding, which autocast leaves in float32, and after a linear layer."""
    model = """
    import torch
    from torch import nn

    class Positions(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.drop = nn.Dropout(0.1)
            self.register_buffer("pe", torch.zeros(1, 64, width))
            self.pe[0, :, 0::2] = torch.sin(torch.arange(64).unsqueeze(1).float())

        def forward(self, x):
            return self.drop(x + self.pe[:, : x.size(1)])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.positions, self.out = nn.Embedding(8, 8), Positions(8), nn.Linear(8, 8)

        def forward(self, x, mask):
            return self.out(self.positions(self.embed(x)))
    """
    train = """
    import torch
    from model import Net

    def train(loader):
        model = Net().cuda()
        for x, mask in loader:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                model(x, mask)
    """
    assert misjudged(model=model, train=train) == []
    assert (
        misjudged(
            model=model.replace("nn.Embedding(8", "nn.Linear(8").replace("size(1)])", "size(1)])  # AMP607"),
            train=train,
        )
        == []
    )


@pytest.mark.parametrize(
    ("cast", "table", "mark"),
    [
        ("bfloat16()", "self.plain.cuda()", "  # AMP607"),
        ("half()", "torch.ones(8, device=x.device)", "  # AMP607"),
        ("bfloat16()", "self.table", ""),
        ("bfloat16()", "self.plain.to(h)", ""),
        ("float()", "self.plain.cuda()", ""),
    ],
)
def test_models_that_are_cast_by_hand_take_their_buffers_along(cast: str, table: str, mark: str) -> None:
    source = filled(NETWORK, f"return self.two(h * {table}){mark}")
    source = source.replace("torch.arange(8).float() / width", "torch.linspace(0, 1, 8)")
    source = source.replace(".cuda()\n", f".cuda().{cast}\n").replace("model(x, mask)", f"model(x.{cast}, mask)")
    source = source.replace('torch.autocast("cuda", dtype=torch.bfloat16)', "torch.inference_mode()")
    assert misjudged(train=source) == []


def test_an_attribute_that_a_condition_replaces_may_be_either() -> None:
    """A distribution whose deviation is zero where nothing is drawn."""
    assert (
        misjudged(
            train="""
    import torch
    from torch import nn

    class Gaussian:
        def __init__(self, mean, log, exact=False):
            self.mean, self.std = mean, torch.exp(log)
            if exact:
                self.std = torch.zeros_like(mean)

        def sample(self):
            return self.mean + self.std * torch.randn(self.mean.shape)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x, exact):
            return self.two(torch.relu(Gaussian(self.one(x), self.one(x), exact).sample()))

    def train(loader):
        model = Net().cuda()
        for x, exact in loader:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                model(x, exact)
    """
        )
        == []
    )
