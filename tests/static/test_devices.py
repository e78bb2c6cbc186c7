"""AMP314: which programs choose their device, and which places follow the choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit.static.source.lowering import lower
from amp_audit.static.spots.devices import choice
from tests.static.found import lines


@pytest.mark.parametrize(
    ("source", "others", "minded"),
    [
        ("d = 'cuda' if torch.cuda.is_available() else 'cpu'\n", {"cpu"}, False),
        ("d = torch.device('cuda:0' if ok else torch.device('mps'))\n", {"mps"}, False),
        ("d = torch.device('cuda:0') if ok else torch.device('mps')\n", {"mps"}, False),
        ("if ok:\n    d = 'cuda'\nelif m:\n    d = 'xpu'\nelse:\n    d = 'cpu'\n", {"cpu", "xpu"}, False),
        ("d = 'cuda:0' if rank == 0 else 'cuda:1'\n", set(), False),
        ("d = 'cpu' if small else 'mps'\n", set(), False),
        ("name = 'cuda kernels' if ok else 'cpu kernels'\n", set(), False),
        ("assert torch.cuda.is_available()\nd = 'cuda' if ok else 'cpu'\n", set(), False),
        ("if not torch.cuda.is_available():\n    raise SystemError\nd = 'cuda' if ok else 'cpu'\n", set(), False),
        (
            "if not torch.cuda.is_available() and fp16:\n    raise SystemError\nd = 'cuda' if ok else 'cpu'\n",
            set(),
            False,
        ),
        (
            "if n == 'cuda' and not torch.cuda.is_available():\n    raise E\nd = 'cuda' if ok else 'cpu'\n",
            {"cpu"},
            True,
        ),
        ("d = 'cuda' if ok else 'cpu'\nif torch.cuda.is_available():\n    torch.cuda.manual_seed(1)\n", {"cpu"}, False),
        ("d = 'cuda' if ok else 'cpu'\nif torch.cuda.is_available():\n    m = wrap(m)\n", {"cpu"}, True),
        ("d = 'cuda' if ok else 'cpu'\nif d.type == 'cpu':\n    workers = 0\n", {"cpu"}, True),
        ("p.add_argument('--device', choices=['cuda', 'mps', 'cpu'])\n", {"cpu", "mps"}, True),
        ("p.add_argument('--device', default='cuda', choices=('cuda', 'cpu'))\n", {"cpu"}, True),
        ("p.add_argument('--device', default='cuda', choices=['cuda:0', 'cuda:1'])\n", set(), False),
        ("p.add_argument('--device', choices=['cuda', 'cpu'])\nmodel.cuda()\n", set(), False),
        ("p.add_argument('--backend', choices=['cuda', 'cpu'])\n", set(), False),
    ],
)
def test_choices(source: str, others: set[str], minded: bool) -> None:
    found = choice(lower("train.py", source))
    assert found.others == others and (not others or found.minded is minded)


@pytest.mark.parametrize(
    ("code", "marked"),
    [
        ("with torch.autocast('cuda'):\n    m(x)\n", [3]),
        ("with torch.autocast('cuda', enabled=args.amp):\n    m(x)\n", [3]),
        ("with torch.autocast('cuda', enabled=d == 'cuda'):\n    m(x)\n", []),
        ("on = d == 'cuda' and args.amp\nwith torch.autocast('cuda', enabled=on):\n    m(x)\n", []),
        ("if d != 'cpu':\n    with torch.autocast('cuda'):\n        m(x)\n", []),
        ("if device.type == 'cuda':\n    with torch.autocast('cuda'):\n        m(x)\n", []),
        ("with torch.autocast(d):\n    m(x)\n", []),
        ("s = torch.amp.GradScaler('cuda')\n", [3]),
        ("s = torch.amp.GradScaler('cuda', enabled=False)\n", []),
    ],
)
def test_places(tmp_path: Path, code: str, marked: list[int]) -> None:
    source = f"import torch\nd = 'cuda' if torch.cuda.is_available() else 'mps'\n{code}"
    assert lines(tmp_path, "AMP314", source) == marked


@pytest.mark.parametrize(
    ("other", "marked"),
    [
        ("loader = Loader(torch.device('cpu'))", [5]),
        ("loader = Loader(torch.device('cuda'))", []),
        ("mask = mask.cuda()", []),
        ("mask = cuda(mask)", [5]),
    ],
)
def test_where_tensors_are_on_cuda_anyway_nothing_follows_a_device_that_is_given(
    tmp_path: Path, other: str, marked: list[int]
) -> None:
    source = f"""import torch
def embed(text, device):
    with torch.autocast(device_type=device.type):
        encode(text)
@torch.autocast('cuda')
def forward(x):
    return net(x)
{other}
"""
    assert lines(tmp_path, "AMP314", source) == marked


EVALUATED = """
import torch


def evaluate(model, loader, device, *, mixed=True):
    for x in loader:
        with torch.autocast("cuda", enabled=mixed):
            model(x.to(device))


def main(model, loader, precision):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mixed = precision == "16-mixed"{asked}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    {call}
"""


@pytest.mark.parametrize(
    ("asked", "call", "marked"),
    [
        (" and device.type == 'cuda'", "evaluate(model, loader, device, mixed=mixed)", []),
        ("", "evaluate(model, loader, device, mixed=mixed)", [7]),
        (" and device.type == 'cuda'", "evaluate(model, loader, device)", [7]),
        (
            " and device.type == 'cuda'",
            "evaluate(model, loader, device, mixed=mixed)\n    evaluate(model, [], device, mixed=True)",
            [7],
        ),
    ],
)
def test_a_flag_follows_the_device_where_every_call_computes_it_from_that(
    tmp_path: Path, asked: str, call: str, marked: list[int]
) -> None:
    assert lines(tmp_path, "AMP314", EVALUATED.format(asked=asked, call=call)) == marked
