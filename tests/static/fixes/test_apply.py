"""Applying repairs: what is not repaired stays as it was, byte for byte; what would be no Python is not written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amp_audit import mending
from amp_audit.model import Edit, Fix
from amp_audit.settings import Configuration, Settings
from amp_audit.static.fixes.apply import compatible, rewrite
from tests.static.fixes.mended import inside, mended

OLD = "s = torch.cuda.amp.GradScaler()"
NEW = 's = torch.amp.GradScaler("cuda")'


def edit(line: int, column: int, end_line: int, end_column: int, text: str, cell: int | None = None) -> Edit:
    return Edit("train.py", line, column, end_line, end_column, text, cell)


def one(*edits: Edit) -> Fix:
    return Fix(True, "", edits)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f'import torch\r\nname = "é"\r\n{OLD}\r\n'.encode(), f'import torch\r\nname = "é"\r\n{NEW}\r\n'.encode()),
        (f"import torch\r{OLD}\rx = 1".encode(), f"import torch\r{NEW}\rx = 1".encode()),
        (f"import torch\n\x0c\n{OLD}".encode(), f"import torch\n\x0c\n{NEW}".encode()),
        (f"import torch\n{OLD}".encode("utf-8-sig"), f"import torch\n{NEW}".encode("utf-8-sig")),
        (
            f'# -*- coding: latin-1 -*-\nimport torch\nn = "é"; {OLD}\n'.encode("latin-1"),
            f'# -*- coding: latin-1 -*-\nimport torch\nn = "é"; {NEW}\n'.encode("latin-1"),
        ),
        (
            f'import torch\nx = "𝒙é"; {OLD}; y = "𝒚"\n'.encode(),
            f'import torch\nx = "𝒙é"; {NEW}; y = "𝒚"\n'.encode(),
        ),
    ],
    ids=["crlf", "cr", "form feed, no last line end", "bom", "coding line", "beyond the basic plane"],
)
def test_line_ends_and_encodings_stay(tmp_path: Path, before: bytes, after: bytes) -> None:
    assert _mended(tmp_path, before) == after


def _mended(folder: Path, data: bytes, name: str = "train.py") -> bytes:
    """What ``check --fix`` leaves of a file."""
    path = folder / name
    path.write_bytes(data)
    with inside(folder):
        mending.write(mending.mend([Path(name)], Configuration(Settings(root=folder)), unsafe=False))
    return path.read_bytes()


def test_inserted_lines_end_as_the_others_do() -> None:
    new, made = rewrite("train.py", b"a = 1\r\nb = 2\r\n", [one(edit(2, 1, 2, 1, "x = 0\n"))])
    assert new == b"a = 1\r\nx = 0\r\nb = 2\r\n" and len(made) == 1


def test_what_would_be_no_python_is_left_out_and_the_rest_is_made() -> None:
    good, bad = one(edit(1, 5, 1, 6, "2")), one(edit(2, 5, 2, 6, "("))
    new, made = rewrite("train.py", b"a = 1\nb = 1\n", [bad, good])
    assert new == b"a = 2\nb = 1\n" and made == [good]


def test_what_the_encoding_cannot_say_is_not_written() -> None:
    data = b"# coding: ascii\na = 1\n"
    assert rewrite("train.py", data, [one(edit(2, 5, 2, 6, "'é'"))]) == (data, [])


def test_of_repairs_that_meet_the_first_is_made() -> None:
    first = one(edit(1, 1, 1, 5, "x"), edit(3, 1, 3, 1, "y"))
    touching = one(edit(1, 5, 1, 9, "z"))
    overlapping = one(edit(2, 1, 4, 1, ""))
    apart = one(edit(5, 1, 5, 2, "w"))
    other_cell = one(edit(1, 1, 1, 5, "v", cell=1))
    assert compatible([first, touching, overlapping, first, apart, other_cell]) == [first, apart, other_cell]


# Notebooks

CELL = ["# caf\u00e9\n", "import torch\n", "%matplotlib inline\n", "scaler = torch.cuda.amp.GradScaler()"]


def notebook(**layout: object) -> str:
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": ["torch.cuda.amp.GradScaler()\n"]},
        {"cell_type": "code", "execution_count": 7, "metadata": {"a": [1.50, None]}, "outputs": [], "source": CELL},
        {
            "cell_type": "code",
            "metadata": {},
            "outputs": [],
            "source": "x = torch.cuda.amp.autocast(True)\nwith x:\n  1",
        },
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, **layout)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "layout", [{"indent": 1, "ensure_ascii": False}, {"indent": 4}, {}, {"separators": (",", ":")}]
)
def test_notebooks_keep_their_layout(tmp_path: Path, layout: dict[str, object]) -> None:
    before = notebook(**layout).replace("1.5,", "1.50,")
    after = _mended(tmp_path, before.encode(), "train.ipynb").decode()
    joined = before.replace("scaler = torch.cuda.amp.GradScaler()", "scaler = torch.amp.GradScaler('cuda')")
    wanted = joined.replace("x = torch.cuda.amp.autocast(True)", "x = torch.amp.autocast('cuda', enabled=True)")
    assert after.replace('\\"cuda\\"', "'cuda'") == wanted
    assert json.loads(after)["cells"][0]["source"] == ["torch.cuda.amp.GradScaler()\n"]


def test_a_cell_that_ipython_reads_differently_is_left_alone(tmp_path: Path) -> None:
    source = "  import torch\n  scaler = torch.cuda.amp.GradScaler()\n"
    cells = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": source}]
    before = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()
    assert _mended(tmp_path, before, "train.ipynb") == before


def test_an_import_in_one_cell_and_its_use_in_another(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": ["from torch.cuda.amp import GradScaler\n"]},
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": ["s = GradScaler(2.0)\n", "s.get_scale()"]},
    ]
    before = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1).encode()
    after = json.loads(_mended(tmp_path, before, "train.ipynb"))
    assert after["cells"][0]["source"] == ["from torch.amp import GradScaler\n"]
    assert after["cells"][1]["source"] == ['s = GradScaler("cuda", init_scale=2.0)\n', "s.get_scale()"]


def test_mending_twice_changes_nothing_more(tmp_path: Path) -> None:
    first = mended(tmp_path, f"import torch\n{OLD}\nt = torch.amp.GradScaler(False)\n")
    assert mended(tmp_path, first) == first
