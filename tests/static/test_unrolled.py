"""Optimizers that a comprehension makes, one for each of a few models."""

from __future__ import annotations

import pytest

from tests.static.pathing import found, line

SOURCE = """
import torch

def train(loader):
    {nets}
    {optimizers}
    scaler = torch.amp.GradScaler("cuda")
    for real, z in loader:
        with torch.autocast("cuda"):
            fake = {G}(z)
            loss_d = {D}(fake.detach()).mean() - {D}(real).mean()
        {oD}.zero_grad()
        scaler.scale(loss_d).backward()
        scaler.step({oD})
        with torch.autocast("cuda"):
            loss_g = -{D}(fake).mean()
        {oG}.zero_grad()
        scaler.scale(loss_g).backward()
        {step}
        scaler.update()
"""
NETS = "nets = {'G': torch.nn.Linear(4, 4), 'D': torch.nn.Linear(4, 1)}"
NAMED = {"G": "nets['G']", "D": "nets['D']", "oG": "opts['G']", "oD": "opts['D']"}
LISTED = {"G": "net_g", "D": "net_d", "oG": "opt_g", "oD": "opt_d"}


@pytest.mark.parametrize(
    ("nets", "optimizers", "names"),
    [
        (NETS, "opts = {key: torch.optim.Adam(net.parameters()) for key, net in nets.items()}", NAMED),
        (NETS, "opts = {key: torch.optim.Adam(nets[key].parameters()) for key in ('G', 'D')}", NAMED),
        (
            "net_g, net_d = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)",
            "opt_g, opt_d = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (net_g, net_d)]",
            LISTED,
        ),
    ],
)
def test_each_model_has_an_optimizer_of_its_own(nets: str, optimizers: str, names: dict[str, str]) -> None:
    plain = SOURCE.format(nets=nets, optimizers=optimizers, step=f"{names['oG']}.step()  # here", **names)
    assert {(rule, at) for rule, _, at in found(plain)} == {("AMP203", line(plain, "# here"))}
    right = SOURCE.format(nets=nets, optimizers=optimizers, step=f"scaler.step({names['oG']})", **names)
    assert found(right) == set()
