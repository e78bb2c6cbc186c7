"""Code that says no word of precision itself, and hands what a function makes in its region to what takes none."""

from __future__ import annotations

import pytest

from tests.static.dtypes.judging import filled, misjudged

FUNCTIONS = """
    import torch
    from torch import nn

    def features(net, x):
        with torch.autocast("cuda", dtype=torch.float16):
            return net(x)

    def fit(net, loader, optimizer):
        for x in loader:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = net(x).float().mean()
            loss.backward()
            optimizer.step()
        return loss

    def main(x):
        net = nn.Linear(8, 4).cuda()
        found = features(net, x)
        BODY
"""
METHODS = """
    import torch
    from torch import nn

    class Detector:
        def __init__(self):
            self.net = nn.Linear(8, 4).cuda()

        @torch.no_grad()
        def features(self, net, x):
            with torch.autocast("cuda", dtype=torch.float16):
                out = net(x)
            return out

        def threshold(self, x):
            net = self.net
            found = self.features(net, x)
            BODY
"""


@pytest.mark.parametrize("program", [FUNCTIONS, METHODS])
@pytest.mark.parametrize(
    "body",
    [
        "return torch.quantile(found, 0.9)  # AMP406",
        "return torch.quantile(found.float(), 0.9)",
        "return torch.linalg.svdvals(found.T)  # AMP406",
        "return torch.linalg.svdvals(found.T.double())",
        "return found.cpu().numpy()",
    ],
)
def test_what_a_region_gave(program: str, body: str) -> None:
    assert misjudged(train=filled(program, body)) == []


def test_bfloat16_for_numpy() -> None:
    program = FUNCTIONS.replace("dtype=torch.float16", "dtype=torch.bfloat16")
    assert misjudged(train=filled(program, "return found.cpu().numpy()  # AMP407")) == []
    assert misjudged(train=filled(program, "return found.float().cpu().numpy()")) == []
