"""isinstance of what is known decides which way a program goes."""

from __future__ import annotations

import pytest

from tests.static.walked import ids

CHOSEN = """
import timm
import torch
from contextlib import suppress
from timm.utils import NativeScaler


def step(model, x, optimizer, scaler, autocast):
    with autocast():
        loss = model(x).mean()
    optimizer.zero_grad()
    if isinstance(scaler, {cls}):
        {scaled}
    else:
        loss.backward()
        optimizer.step()


def main(args, model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    autocast, scaler = suppress, {without}
    if args.amp:
        autocast, scaler = torch.cuda.amp.autocast, {made}
    for x in loader:
        step(model, x, optimizer, scaler, autocast)
"""


OWN = """
class Own:
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cuda")


class Sub(Own):
    pass

"""


TIMM = "scaler(loss, optimizer, parameters=model.parameters())"


PLAIN = "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"


HELD = PLAIN.replace("scaler.", "scaler.scaler.")


@pytest.mark.parametrize(
    ("cls", "scaled", "without", "made"),
    [
        ("timm.utils.NativeScaler", TIMM, "'none'", "NativeScaler()"),
        ("(dict, timm.utils.NativeScaler)", TIMM, "None", "NativeScaler()"),
        ("torch.amp.GradScaler", PLAIN, "None", "torch.amp.GradScaler('cuda')"),
        ("Own", HELD, "'none'", "Sub()"),
    ],
)
def test_isinstance_of_what_is_known(cls: str, scaled: str, without: str, made: str) -> None:
    source = CHOSEN.format(cls=cls, scaled=scaled, without=without, made=made)
    head, body = source.split("\n\n\ndef step", 1)
    assert ids(f"{head}\n{OWN}\ndef step{body}") == set()


def test_isinstance_of_another_class() -> None:
    source = CHOSEN.format(cls="Other", scaled=HELD, without="None", made="Sub()")
    head, body = source.split("\n\n\ndef step", 1)
    assert "AMP201" in ids(f"{head}\n{OWN}\nclass Other:\n    pass\n\ndef step{body}")
