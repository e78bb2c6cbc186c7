"""What is computed in a forward under CUDA autocast: constants that do not fit, losses that raise."""

from __future__ import annotations

import textwrap

import pytest

from tests.static.dtypes.judging import filled, misjudged

FORWARD = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Net(nn.Module):
        def __init__(self, eps=1e-8):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.norm = nn.LayerNorm(8)
            self.eps = eps
            self.fp16 = True
            self.factor = 8 ** -0.5

        def forward(self, x, mask):
            h = self.fc(x) * self.factor
            BODY

    def train(loader):
        model = Net()
        for x, mask in loader:
            with torch.autocast("cuda"):
                model(x, mask)
"""


def forward(body: str) -> None:
    assert misjudged(train=filled(FORWARD, body)) == []


@pytest.mark.parametrize(
    "line",
    [
        "h.float().masked_fill(mask, -1e9)",
        "self.norm(h).masked_fill(mask, -1e9)",
        "h.softmax(-1) + 1e-8",
        "h.masked_fill(mask, float('-inf'))",
        "h.masked_fill(mask, -1e4)",
        "h.masked_fill(mask, torch.finfo(h.dtype).min)",
        "h.masked_fill(mask, -torch.finfo(h.dtype).max)",
        "x.masked_fill(mask, -1e9)",
        "mask.masked_fill(mask > 0, 10 ** 9)",
        "torch.full((100_000,), 0.0, dtype=h.dtype)",
        "h.norm(dim=-1) + self.eps",
        "(h.exp() + 1e-12).log()",
        "(h * 1e-8).sum()",
        "(h + x.float()) + 1e-12",
        "h.double() + 1e-12",
        "h.clamp(min=1e-6)",
        "h.sum(-1).clamp(min=1e-12)",
        "F.normalize(h, dim=-1)",
        "F.layer_norm(h, (8,), eps=1e-12)",
        "h.mean().item() + 1e-12",
        "len(h) / (h.shape[0] + 1e-12)",
        "F.mse_loss(h, x) + 1e-12",
        "F.binary_cross_entropy_with_logits(h, x)",
        "1 / h + 1e-12",
        "h ** 2 + 1e-12",
        "torch.where(mask, h, torch.finfo(h.dtype).min)",
        "torch.where(mask, h.float(), -1e9)",
        "h + (mask * -1e4)",
        "h.float() + (1 - mask.float()) * -1e9",
        "h + torch.full((8,), float('-inf')).triu(1)",
        "h.pow(2).mean() + h.square().sum()",
        "(h * x).sum(-1)",
        "h.mean() + h.var() + h.std()",
        "h.log_softmax(-1) + F.logsigmoid(h)",
        "torch.log(torch.sigmoid(h) + 1e-4)",
        "torch.log(1 + torch.sigmoid(h))",
        "h.softmax(-1).log()",
        "torch.exp(h) / torch.exp(h).sum()",
        "torch.linalg.norm(h) + torch.linalg.inv(h.float())",
        "torch.zeros(8).scatter_add(0, mask, h)",
        "torch.arange(8).to(h.dtype) * h",
        "torch.arange(x.shape[1]).float()",
        "x @ h.float()",
        "self.norm(h) @ h.float()",
        "F.one_hot(torch.arange(8), 8).to(h.dtype) @ h",
        "h if not torch.jit.is_scripting() else h.masked_fill(mask, -1e9)",
        "torch.stack([h, x])",
        "torch.einsum('...n,d->...nd', h, torch.arange(4, dtype=torch.float64))",
    ],
)
def test_lines_that_are_right(line: str) -> None:
    forward(f"y = {line}\nreturn y")


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("h.masked_fill_(mask, -1e9)", "AMP501"),
        ("torch.masked_fill(h, mask, value=-1e9)", "AMP501"),
        ("h.relu().view(-1, 4).permute(1, 0).masked_fill(mask, -(10 ** 10))", "AMP501"),
        ("torch.full_like(h, float('1e30'))", "AMP501"),
        ("h.new_full((2,), torch.finfo(torch.float32).min)", "AMP501"),
        ("torch.full((2,), -1e9, dtype=h.dtype)", "AMP501"),
        ("torch.clamp(h, -1e5, 1e5)", "AMP501"),
        ("F.pad(h, (1, 1), value=-1e9)", "AMP501"),
        ("h + 1e-8", "AMP503"),
        ("self.eps + h", "AMP503"),
        ("h / (h.abs().mean(-1) + self.eps)", "AMP503"),
        ("torch.sigmoid(h).clamp(1e-7, 1 - 1e-7)", "AMP503"),
        ("h.clip(max=0.9999)", "AMP503"),
        ("torch.clamp_min(h.amax(-1), 1e-12)", "AMP503"),
        ("(h.abs() * 2).mean() + 1e-9", "AMP503"),
        ("torch.einsum('bi,bj->ij', h, h).add(1e-10)", "AMP503"),
        ("F.binary_cross_entropy(torch.sigmoid(h), x)", "AMP315"),
        ("torch.where(mask, h, -1e9)", "AMP502"),
        ("torch.where(mask, -1e9, h)", "AMP502"),
        ("torch.where(mask, torch.tensor(-1e9), h)", "AMP502"),
        ("h + -1e10", "AMP502"),
        ("h - 1e9", "AMP502"),
        ("h.add_((1 - mask) * -1e9)", "AMP502"),
        ("(1 - h) * -1e9", "AMP502"),
        ("torch.full((8,), -1e9).to(h.dtype)", "AMP502"),
        ("torch.full((8,), -1e9).half()", "AMP502"),
        ("h + torch.full((8,), torch.finfo(torch.float16).min, dtype=torch.float16).triu(1)", "AMP502"),
        ("(h * h).mean(-1)", "AMP504"),
        ("h.pow_(2)", "AMP504"),
        ("torch.log(torch.sigmoid(h))", "AMP505"),
        ("h.sigmoid().view(-1).log()", "AMP505"),
        ("torch.log(1 - h.sigmoid())", "AMP505"),
        ("torch.log2(1 - torch.sigmoid(h))", "AMP505"),
        ("torch.linalg.inv(h)", "AMP406"),
        ("torch.quantile(h, 0.5)", "AMP406"),
        ("h.det()", "AMP406"),
        ("torch.fft.rfft(h)", "AMP406"),
        ("torch.zeros(8).scatter_add_(0, mask, h)", "AMP405"),
        ("torch.zeros(8).index_add_(0, mask, h)", "AMP405"),
        ("torch.lerp(h, x.float(), 0.5)", "AMP405"),
        ("torch.arange(x.shape[1]).to(h.dtype)", "AMP409"),
        ("torch.arange(x.shape[1], dtype=h.dtype)", "AMP409"),
        ("torch.arange(4096).type_as(h)", "AMP409"),
        ("[torch.arange(w, dtype=torch.bfloat16) for h, w in [x.shape[-2:]]]", "AMP409"),
        ("[torch.arange(length, dtype=h.dtype) for _, length in [x.shape[-2:]]]", "AMP409"),
        ("h.float() @ x.float()", "AMP307"),
        ("torch.einsum('bi,bj->ij', x.float(), h.to(torch.float32))", "AMP307"),
        ("h.float().flatten(1).transpose(0, 1) @ h.float()", "AMP307"),
        ("(h.float() * 0.125) @ h.float().unsqueeze(0)", "AMP307"),
        ("(h.float() - h.float().mean(0)).T @ x.float()", "AMP307"),
        ("F.mse_loss(h, x.double())", "AMP410"),
        ("x.double() @ h", "AMP410"),
        ("torch.einsum('bi,bj->ij', x.double(), h)", "AMP410"),
        ("nn.BCELoss(reduction='sum')(torch.sigmoid(h), x)", "AMP315"),
    ],
)
def test_lines_that_are_wrong(line: str, rule: str) -> None:
    forward(f"y = {line}  # {rule}\nreturn y")


@pytest.mark.parametrize(
    "body",
    [
        # the constant goes with the dtype
        """
        if h.dtype == torch.float16:
            h = h.masked_fill(mask, -1e4)
        else:
            h = h.masked_fill(mask, -1e9)
        """,
        """
        if self.fp16:
            value = -1e4
        else:
            value = -1e9
        h = h.masked_fill(mask, value)
        """,
        """
        if not self.training and self.use_fp16:
            h = h.masked_fill(mask, -1e4)
        elif not self.use_fp16:
            h = h.masked_fill(mask, -1e9)
        """,
        "h = h.masked_fill(mask, -1e4 if h.dtype in (torch.float16, torch.bfloat16) else -1e9)",
        "h = h.masked_fill(mask, {torch.float16: -1e4, torch.float32: -1e9}[h.dtype])",
        # half of a head's width is within the integers that float16 and bfloat16 have
        "h = h * torch.arange(x.shape[-1] // 2, dtype=h.dtype).repeat(2)",
        "h = h * torch.arange(x.shape[-1] // 2, dtype=torch.bfloat16).repeat(2)",
        # the sides of a map are within the integers that float16 has
        """
        n, c, height, width = x.shape
        rows = torch.arange(height, dtype=h.dtype)
        h = h + rows[:, None] * torch.arange(width, device=x.device).to(h.dtype)
        """,
        # cast on the way
        """
        if h.dtype != torch.float32:
            h = h.float()
        h = h.masked_fill(mask, -1e9)
        """,
        """
        with torch.autocast("cuda", enabled=False):
            h = self.fc(x.float()).masked_fill(mask, -1e9)
        """,
        """
        def plain(t):
            return t.masked_fill(mask, -1e9)
        h = plain(h.float())
        """,
        """
        for _ in range(3):
            h = h.float()
            h = h.masked_fill(mask, -1e9)
        """,
    ],
)
def test_bodies_that_are_right(body: str) -> None:
    forward(textwrap.dedent(body))


@pytest.mark.parametrize(
    ("body", "product"),
    [
        ("z = h.float()\nz = z - z.mean(0)", "z.T @ z"),
        ("z = h.float()\nz -= z.mean(0, keepdim=True)", "torch.matmul(z.t(), z)"),
        ("z = h.view(-1, 4).to(torch.float32).permute(1, 0)", "torch.mm(z, z.T)"),
    ],
)
def test_a_cast_to_float32_is_undone_after_centring(body: str, product: str) -> None:
    forward(f"{body}\nreturn {product}  # AMP307")
    forward(f"with torch.autocast('cuda', enabled=False):\n{textwrap.indent(body, '    ')}\n    return {product}")


@pytest.mark.parametrize(
    "body",
    [
        "z = h.float()\nz = (z - z.mean(0)).to(h.dtype)\nreturn z.T @ z",
        "z = h.float()\nz = (z - z.mean(0)).double()\nreturn z.T @ z",
        "z = (h.float() - h.float().mean(0)) / h.float().std(0)\nreturn z.T @ z",  # for the division
        "z = h.float() * torch.cos(x)\nreturn z @ z.T",  # for the rotation
        "z = h.float() * torch.rsqrt(h.float().square().mean(-1, keepdim=True) + 1e-6)\nreturn z @ z.T",  # for the norm
        "z = h.float().softmax(-1)\nreturn z @ z.T",
        "z = h.float() - h.float().mean(0)\nreturn self.fc(z)",  # weights are cast anyway
        "z = h.float() - h.float().mean(0)\nreturn z.square().sum(0) / len(z)",
    ],
)
def test_a_cast_to_float32_has_served(body: str) -> None:
    forward(body)


@pytest.mark.parametrize(
    "body",
    [
        """
        if mask is not None:
            h = h.masked_fill(mask, -1e9)  # AMP501
        """,
        """
        value = -1e9
        for _ in range(3):
            h = self.fc(h).masked_fill(mask, value)  # AMP501
        """,
        """
        def plain(t, fill=-1e9):
            return t.masked_fill(mask, fill)  # AMP501
        h = plain(h)
        """,
        """
        try:
            h = self.fc(h)
        except RuntimeError:
            raise
        h = h.masked_fill(mask, -1e9)  # AMP501
        """,
        """
        if torch.is_autocast_enabled():
            h = h.masked_fill(mask, -1e9)  # AMP501
        """,
        """
        with torch.autocast("cuda", enabled=False):
            h = h * 2
            h = h.masked_fill(mask, -1e9)  # AMP501
        """,
    ],
)
def test_bodies_that_are_wrong(body: str) -> None:
    forward(textwrap.dedent(body))


@pytest.mark.parametrize(
    ("decorator", "comment"),
    [
        ('@torch.autocast("cuda", enabled=False)', ""),
        ("@torch.amp.custom_fwd(cast_inputs=torch.float32, device_type='cuda')", ""),
        ("@torch.no_grad()", "  # AMP315"),
        ("@torch.cuda.amp.custom_fwd", "  # AMP315"),
    ],
)
def test_decorated_losses(decorator: str, comment: str) -> None:
    assert (
        misjudged(
            train=f"""
        import torch
        import torch.nn.functional as F

        {decorator}
        def loss_of(p, y):
            return F.binary_cross_entropy(p.float(), y){comment}

        def train(model, loader):
            for x, y in loader:
                with torch.autocast("cuda"):
                    loss = loss_of(model(x), y)
        """
        )
        == []
    )


@pytest.mark.parametrize(("cast", "mark"), [(".to(dtype=torch.bfloat16)", ""), (".bfloat16()", ""), ("", "  # AMP405")])
def test_parameters_are_cast_along_with_their_model(cast: str, mark: str) -> None:
    assert (
        misjudged(
            train=f"""
        import torch
        from torch import nn

        class Experts(nn.Module):
            def __init__(self):
                super().__init__()
                self.gain = nn.Parameter(torch.rand(4, 8))

            def forward(self, x, rows):
                out = torch.zeros(4, 8, dtype=torch.bfloat16)
                return out.index_add_(0, rows, self.gain.view(4, 8)[rows] * 2){mark}

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.experts = Experts()

            def forward(self, x, rows):
                return self.experts(x, rows)

        def run(loader):
            model = Net(){cast}
            for x, rows in loader:
                model(x.bfloat16(), rows)
        """
        )
        == []
    )
