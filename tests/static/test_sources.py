"""Finding and reading files: folders as people have them, and files as they should not be."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from amp_audit.static.source import ir
from amp_audit.static.source.lowering import lower, positions
from amp_audit.static.source.sources import STDIN, SourceError, Unreadable, decode, find, gather, read_bytes
from amp_audit.static.source.traverse import expressions, statements, walk


def tree(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")


def names(folder: Path, *paths: Path, **options: object) -> list[str]:
    found = find(list(paths) or [folder], **options)  # type: ignore[arg-type]
    return [os.path.relpath(os.path.join(os.getcwd(), path), folder) for path in found]


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


def test_folders_are_searched_without_what_is_no_source_of_the_project(tmp_path: Path) -> None:
    tree(
        tmp_path,
        "train.py",
        "nb.ipynb",
        "stub.pyi",
        "note.txt",
        "pkg/a.py",
        ".hidden/b.py",
        "env/lib/c.py",
        "lib/python3/site-packages/d.py",
        "pkg/__pycache__/e.py",
    )
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    assert names(tmp_path) == ["nb.ipynb", "pkg/a.py", "train.py"]


def test_what_git_ignores_is_left_out_also_in_nested_checkouts(tmp_path: Path) -> None:
    tree(tmp_path, "train.py", "build/gen.py", "new.py", "sub/inner.py", "sub/skip.py")
    (tmp_path / ".gitignore").write_text("build/\n")
    git(tmp_path, "init")
    git(tmp_path, "add", "train.py")
    (tmp_path / "sub" / ".gitignore").write_text("skip.py\n")
    git(tmp_path / "sub", "init")
    assert sorted(names(tmp_path)) == ["new.py", "sub/inner.py", "train.py"]
    assert names(tmp_path, tmp_path / "build") == ["build/gen.py"]  # asked for by name


def test_a_tracked_file_that_was_deleted_is_no_file(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "b.py")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    (tmp_path / "b.py").unlink()
    assert names(tmp_path) == ["a.py"]


def test_links_in_circles_end_and_each_file_comes_once(tmp_path: Path) -> None:
    tree(tmp_path, "a/x.py")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "again.py").symlink_to(tmp_path / "a" / "x.py")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    assert names(tmp_path) == ["a/x.py"]
    assert len(find([tmp_path, tmp_path / "a" / "x.py", tmp_path / "a" / ".." / "a"])) == 1


@pytest.mark.parametrize("tracked", [True, False])
def test_what_links_lead_to_comes_by_its_own_name(tmp_path: Path, tracked: bool) -> None:
    tree(tmp_path, "recipe/run.py", "trainer/loop.py", "z.py")
    (tmp_path / "recipe" / "copy.py").symlink_to(tmp_path / "z.py")
    (tmp_path / "recipe" / "trainer").symlink_to(tmp_path / "trainer")
    tree(tmp_path.parent / "beside", "far.py")
    (tmp_path / "recipe" / "beside").symlink_to(tmp_path.parent / "beside")
    if tracked:
        git(tmp_path, "init")
        git(tmp_path, "add", ".")
    assert sorted(names(tmp_path)) == ["recipe/beside/far.py", "recipe/run.py", "trainer/loop.py", "z.py"]


def test_excluded_files_of_folders_are_left_out_but_not_those_given_by_name(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "b.py")
    assert names(tmp_path, excluded=lambda path: path.endswith("b.py")) == ["a.py"]
    assert names(tmp_path, tmp_path / "b.py", excluded=lambda path: True) == ["b.py"]


def test_paths_are_relative_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "in/a.py", "out/b.py")
    monkeypatch.chdir(tmp_path / "in")
    assert find(["a.py", tmp_path / "in" / "a.py", "../out"]) == ["a.py", str(tmp_path / "out" / "b.py")]


@pytest.mark.parametrize(
    ("name", "word"),
    [("missing.py", "no such file"), ("empty", "no Python file"), ("data.csv", "neither"), ("only.pyi", "no Python")],
)
def test_paths_that_cannot_be_checked_are_one_clear_line(tmp_path: Path, name: str, word: str) -> None:
    (tmp_path / "empty").mkdir()
    tree(tmp_path, "data.csv", "only.pyi")
    with pytest.raises(SourceError, match=word) as caught:
        find([tmp_path / name])
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_a_script_without_a_suffix_is_known_by_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("#!/usr/bin/env python3\nx = 1\n")
    assert names(tmp_path, tmp_path / "train") == ["train"]


@pytest.mark.parametrize(("contents", "known"), [(b"x = 1\n", True), (b"all:\n\tmake x\n", False), (b"x\0", False)])
def test_a_file_without_a_suffix_or_a_first_line_is_known_by_what_it_holds(
    tmp_path: Path, contents: bytes, known: bool
) -> None:
    (tmp_path / "train").write_bytes(contents)
    if known:
        assert names(tmp_path, tmp_path / "train") == ["train"]
    else:
        with pytest.raises(SourceError, match="neither a Python file nor a notebook"):
            find([tmp_path / "train"])


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x = 1\n")))
    gathered = gather(["-"])
    assert list(gathered.paths) == [STDIN]
    assert gathered.given == {STDIN: b"x = 1\n"}


# Decoding


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"x = '\xc3\xa9'\n", "x = 'é'\n"),
        (b"\xef\xbb\xbfx = 1\r\n", "x = 1\r\n"),
        (b"# -*- coding: latin-1 -*-\nx = '\xe9'\r", "# -*- coding: latin-1 -*-\nx = 'é'\r"),
        (b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\n'\x80'\n", None),
        (b"", ""),
    ],
)
def test_sources_are_decoded_as_pep_263_says(data: bytes, text: str | None) -> None:
    found = decode("x.py", data).text
    assert found == (text if text is not None else data.decode("cp1252"))


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"x = 1\ny = '\xff'\n", 2),
        (b"x = 1\n\ny = '\xff'\n", 3),
        (b"# coding: nonsense\n", 1),
        (b"# coding: hex\nabc\n", 1),
        (b"x = 1\ny = \0\n", 2),
        ("x = 1\n".encode("utf-16"), 1),
    ],
)
def test_undecodable_bytes_are_named_with_their_line(data: bytes, line: int) -> None:
    with pytest.raises(Unreadable) as caught:
        decode("x.py", data)
    assert caught.value.line == line


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="cannot be read"):
        read_bytes(str(tmp_path))


# Notebooks


def notebook(*cells: str | list[str] | None, language: str = "python") -> bytes:
    """A notebook; None is a Markdown cell."""
    made = [
        {"cell_type": "markdown", "source": "# x"} if cell is None else {"cell_type": "code", "source": cell}
        for cell in cells
    ]
    return json.dumps({"cells": made, "metadata": {"language_info": {"name": language}}, "nbformat": 4}).encode()


def test_cells_become_one_text_and_lines_lead_back_to_them() -> None:
    source = decode("n.ipynb", notebook(["a = 1\n", "b = 2"], None, "c = 3\n", "", "d = 4\n\ne = 5"))
    lines = source.text.split("\n")
    places = {name: source.place(lines.index(f"{name} = {n}") + 1) for n, name in enumerate("abcde", 1)}
    assert places == {"a": (0, 1), "b": (0, 2), "c": (2, 1), "d": (4, 1), "e": (4, 3)}


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("%matplotlib inline\nx = 1", ["pass", "x = 1"]),
        ("if x:\n    !pip install y\nz = 1", ["if x:", "    pass", "z = 1"]),
        ("files = !ls\na, b = %magic z", ["files = None", "a, b = None"]),
        ("!pip install \\\n  torch\nx = 1", ["pass", "", "x = 1"]),
        ("model?\nx = 1", ["pass", "x = 1"]),
        ("?model\nx = 1", ["pass", "x = 1"]),
        ("%%time\nx = 1", ["", "x = 1"]),
        ("\n%%bash\ncd x\nls", ["", "", "", ""]),
        ("s = ('%d'\n     % (1))", ["s = ('%d'", "     % (1))"]),
        ('s = """\n%not magic\n!nor this\n"""', ['s = """', "%not magic", "!nor this", '"""']),
        ("await x", ["await x"]),
        ("pip install torch\nx = 1", ["pass", "x = 1"]),
        ("  !ls\n  x = 1", ["pass", "x = 1"]),
        ("!ls\nx = 1  # really?", ["pass", "x = 1  # really?"]),
        ("%time loss.backward()\nif x:\n  %timeit -n 10 -r 3 f(x)", ["loss.backward()", "if x:", "  f(x)"]),
        ("%time\nx = 1", ["pass", "x = 1"]),
        ("%timeit -o a b c", ["pass"]),
    ],
)
def test_magics_give_way_and_lines_stay(cell: str, expected: list[str]) -> None:
    assert decode("n.ipynb", notebook(cell)).text.split("\n")[:-1] == expected


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "cell",
    ["  !ls\n  é = 1; f(é)\n", "\t!ls\n\tif x:\n\t\tf(x)", "!ls\nif x:\n    %timeit -n 3 f(x)", "  !ls\nf(x)", "f(x)"],
)
def test_columns_lead_back_to_the_cell(cell: str, newline: str) -> None:
    source = decode("n.ipynb", notebook("x = 1", cell.replace("\n", newline)))
    module = lower("n.ipynb", source.text)
    (call,) = [
        part
        for statement in statements(module.body, into=True)
        for expression in expressions(statement)
        for part in walk(expression)
        if isinstance(part, ir.Call)
    ]
    place = positions(source.text)(call.at)
    number, line = source.place(place.line)
    column = source.column(place.line, place.column)
    assert number == 1 and cell.split("\n")[line - 1][column - 1 :].startswith("f(")


def test_the_column_of_an_error_in_an_indented_cell() -> None:
    (error,) = decode("n.ipynb", notebook("    x = 1\n    def (:\n")).broken
    assert (error.line, error.column) == (2, 9)


def test_a_broken_cell_costs_only_itself() -> None:
    source = decode("n.ipynb", notebook("x = 1", "def (:\n  y", "z = 2"))
    assert [(error.cell, error.line) for error in source.broken] == [(1, 1)]
    assert source.text == "x = 1\n\n\nz = 2\n"
    assert source.place(4) == (2, 1)


def test_notebooks_of_format_three_and_of_other_languages() -> None:
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["x = 1"]}]}]}
    assert decode("n.ipynb", json.dumps(old).encode()).text == "x = 1\n"
    assert decode("n.ipynb", notebook("x <- 1", language="R")).text == ""


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"cells": 3}', b"\xff", b'{"worksheets": [1]}', b"[" * 100_000])
def test_what_is_no_notebook(data: bytes) -> None:
    with pytest.raises(Unreadable, match="not a notebook"):
        decode("n.ipynb", data)
