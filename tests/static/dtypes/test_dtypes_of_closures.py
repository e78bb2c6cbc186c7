"""Nested functions: what they read of the code around may be something else at each call."""

from __future__ import annotations

import pytest

from tests.static.dtypes.judging import misjudged

CLOSURES = {
    "two closures of one function": """
        import torch

        def make(h):
            def total(x):
                return h.pow(2).sum() + x{comment}
            return total

        def train():
            def apply(fn):
                return fn(1)
            one = apply(make(torch.ones(4, 4, device="cuda")))
            return one, apply(make(torch.ones(4, 4, device="cuda"){half}))
    """,
    "a closure in a list": """
        import torch

        def train():
            h = torch.ones(4, 4, device="cuda")

            def total(x):
                return h.pow(2).sum() + x{comment}

            fns = [total]

            def apply(x):
                return fns[0](x)

            one = apply(1)
            h = h{half}
            return one, apply(1)
    """,
    "an attribute": """
        import torch

        class Trainer:
            def run(self):
                def total(x):
                    return self.w.pow(2).sum() + x{comment}

                self.w = None
                one = total(2)
                self.w = torch.ones(4, 4, device="cuda"){half}
                return one, total(2)
    """,
    "an item": """
        import torch

        def train():
            box = {{}}

            def total(x):
                return box["h"].pow(2).sum() + x{comment}

            total(1)
            box["h"] = torch.ones(4, 4, device="cuda"){half}
            return total(1)
    """,
}


@pytest.mark.parametrize("about", CLOSURES)
def test_each_call_of_a_nested_function_reads_the_code_around_anew(about: str) -> None:
    assert misjudged(train=CLOSURES[about].format(half=".half()", comment="  # AMP504")) == []
    assert misjudged(train=CLOSURES[about].format(half="", comment="")) == []
