"""Models that a parameter is declared to be, in code that nobody is seen to call."""

from __future__ import annotations

import pytest

from tests.static.dtypes.judging import misjudged

MODEL = """
    from torch import nn

    class Net(nn.Module):
        def __init__(self, width=8):
            super().__init__()
            self.head = nn.Linear(width, width)

        def forward(self, x):
            return self.head(x)WIDENED

    class Table:
        def __call__(self, x):
            return x
"""
PROGRAM = """
    import torch
    from torch import nn
    import model
    from model import Net, Table

    @torch.no_grad()
    def features(net: DECLARED, loader):
        found = []
        for x in loader:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out = net(x)
            found.append(out.cpu().numpy())MARK
        return found
"""


@pytest.mark.parametrize(
    ("declared", "widened", "mark"),
    [
        ("Net", "", "  # AMP407"),
        ("model.Net", "", "  # AMP407"),
        ("Net", ".float()", ""),
        ("nn.Module", "", ""),
        ("Table", "", ""),
        ("Net | None", "", ""),
    ],
)
def test_a_class_of_the_project(declared: str, widened: str, mark: str) -> None:
    program = PROGRAM.replace("DECLARED", declared).replace("MARK", mark)
    assert misjudged(model=MODEL.replace("WIDENED", widened), train=program) == []


CALLED = """
    import torch
    from model import Net

    def features(net: Net, x):
        return net.head(x.half())
"""


def test_whoever_calls_may_have_cast_what_is_declared() -> None:
    assert misjudged(model=MODEL.replace("WIDENED", ""), train=CALLED) == []
