"""The prefilter: what is read, what is skipped, and that skipping never costs a finding."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.check import Options, check
from amp_audit.static.source.screen import screen
from amp_audit.static.source.selection import imports, local_imports, root_of, select

BOOK = rulebook.load()
AMP = "import torch\nscaler = torch.amp.GradScaler('cuda')\n"


def lay(folder: Path, **files: str) -> list[str]:
    paths = []
    for name, source in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path = path.with_name("__init__.py") if path.stem == "init" else path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        paths.append(str(path))
    return paths


def chosen(folder: Path, paths: list[str]) -> tuple[set[str], set[str], int]:
    found = select(paths, str(folder), screen(BOOK))

    def short(names: dict[str, bytes]) -> set[str]:
        return {os.path.relpath(name, folder) for name in names}

    return short(found.checked), short(found.context), found.skipped


def test_survivors_their_imports_and_training_code_that_uses_them(tmp_path: Path) -> None:
    paths = lay(
        tmp_path,
        amp_tools=AMP + "import model",
        model="import blocks",
        blocks="x = 1e-9",
        train="from amp_tools import scaler\nloss.backward()",
        plot="from amp_tools import scaler",
        trains_alone="loss.backward()",
        unrelated="x = 1",
    )
    checked, context, skipped = chosen(tmp_path, paths)
    assert checked == {"amp_tools.py", "model.py", "blocks.py", "train.py"}
    assert context == set() and skipped == 3


def test_what_builds_the_optimizer_of_a_trainer_is_read_with_it(tmp_path: Path) -> None:
    paths = lay(
        tmp_path,
        trainer="""
import torch

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = self.model(x).mean()
            loss.backward()
            self.optimizer.step()
""",
        main="""
import torch
from trainer import Trainer

model = torch.nn.Linear(4, 4)
Trainer(model, torch.optim.Adam(model.parameters())).fit(torch.ones(3, 2, 4))
""",
    )
    assert chosen(tmp_path, paths) == ({"trainer.py", "main.py"}, set(), 0)
    (found,) = check([tmp_path], BOOK).findings
    assert (found.rule, found.location.line if found.location else 0) == ("AMP201", 13)


def test_where_a_program_starts_is_read_with_what_it_brings_together(tmp_path: Path) -> None:
    start = "from lib import make\nif __name__ == '__main__':\n    make()\n"
    paths = lay(tmp_path, lib=AMP, start=start, other=start.replace("lib", "plain"), plain="def make(): pass")
    assert chosen(tmp_path, paths) == ({"lib.py", "start.py"}, set(), 2)


def test_what_lies_beside_the_project_is_none_of_it(tmp_path: Path) -> None:
    lay(tmp_path, other__init=AMP, pkg__init="", pkg__above="x = 1")
    paths = lay(tmp_path, pkg__sub__init="", pkg__sub__train=AMP + "import other\nfrom pkg import above\n")
    found = select(paths, str(tmp_path / "pkg" / "sub"), screen(BOOK))
    assert set(found.context) == {str(tmp_path / "pkg" / "__init__.py"), str(tmp_path / "pkg" / "above.py")}


def test_imports_outside_what_was_asked_for_are_context(tmp_path: Path) -> None:
    paths = lay(
        tmp_path, train=AMP + "from lib import tools", lib__init="", lib__tools="from . import deep", lib__deep=""
    )
    checked, context, _ = chosen(tmp_path, paths[:1])
    assert checked == {"train.py"}
    assert context == {"lib/__init__.py", "lib/tools.py", "lib/deep.py"}


def test_nothing_is_read_where_nothing_matters(tmp_path: Path) -> None:
    paths = lay(tmp_path, a="import b\nloss.backward()", b="optimizer.step()")
    assert chosen(tmp_path, paths) == (set(), set(), 2)


@pytest.mark.parametrize(
    ("source", "matters"),
    [
        (b"with autocast():", True),
        (b"from torch.cuda import amp", True),
        (b"model.half()", True),
        (b"x.to(torch.bfloat16)", True),
        (b"HalfTensor", True),
        (b"loss_scaler.scale(loss)", True),
        (b"Accelerator()", True),
        (b"torch.is_autocast_cpu_enabled()", True),
        (b"sample = example.clamp(0)", False),
        (b"StandardScaler().fit(x)", False),
        (b"behalf = stamp", False),
        (b"# with autocast():", False),
        (b"x = '#'; autocast()", True),
        (b'def f():\n    """Under autocast."""\n', False),
        (b'x = """# autocast"""', True),
        (b"# amp-audit: ignore[AMP202]", True),
        (b"# autocast\n'\xff'", True),
        (b"re.compile('x')", False),
        (b"torch.compile(model)", True),
        (b"from torch import nn, compile", True),
        (b"HALF = {torch.float16, torch.bfloat16}", False),
        (b"if x.dtype in (torch.half, torch.float16):", False),
        (b"if x.dtype == torch.float16:", False),
        (b"TABLE = {'fp16': torch.float16}\nloss.backward()", True),
        (b"dtype = torch.float16", True),
        (b"def f(dtype=torch.half):", True),
        (b"torch.zeros(3, n(4), dtype)\nx.to(device, torch.float16)", True),
        (b"return torch.float16 if fp16 else x", True),
        (b"from torch import float16 as f", True),
        (b"x.type(torch.cuda.HalfTensor)", True),
        (b"torch.backends.cuda.matmul.allow_fp16_accumulation = True", True),
        (b"from paddle.amp import GradScaler\nscaler = GradScaler()", False),
        (b"import paddle\nimport torch\nscaler = torch.amp.GradScaler()", True),
        (b"# import paddle\nfrom paddles import GradScaler", True),
    ],
)
def test_trigger_words(source: bytes, matters: bool) -> None:
    assert screen(BOOK).matters(source) is matters


@pytest.mark.parametrize(
    "part", [b"import ", b"\nimport ", b"torch ", b"=a", b"= ", b"to(((((", b"to(" + b"a" * 190 + b"(b)"]
)
def test_the_screen_is_linear_on_what_nobody_wrote(part: bytes) -> None:
    data = b"half\n" + part * (1_000_000 // len(part))
    began = time.process_time()
    screen(BOOK).matters(data)
    assert time.process_time() - began < 10


def test_imports_by_their_looks() -> None:
    source = (
        b"import a, b.c as d\nfrom e import (f, # why\n   g as h,\n)\nfrom . import i\n    from ..j.k import l, m\n"
        b"from n import *\nfrom o import p, \\\n    q\nimport r; x = 1\n# import s\nfrom_ = 3\n"
    )
    assert imports(source) == [
        "a",
        "b.c",
        "e",
        "e.f",
        "e.g",
        ".",
        ".i",
        "..j.k",
        "..j.k.l",
        "..j.k.m",
        "n",
        "o",
        "o.p",
        "o.q",
        "r",
    ]


def test_local_imports_of_a_script(tmp_path: Path) -> None:
    paths = lay(tmp_path, train="import torch, utils", utils="from pkg.sub import x", pkg__init="", pkg__sub="x = 1")
    found = local_imports(paths[0], str(tmp_path))
    assert [os.path.relpath(path, tmp_path) for path in found] == ["pkg/__init__.py", "pkg/sub.py", "utils.py"]


def test_the_root_of_a_project(tmp_path: Path) -> None:
    paths = lay(tmp_path, repo__src__pkg__a="", loose__b="")
    (tmp_path / "repo" / ".git").mkdir()
    (tmp_path / "repo" / "src" / "setup.py").write_text("")
    assert root_of(paths[0]) == str(tmp_path / "repo")
    assert root_of(paths[1]) == str(tmp_path / "loose")
    assert root_of(paths[1], [str(tmp_path)]) == str(tmp_path)


def test_findings_are_the_same_with_and_without_the_prefilter(tmp_path: Path) -> None:
    """Every rule's examples as one project, a training loop split from its scaler, and files without a trigger."""
    for rule in BOOK.rules.values():
        for number, example in enumerate(rule.examples):
            lay(tmp_path, **{f"{rule.id}__case_{number}__train": example.code})
    lay(
        tmp_path,
        split__tools=AMP + "def backward(loss):\n    scaler.scale(loss).backward()\n",
        split__train=(
            "import torch\nfrom tools import backward, scaler\nmodel = torch.nn.Linear(2, 2)\n"
            "opt = torch.optim.SGD(model.parameters(), 0.1)\n"
            "for x in []:\n    backward(model(x).sum())\n    opt.step()\n"
        ),
        plain="print(1)",
    )
    with_filter = check([tmp_path], BOOK)
    without = check([tmp_path], BOOK, Options(prefilter=False))
    assert with_filter.coverage.files_skipped > 0 == without.coverage.files_skipped
    assert with_filter.findings == without.findings
    assert len(with_filter.findings) > 50
