"""Which code may come to some files: whatever names lead there, and little else."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from amp_audit.static.binding.incoming import Incoming
from amp_audit.static.binding.project import Project
from amp_audit.static.source import lowering
from amp_audit.static.source.traverse import definitions

TRAINING = """
class Trainer:
    def fit(self): ...

def train(*args): ...

trainer = Trainer()
"""


def project(**sources: str) -> Project:
    paths = {"train": "pkg/train", "package": "pkg/__init__"}
    modules = [
        lowering.lower(f"/project/{paths.get(name, name)}.py", textwrap.dedent(text)) for name, text in sources.items()
    ]
    return Project(modules, Path("/project"))


def comes(read: Project, name: str, path: str = "/project/main.py", asked: str = "/project/pkg/train.py") -> bool:
    module = read.modules[path]
    function = next(found for found, _ in definitions(module.body) if found.qualname == name)
    return Incoming(read, {asked}).has(module, function)


@pytest.mark.parametrize(
    "source",
    [
        "from pkg.train import train\ndef entry():\n    train()",
        "from pkg.train import train as fit\ndef entry():\n    fit()",
        "from pkg.train import *\ndef entry():\n    train()",
        "def entry():\n    from pkg.train import train as fit\n    fit()",
        "import pkg.train\ndef entry():\n    pkg.train.train()",
        "import pkg.train as t\ndef entry():\n    t.train()",
        "from pkg import train as t\ndef entry():\n    t.train()",
        "from pkg import train as t\nu = t\ndef entry():\n    u.train()",
        "from pkg import fit\ndef entry():\n    fit()",
        "import pkg\ndef entry():\n    pkg.fit()",
        "from pkg.train import trainer\ndef entry():\n    trainer.fit()",
        "from pkg.train import Trainer\nclass T(Trainer): ...\nclass U(T): ...\ndef entry():\n    U().fit()",
        "from pkg.train import train\nfit = train\ndef entry():\n    fit()",
        "from pkg.train import train\nFITS = {}\nFITS['a'] = train\ndef entry():\n    FITS['a']()",
        "from pkg.train import train\nFITS = []\nFITS.append(train)\ndef entry():\n    FITS[0]()",
        "from pkg.train import train\nfor fit in [train]: ...\ndef entry():\n    fit()",
        "from pkg.train import train\nfit = lambda: train()\ndef entry():\n    fit()",
        "from pkg.train import train\nif (fit := train): ...\ndef entry():\n    fit()",
        "from pkg.train import train\ndef entry(fit=train):\n    fit()",
        "from pkg.train import train\n@train\ndef entry(): ...",
        "from pkg.train import train\nclass T:\n    fit = train\n    def go(self):\n        self.fit()\n"
        "def entry():\n    T().go()",
        "from functools import singledispatch\nfrom pkg.train import train\n@singledispatch\ndef go(x): ...\n"
        "@go.register\ndef on_int(x: int):\n    train()\ndef entry():\n    go(1)",
        "from pkg.train import train\ntrain()\ndef entry(): ...",
    ],
)
def test_code_comes_to_what_it_names_however_that_is_written(source: str) -> None:
    assert comes(project(main=source, train=TRAINING, package="from .train import train as fit"), "entry")


def test_code_comes_to_what_other_code_names_that_it_names() -> None:
    middle = "from pkg.train import train\ndef inner():\n    train()\nclass T:\n    def fit(self):\n        inner()"
    main = "from middle import T\ndef entry():\n    T().fit()\ndef other():\n    pass"
    read = project(main=main, middle=middle, train=TRAINING)
    assert comes(read, "entry") and not comes(read, "other")


def test_names_that_are_others_lead_nowhere() -> None:
    main = """
    from elsewhere import Trainer
    class Other:
        def fit(self): ...
    def entry(trainer):
        trainer.fit()
        Other().fit()
        Trainer().fit()
    """
    read = project(main=main, train=TRAINING)
    assert not comes(read, "entry") and not comes(read, "Other.fit")


def test_what_a_modules_own_code_does_all_its_code_does() -> None:
    tool = "import pkg.train\ndef help(): ...\npkg.train.train()"
    read = project(main="from tool import help\ndef entry():\n    help()", tool=tool, train=TRAINING)
    assert comes(read, "entry")
    found = Incoming(read, {"/project/pkg/train.py"})
    assert found.has(read.modules["/project/tool.py"]) and not found.has(read.modules["/project/main.py"])
