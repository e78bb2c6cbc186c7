"""The options of the command line: their defaults and types, looked for once in a project."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.binding import options
from amp_audit.static.binding.project import Project
from amp_audit.static.dtypes import rules
from amp_audit.static.source import lowering

PARSER = """
parser.add_argument("-m", "--model-name", default="t5-small")
parser.add_argument("--twice", default="a")
parser.add_argument("--same", default="b")
parser.add_argument("--same", default="b", type=str)
parser.add_argument("--mixed", default="b")
parser.add_argument("--mixed")
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--steps", type=int)
"""
OTHER = "parser.add_argument('--twice', default='c')\nargs.steps = None\n"


def _project(*sources: str) -> Project:
    modules = [lowering.lower(f"/project/m{n}.py", source) for n, source in enumerate(sources)]
    return Project(modules, Path("/project"))


@pytest.mark.parametrize(
    ("name", "default", "number"),
    [
        ("model_name", "t5-small", None),
        ("m", None, None),
        ("twice", None, None),
        ("same", "b", None),
        ("mixed", None, None),
        ("lr", None, "float"),
        ("steps", None, None),
        ("absent", None, None),
    ],
)
def test_what_all_declarations_of_an_option_agree_on(name: str, default: str | None, number: str | None) -> None:
    line = options.CommandLine(_project(PARSER, OTHER))
    assert (line.default(name), line.number(name)) == (default, number)
    assert options.CommandLine(_project(PARSER)).number("steps") == "int"


def test_the_declarations_are_gone_through_once_however_many_models_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    gone_through: list[Project] = []
    declarations = options._declarations
    monkeypatch.setattr(options, "_declarations", lambda code: (gone_through.append(code), declarations(code))[1])
    loads = "".join(f"    m{n} = AutoModel.from_pretrained(args.model_{n})\n" for n in range(20))
    region = (
        "    with torch.autocast('cuda', dtype=torch.float16):\n        loss = m0(args.x).mean()\n    loss.backward()\n"
    )
    code = _project(PARSER, f"import torch\nfrom transformers import AutoModel\ndef main(args):\n{loads}{region}")
    rules.find(code, rulebook.load())
    assert gone_through == [code]
