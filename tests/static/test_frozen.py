"""AMP106: what is read at import, and what counts as being set afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.static.found import lines

SOURCE = """\
import torch
from config import cfg


@torch.autocast("cuda", enabled=cfg.amp)
def f(m, x):
    return m(x)
"""


@pytest.mark.parametrize(
    ("main", "is_frozen"),
    [
        ("def main(args):\n    cfg.amp = args.amp\n", True),
        ("def main(args):\n    cfg.lr = args.lr\n", False),
        ("def main(args):\n    other.amp = args.amp\n", False),
        ("def main(args):\n    cfg.merge_from_file(args.path)\n", True),
        ("def main(args):\n    setattr(cfg, args.key, args.value)\n", True),
        ("def main(args):\n    cfg.__dict__.update(vars(args))\n", True),
        ("def main(parser):\n    parser.parse_args(namespace=cfg)\n", True),
        ("def main(args):\n    print(cfg.amp)\n", False),
        ("cfg.amp = True\n", True),
    ],
)
def test_changes_in_another_file(tmp_path: Path, main: str, is_frozen: bool) -> None:
    other = f"from config import cfg\nimport train\nfrom torch.amp import autocast\n\n\n{main}"
    config = "class Config:\n    amp = False\n\n\ncfg = Config()\n"
    assert lines(tmp_path, "AMP106", SOURCE, main=other, config=config) == ([5] if is_frozen else [])
