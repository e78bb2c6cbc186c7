"""Names resolved across files, from sources laid out in a folder as a real project would be."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit.static.binding.project import (
    Alternatives,
    Binding,
    ClassRef,
    External,
    FunctionRef,
    ModuleRef,
    Project,
    Scope,
    Unknown,
    ValueRef,
)
from amp_audit.static.source import ir
from amp_audit.static.source.lowering import lower


def build(folder: Path, **files: str) -> Project:
    """A project of files named with ``__`` for ``/`` and without ``.py``; ``init`` stands for ``__init__``."""
    modules = []
    for name, source in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        if path.stem == "init":
            path = path.with_name("__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        modules.append(lower(str(path), source))
    return Project(modules, folder)


def module(project: Project, ending: str) -> ir.Module:
    return next(m for path, m in project.modules.items() if path.endswith(ending))


def look(project: Project, ending: str, name: str) -> Binding:
    return project.lookup(module(project, ending), name)


def single(tmp_path: Path, source: str, name: str) -> Binding:
    return look(build(tmp_path, train=source), "train.py", name)


@pytest.mark.parametrize(
    ("source", "name", "dotted"),
    [
        ("import torch", "torch", "torch"),
        ("import torch.cuda.amp", "torch", "torch"),
        ("import torch.cuda.amp as A", "A", "torch.cuda.amp"),
        ("from torch.cuda import amp", "amp", "torch.cuda.amp"),
        ("from torch import autocast as ac", "ac", "torch.amp.autocast"),
        ("from torch.amp.autocast_mode import autocast", "autocast", "torch.amp.autocast"),
        ("from torch import GradScaler", "GradScaler", "torch.amp.GradScaler"),
        ("from torch.cuda.amp.grad_scaler import GradScaler as G", "G", "torch.cuda.amp.GradScaler"),
        ("from torch.nn.utils.clip_grad import clip_grad_norm_", "clip_grad_norm_", "torch.nn.utils.clip_grad_norm_"),
        ("from torch.optim.adam import Adam", "Adam", "torch.optim.Adam"),
        ("from torch.optim.lr_scheduler import StepLR", "StepLR", "torch.optim.lr_scheduler.StepLR"),
        ("import pytorch_lightning as pl\nT = pl.Trainer", "T", "lightning.pytorch.Trainer"),
        ("import lightning as L\nM = L.LightningModule", "M", "lightning.pytorch.LightningModule"),
        ("import torch\nA = torch.amp\nB = A\nac = B.autocast", "ac", "torch.amp.autocast"),
        ("from torch.cuda.amp import *\nfrom os import *", "GradScaler", "torch.cuda.amp.GradScaler"),
        ("", "print", "builtins.print"),
    ],
)
def test_library_names_are_canonical(tmp_path: Path, source: str, name: str, dotted: str) -> None:
    assert single(tmp_path, source, name) == External(dotted)


def test_import_fallbacks_give_all_candidates_in_order(tmp_path: Path) -> None:
    source = (
        "try:\n    from torch.amp import GradScaler\nexcept ImportError:\n    from torch.cuda.amp import GradScaler\n"
    )
    assert single(tmp_path, source, "GradScaler") == Alternatives(
        (External("torch.amp.GradScaler"), External("torch.cuda.amp.GradScaler"))
    )


def test_a_name_set_to_none_first_keeps_the_conditional_import(tmp_path: Path) -> None:
    found = single(tmp_path, "amp = None\ntry:\n    from torch import amp\nexcept ImportError:\n    pass\n", "amp")
    assert isinstance(found, Alternatives)
    assert isinstance(found.options[0], ValueRef)
    assert found.options[1] == External("torch.amp")


def test_a_later_definition_replaces_an_import(tmp_path: Path) -> None:
    found = single(tmp_path, "from torch import autocast\ndef autocast(x):\n    return x\n", "autocast")
    assert isinstance(found, FunctionRef)


def test_a_shadowed_builtin_is_not_the_builtin(tmp_path: Path) -> None:
    assert isinstance(single(tmp_path, "for print in []: pass", "print"), Unknown)


def test_a_variable_assigned_once_is_its_expression_and_with_a_history_unknown(tmp_path: Path) -> None:
    source = "once = make()\ntwice = make()\ntwice = wrap(twice)\nadded = 1\nadded += 1\n"
    project = build(tmp_path, train=source)
    once = look(project, "train.py", "once")
    assert isinstance(once, ValueRef)
    assert isinstance(once.expr, ir.Call)
    assert isinstance(look(project, "train.py", "twice"), Unknown)
    assert isinstance(look(project, "train.py", "added"), Unknown)


def test_exclusive_arms_of_a_variable_stand_side_by_side(tmp_path: Path) -> None:
    found = single(tmp_path, "if flag:\n    s = a()\nelif other:\n    s = b()\nelse:\n    s = None\n", "s")
    assert isinstance(found, Alternatives)
    assert [type(option) for option in found.options] == [ValueRef] * 3


def test_imports_through_packages_reexports_and_stars(tmp_path: Path) -> None:
    project = build(
        tmp_path,
        pkg__init="from .core import *\nfrom .engine import Trainer as T",
        pkg__core="__version__ = '1'\nfrom torch.amp import autocast\ndef helper(): pass\ndef _private(): pass",
        pkg__engine="from ..pkg.core import helper\nfrom . import core\nclass Trainer: pass",
        train="import pkg\nfrom pkg import T, helper, autocast, core, _private\nimport pkg.engine",
    )
    helper = FunctionRef(module(project, "core.py"), module(project, "core.py").body[2])  # type: ignore[arg-type]
    assert look(project, "train.py", "helper") == helper
    assert look(project, "pkg/engine.py", "helper") == helper
    assert look(project, "train.py", "autocast") == External("torch.amp.autocast")
    trainer = look(project, "train.py", "T")
    assert isinstance(trainer, ClassRef)
    assert trainer.cls.name == "Trainer"
    assert look(project, "train.py", "core") == ModuleRef("pkg.core", module(project, "core.py"))
    assert isinstance(look(project, "train.py", "_private"), Unknown)
    engine = project.member(look(project, "train.py", "pkg"), "engine")
    assert engine == ModuleRef("pkg.engine", module(project, "engine.py"))


def test_scripts_import_what_lies_beside_and_above_them(tmp_path: Path) -> None:
    project = build(
        tmp_path,
        scripts__train="import utils\nfrom models.net import Net\nfrom lib import common",
        scripts__utils="def f(): pass",
        scripts__models__net="class Net: pass",
        src__lib__init="",
        src__lib__common="",
        utils="def g(): pass",
    )
    utils = look(project, "scripts/train.py", "utils")
    assert isinstance(project.member(utils, "f"), FunctionRef)
    assert isinstance(look(project, "scripts/train.py", "Net"), ClassRef)
    assert look(project, "scripts/train.py", "common") == ModuleRef("lib.common", module(project, "common.py"))


def test_a_folder_called_lib_is_on_the_path_behind_what_lies_nearer(tmp_path: Path) -> None:
    project = build(
        tmp_path,
        tools__train="from core.function import run\nfrom utils import f",
        lib__core__function="def run(): pass",
        lib__utils="def g(): pass",
        tools__utils="def f(): pass",
    )
    assert isinstance(look(project, "tools/train.py", "run"), FunctionRef)
    assert isinstance(look(project, "tools/train.py", "f"), FunctionRef)


def test_inside_a_package_an_absolute_import_does_not_mean_the_neighbour(tmp_path: Path) -> None:
    project = build(tmp_path, pkg__init="", pkg__utils="x = 1", pkg__a="import utils", utils="y = 2")
    assert look(project, "pkg/a.py", "utils") == ModuleRef("utils", project.modules[str(tmp_path / "utils.py")])


def test_a_folder_named_like_torch_is_not_torch(tmp_path: Path) -> None:
    project = build(tmp_path, torch__helpers="x = 1", train="import torch")
    assert look(project, "train.py", "torch") == External("torch")


def test_modules_that_import_each_other_end(tmp_path: Path) -> None:
    project = build(tmp_path, a="from b import x", b="from a import x")
    assert isinstance(look(project, "a.py", "x"), Unknown)


def test_methods_come_from_bases_across_files_left_to_right(tmp_path: Path) -> None:
    project = build(
        tmp_path,
        base="class Base:\n    def step(self): pass\n    def log(self): pass\n    limit = 3\n",
        mixin="class Mixin:\n    def log(self): pass\n",
        train="from base import Base\nfrom mixin import Mixin\nclass T(Mixin, Base):\n    def fit(self): pass\n",
    )
    ref = look(project, "train.py", "T")
    assert isinstance(ref, ClassRef)
    methods = project.methods(ref)
    assert {name: owner.cls.name for name, (owner, _) in methods.items()} == {
        "fit": "T",
        "log": "Mixin",
        "step": "Base",
    }
    assert isinstance(project.member(ref, "limit"), ValueRef)
    assert isinstance(project.member(ref, "absent"), Unknown)


def test_a_property_with_a_setter_is_its_getter(tmp_path: Path) -> None:
    source = (
        "class A:\n    @property\n    def x(self): return 1\n    @x.setter\n    def x(self, value): self.y = value\n"
    )
    ref = single(tmp_path, source, "A")
    assert isinstance(ref, ClassRef)
    project = Project([ref.module], tmp_path)
    assert len(project.methods(ref)["x"][1].params) == 1


@pytest.mark.parametrize(
    ("base", "expected"),
    [("nn.Module", True), ("nn.Sequential", True), ("Middle", True), ("object", False), ("Unknown", False)],
)
def test_subclasses_of_a_library_class(tmp_path: Path, base: str, expected: bool) -> None:
    source = f"from torch import nn\nclass Middle(nn.Module): pass\nclass Net({base}): pass\n"
    ref = single(tmp_path, source, "Net")
    assert isinstance(ref, ClassRef)
    assert Project([ref.module], tmp_path).is_subclass(ref, "torch.nn.Module") is expected


def test_a_class_that_derives_from_itself_ends(tmp_path: Path) -> None:
    ref = single(tmp_path, "class A(A):\n    def f(self): pass\n", "A")
    assert isinstance(ref, ClassRef)
    assert set(Project([ref.module], tmp_path).methods(ref)) == {"f"}


def test_a_diamond_looks_in_the_shared_base_last(tmp_path: Path) -> None:
    source = "class A:\n  def f(s): pass\nclass B(A): pass\nclass C(A):\n  def f(s): pass\nclass D(B, C): pass\n"
    ref = single(tmp_path, source, "D")
    assert isinstance(ref, ClassRef)
    order = [owner.cls.name for owner in Project([ref.module], tmp_path).mro(ref)]
    namespace: dict[str, type] = {}
    exec(source, namespace)
    assert order == [cls.__name__ for cls in namespace["D"].__mro__[:-1]]


def test_local_imports_aliases_and_shadows(tmp_path: Path) -> None:
    source = (
        "from torch import autocast\n"
        "def f(autocast):\n    autocast\n"
        "def g():\n    from torch.cuda import amp\n    A = amp\n    A.autocast\n    autocast\n"
    )
    project = build(tmp_path, train=source)
    own = module(project, "train.py")
    first, second = (s for s in own.body if isinstance(s, ir.Function))
    assert project.qualified(own, first.body[0].value, Scope(first)) is None  # type: ignore[union-attr]
    inside = Scope(second)
    assert project.qualified(own, second.body[2].value, inside) == "torch.cuda.amp.autocast"  # type: ignore[union-attr]
    assert project.qualified(own, second.body[3].value, inside) == "torch.amp.autocast"  # type: ignore[union-attr]


def test_a_script_named_like_its_folder_imports_from_the_folder(tmp_path: Path) -> None:
    project = build(tmp_path, train__train="from train.losses import kl", train__losses="def kl(): pass")
    assert isinstance(look(project, "train/train.py", "kl"), FunctionRef)
