"""Lowered modules that are kept: the same as new ones, and nothing else is ever taken for one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from amp_audit import kept, rulebook
from amp_audit.static.check import Options, check
from amp_audit.static.source import ir, loading
from amp_audit.static.source import lowered as shelves
from amp_audit.static.source.loading import lower_all
from amp_audit.static.source.lowered import Shelf
from amp_audit.static.source.sources import Source
from amp_audit.static.source.traverse import definitions, parts

HERE = Path(__file__).parent
SOURCE = Source("train.py", "import torch\nz = (1j, -0.0, ..., b'x', None, 'y', f'{1}', lambda a, *b: a)\n")


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of what was lowered anew."""
    found: list[str] = []
    lower = loading.lower

    def noting(path: str, source: str) -> ir.Module:
        found.append(path)
        return lower(path, source)

    monkeypatch.setattr(loading, "lower", noting)
    return found


def own_sources() -> list[Source]:
    paths = [*HERE.rglob("*.py"), *(HERE.parents[1] / "amp_audit").rglob("*.py")]
    return [SOURCE, *(Source(str(path), path.read_text(encoding="utf-8")) for path in sorted(paths))]


def literals(module: loading.Lowered) -> list[str]:
    """As texts, for equal numbers may differ."""
    assert isinstance(module, ir.Module)
    return [repr(part.value) for part in parts(module.body) if isinstance(part, ir.Const)]


def test_what_comes_back_is_what_was_lowered(tmp_path: Path, lowered: list[str]) -> None:
    sources = own_sources()
    fresh = lower_all(sources)
    assert lower_all(sources, Shelf(tmp_path)) == fresh
    lowered.clear()
    again = lower_all(sources, Shelf(tmp_path))
    assert not lowered
    assert again == fresh and literals(again["train.py"]) == literals(fresh["train.py"])
    assert "-0.0" in literals(again["train.py"])


def test_a_file_that_moved_is_known_and_has_its_own_path(tmp_path: Path, lowered: list[str]) -> None:
    lower_all([SOURCE], Shelf(tmp_path))
    moved = lower_all([Source("other.py", SOURCE.text)], Shelf(tmp_path))
    assert lowered == ["train.py"] and isinstance(moved["other.py"], ir.Module) and moved["other.py"].path == "other.py"


@pytest.mark.parametrize("change", ["text", "code"])
def test_what_it_was_made_of_counts(
    change: str, tmp_path: Path, lowered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lower_all([SOURCE], Shelf(tmp_path))
    if change == "code":
        monkeypatch.setattr(kept, "state", lambda: "another version")
    lower_all([Source("train.py", SOURCE.text + "# more\n" * (change == "text"))], Shelf(tmp_path))
    assert lowered == ["train.py"] * 2


class Harm:
    def __reduce__(self) -> object:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    "data", [pickle.dumps(Harm()), pickle.dumps(("no", "module")), pickle.dumps(ir.Name(0, "x")), b"", b"\x80\x05."]
)
def test_other_data_is_no_module_and_does_nothing(
    data: bytes, tmp_path: Path, lowered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shelf = Shelf(tmp_path / "shelf")
    lower_all([SOURCE], shelf)
    (path,) = (tmp_path / "shelf").iterdir()
    kept.store_bytes(path.parent, path.stem, data)
    assert lower_all([SOURCE], shelf) == lower_all([SOURCE])
    assert len(lowered) == 3 and not Path("harm").exists()


LONG = Source("long.py", "def train(x):\n" + "    x = x + 1 - f(x, y=[x, 1, 'text'])\n" * 30 + "    return x\n")


def test_a_long_body_is_read_when_it_is_asked_for(
    tmp_path: Path, lowered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(tmp_path)
    fresh = lower_all([LONG], shelf)["long.py"]
    opened: list[int] = []
    read = shelves._body
    monkeypatch.setattr(shelves, "_body", lambda *given: opened.append(given[1]) or read(*given))
    module = lower_all([LONG], shelf)["long.py"]
    assert isinstance(module, ir.Module) and isinstance(fresh, ir.Module)
    function = module.definitions[0][0]
    assert function is module.body[0] and "f" in function.words and opened == []
    assert function.body == fresh.definitions[0][0].body and function.body is function.body
    assert opened == [function.at] and lowered == ["long.py"]


def test_functions_in_others_are_the_ones_that_the_module_knows(tmp_path: Path) -> None:
    inner = (
        "        def inner():\n            def last(): ...\n" + "            y = f(y, [y, 1, 'text']) + 1 - y\n" * 30
    )
    source = Source(
        "nested.py", f"class C:\n    def outer(self):\n{inner}        class D:\n            def m(self): ...\n"
    )
    lower_all([source], Shelf(tmp_path))
    module = lower_all([source], Shelf(tmp_path))["nested.py"]
    assert isinstance(module, ir.Module)
    assert [(id(f), id(c)) for f, c in definitions(module.body)] == [(id(f), id(c)) for f, c in module.definitions]


@pytest.mark.parametrize("data", [pickle.dumps(Harm()), pickle.dumps(("no", "body")), b"", b"\x80\x05."])
def test_other_data_is_no_body_and_does_nothing(
    data: bytes, tmp_path: Path, lowered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shelf = Shelf(tmp_path / "shelf")
    read = shelves._body
    monkeypatch.setattr(shelves, "_body", lambda source, at, _: read(source, at, data))
    fresh = lower_all([LONG], shelf)
    assert lower_all([LONG], shelf) == fresh and not Path("harm").exists()


def test_what_is_half_there_is_lowered_again(tmp_path: Path, lowered: list[str]) -> None:
    lower_all([SOURCE], Shelf(tmp_path))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert lower_all([SOURCE], Shelf(tmp_path)) == lower_all([SOURCE]) and len(lowered) == 3


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert lower_all([SOURCE], Shelf(tmp_path / "file")) == lower_all([SOURCE])


def test_those_used_longest_ago_go_first(tmp_path: Path) -> None:
    for number, name in enumerate("abcd"):
        kept.store_bytes(tmp_path, name, b"x" * 100)
        os.utime(tmp_path / f"{name}.kept", ns=(number, number))
    kept.use(tmp_path, "a")
    kept.forget(tmp_path, most=3)
    assert {path.stem for path in tmp_path.iterdir()} == {"a", "c", "d"}
    each = (tmp_path / "a.kept").stat().st_size
    kept.forget(tmp_path, most=3, most_bytes=2 * each)
    assert {path.stem for path in tmp_path.iterdir()} == {"a", "d"}


def test_a_check_of_one_file_lowers_only_what_changed(
    tmp_path: Path, lowered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text("")
    Path("losses.py").write_text("import torch\ndef scaled(scaler, loss):\n    scaler.scale(loss).backward()\n")
    train = (
        "import torch\nfrom losses import scaled\nmodel = torch.nn.Linear(2, 2)\n"
        "scaler = torch.amp.GradScaler('cuda')\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\nfor x in []:\n    optimizer.zero_grad()\n"
        "    scaled(scaler, model(x).sum())\n"
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    scaler.step(optimizer)\n    scaler.update()\n"
    )
    Path("train.py").write_text(train)
    options = Options(cache=tmp_path / "cache")
    check(["."], rulebook.load(), options)
    lowered.clear()
    Path("train.py").write_text("# changed\n" + train)
    found = check(["train.py"], rulebook.load(), options)
    assert [Path(path).name for path in lowered] == ["train.py"]
    assert found.findings == check(["train.py"], rulebook.load()).findings
    assert ("AMP202", 10) in [(each.rule, each.location.line) for each in found.findings if each.location]
