"""Casts to float32 that the product they are made for undoes: of weights, too, which are float32 anyway."""

from __future__ import annotations

import pytest

from tests.static.dtypes.judging import filled, misjudged

QUANTIZER = """
    import torch
    from torch import nn

    class Quantizer(nn.Module):
        def __init__(self, count, width):
            super().__init__()
            self.proj = nn.Linear(width, width)
            self.codebook = nn.Embedding(count, width)
            self.scale = nn.Parameter(torch.ones(width, width))

        def forward(self, z):
            h = self.proj(z)
            BODY
            return d

    @torch.no_grad()
    def run(loader):
        quantizer = Quantizer(16, 4).cuda()
        with torch.autocast("cuda", dtype=torch.float16):
            return [quantizer(z).argmin(1) for z in loader]
"""


@pytest.mark.parametrize(
    "body",
    [
        "d = h.float() @ self.codebook.weight.float().t()  # AMP307",
        'd = torch.einsum("bd,nd->bn", h.float(), self.codebook.weight.float())  # AMP307',
        "e = self.scale.float()\nd = torch.matmul(h.float(), e)  # AMP307",
        "d = h.float() @ self.codebook.weight.t()",
        "d = h @ self.codebook.weight.float().t()",
        "d = h.float() @ self.codebook.weight.to(h.dtype).t()",
        "d = h.float() - self.codebook.weight.float()[:1]",
        'with torch.autocast("cuda", enabled=False):\n    d = h.float() @ self.codebook.weight.float().t()',
    ],
)
def test_both_sides_of_a_product(body: str) -> None:
    assert misjudged(train=filled(QUANTIZER, body)) == []
