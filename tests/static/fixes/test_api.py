"""Repairs of single calls: the program does the same before and after (safe ones), and the finding is gone."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from amp_audit import mending
from amp_audit.settings import Configuration, Settings
from tests.static.fixes.mended import inside, mended, printed, rules

TRAIN = """
torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(3):
    x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
    optimizer.zero_grad()
    with {region}:
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(out.dtype, scaler.get_scale(), scaler.is_enabled(), float(loss.detach()), float(model.weight.sum()))
"""


def program(imports: str, scaler: str, region: str) -> str:
    return f"import torch\nfrom torch import nn\n{imports}\nscaler = {scaler}\n{TRAIN.format(region=region)}"


@pytest.mark.parametrize("word", ["autocast", "GradScaler"])
def test_an_import_without_calls_moves_alone(tmp_path: Path, word: str) -> None:
    assert mended(tmp_path, f"from torch.cuda.amp import {word}\n") == f"from torch.amp import {word}\n"


@pytest.mark.parametrize(
    ("imports", "scaler", "region", "new_scaler", "new_region"),
    [
        (
            "",
            "torch.cpu.amp.GradScaler(2.0**12)",
            "torch.cpu.amp.autocast(True, torch.float16)",
            'torch.amp.GradScaler("cpu", init_scale=2.0**12)',
            'torch.amp.autocast("cpu", enabled=True, dtype=torch.float16)',
        ),
        (
            "from torch.cpu.amp import GradScaler, autocast",
            "GradScaler(512.0, growth_interval=1)",
            "autocast(enabled=False)",
            'GradScaler("cpu", init_scale=512.0, growth_interval=1)',
            'autocast("cpu", enabled=False)',
        ),
        (
            "from torch.cpu import amp as A",
            "A.GradScaler(enabled=(1 > 2))",
            "A.autocast(\n        True,  # on\n    )",
            'A.GradScaler("cpu", enabled=(1 > 2))',
            'A.autocast(\n        "cpu", enabled=True,  # on\n    )',
        ),
        (
            "import torch.cpu.amp as half",
            "half.GradScaler((2.0**4), 4.0)",
            "half.autocast(dtype=torch.bfloat16)",
            'half.GradScaler("cpu", init_scale=(2.0**4), growth_factor=4.0)',
            'half.autocast("cpu", dtype=torch.bfloat16)',
        ),
        (
            "kwargs = {'dtype': torch.float16}",
            "torch.cpu.amp.GradScaler()",
            "torch.cpu.amp.autocast(**kwargs)",
            "torch.amp.GradScaler('cpu')",
            "torch.amp.autocast('cpu', **kwargs)",
        ),
    ],
)
def test_the_new_names_get_what_the_old_ones_got(
    tmp_path: Path, imports: str, scaler: str, region: str, new_scaler: str, new_region: str
) -> None:
    pytest.importorskip("torch")
    before = program(imports, scaler, region)
    after = mended(tmp_path, before)
    assert f"scaler = {new_scaler}\n" in after and f"with {new_region}:" in after
    assert "AMP101" not in rules(tmp_path) and "cpu.amp" not in after
    assert printed(after) == printed(before) and "Error" not in printed(after)


def test_torch_by_another_name_and_from_a_star_import(tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text("import torch\n")
    before = (
        "import torch as th\nfrom common import *\n\na = th.cpu.amp.GradScaler()\nb = torch.cpu.amp.GradScaler(2.0)\n"
    )
    after = mended(tmp_path, before)
    assert 'a = th.amp.GradScaler("cpu")\nb = torch.amp.GradScaler("cpu", init_scale=2.0)\n' in after


def test_getters_and_setters(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = textwrap.dedent("""\
        import torch
        before = torch.get_autocast_gpu_dtype()
        torch.set_autocast_gpu_dtype(torch.bfloat16)
        print(torch.get_autocast_gpu_dtype(), torch.get_autocast_cpu_dtype(), torch.is_autocast_cpu_enabled())
        torch.set_autocast_gpu_dtype(before)
        """)
    after = mended(tmp_path, before)
    assert 'torch.set_autocast_dtype("cuda", torch.bfloat16)' in after and 'torch.is_autocast_enabled("cpu")' in after
    assert printed(after) == printed(before) == "torch.bfloat16 torch.bfloat16 False\n"
    assert rules(tmp_path) == []


def test_decorators_of_functions(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = textwrap.dedent("""\
        import torch
        from torch.cuda.amp import custom_bwd, custom_fwd


        class Double(torch.autograd.Function):
            @staticmethod
            @custom_fwd(cast_inputs=torch.float32)
            def forward(ctx, x):
                return x * 2

            @staticmethod
            @custom_bwd
            def backward(ctx, grad):
                return grad * 2


        x = torch.ones(3, requires_grad=True)
        Double.apply(x).sum().backward()
        print(x.grad)
        """)
    after = mended(tmp_path, before)
    assert "from torch.amp import custom_bwd, custom_fwd" in after
    assert '@custom_fwd(device_type="cuda", cast_inputs=torch.float32)' in after
    assert '@custom_bwd(device_type="cuda")' in after
    assert printed(after) == printed(before) == "tensor([2., 2., 2.])\n"


@pytest.mark.parametrize(
    "source",
    [
        # only old versions of torch come here
        "try:\n    s = torch.amp.GradScaler('cuda')\nexcept AttributeError:\n    s = torch.cuda.amp.GradScaler()\n",
        "s = torch.amp.GradScaler('cuda') if hasattr(torch.amp, 'GradScaler') else torch.cuda.amp.GradScaler()\n",
        # what is meant is not known
        "def f(args):\n    return torch.cuda.amp.GradScaler(*args)\n",
        "region = torch.cuda.amp.autocast\nwith region():\n    pass\n",
        "@torch.cuda.amp.autocast\ndef f(x):\n    return x\n",
        "def f(flag):\n    return torch.amp.GradScaler(flag, 2.0)\n",
    ],
)
def test_what_is_not_surely_meant_is_left_alone(tmp_path: Path, source: str) -> None:
    before = "import torch\n" + source
    assert mended(tmp_path, before, unsafe=True) == before


def test_an_import_that_serves_other_uses_too_stays(tmp_path: Path) -> None:
    before = textwrap.dedent("""\
        import torch
        from torch.cuda.amp import GradScaler, autocast

        kinds = {"amp": autocast}


        def f(m, x):
            scaler = GradScaler(1024.0)
            with autocast(False):
                return scaler.scale(m(x))
        """)
    after = mended(tmp_path, before)
    assert "from torch.cuda.amp import GradScaler, autocast" in after and '{"amp": autocast}' in after
    assert 'torch.amp.GradScaler("cuda", init_scale=1024.0)' in after
    assert 'torch.amp.autocast("cuda", enabled=False)' in after


def test_a_name_that_another_file_imports_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("from train import autocast\nwith autocast(True):\n    pass\n")
    before = "from torch.cuda.amp import autocast\n\n\ndef f(m, x):\n    with autocast(True):\n        return m(x)\n"
    (tmp_path / "train.py").write_text(before)
    with inside(tmp_path):
        for given in (Path(), Path("train.py")):
            done = mending.mend([given], Configuration(Settings(root=tmp_path)), unsafe=False)
            assert list(done.changed()) == []
    (tmp_path / "other.py").write_text("from train import f\nfrom torch.amp import autocast\n")
    assert "from torch.amp import" not in mended(tmp_path, before)  # nobody knows what that file means by the two words
    (tmp_path / "other.py").unlink()
    assert "from torch.amp import" in mended(tmp_path, before)


def test_annotations_and_isinstance_follow_the_import(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    before = textwrap.dedent("""\
        from torch.cpu.amp import GradScaler


        def f(s: GradScaler) -> GradScaler:
            assert isinstance(s, GradScaler)
            return s


        print(f(GradScaler(8.0)).get_scale())
        """)
    after = mended(tmp_path, before)
    assert after.startswith("from torch.amp import GradScaler\n") and 'GradScaler("cpu", init_scale=8.0)' in after
    assert printed(after) == printed(before) == "8.0\n"


# AMP103


@pytest.mark.parametrize(
    ("argument", "instead", "state"),
    [
        ("False", '"cuda", enabled=False', "False 1.0"),
        ("1 < 2, growth_interval=5", '"cuda", enabled=1 < 2, growth_interval=5', None),
        ("2.0**10", '"cuda", init_scale=2.0**10', None),
    ],
)
def test_positional_arguments_of_the_new_class(tmp_path: Path, argument: str, instead: str, state: str | None) -> None:
    before = f"import torch\ns = torch.amp.GradScaler({argument})\nprint(s.is_enabled(), s.get_scale())\n"
    after = mended(tmp_path, before)
    assert f"torch.amp.GradScaler({instead})" in after and "AMP103" not in rules(tmp_path)
    if state is not None:
        pytest.importorskip("torch")
        assert printed(after) == f"{state}\n"


def test_a_flag_known_by_its_name_only_is_no_safe_repair(tmp_path: Path) -> None:
    before = "import torch\n\n\ndef f(cfg):\n    return torch.amp.GradScaler(cfg.use_amp)\n"
    assert mended(tmp_path, before) == before
    assert 'GradScaler("cuda", enabled=cfg.use_amp)' in mended(tmp_path, before, unsafe=True)


# AMP104


@pytest.mark.parametrize(
    ("region", "instead"),
    [
        ("torch.autocast(x.device, dtype=torch.bfloat16)", "torch.autocast(x.device.type, dtype=torch.bfloat16)"),
        ("torch.autocast(torch.device('cpu'))", "torch.autocast(torch.device('cpu').type)"),
        ("torch.autocast('cpu', enabled=1)", "torch.autocast('cpu', enabled=True)"),
        ("torch.autocast('cpu', enabled=None)", "torch.autocast('cpu', enabled=False)"),
        ("torch.autocast('cpu', dtype='bfloat16')", "torch.autocast('cpu', dtype=torch.bfloat16)"),
    ],
)
def test_arguments_of_the_wrong_kind(tmp_path: Path, region: str, instead: str) -> None:
    pytest.importorskip("torch")
    code = "import torch\nm = torch.nn.Linear(2, 2)\nx = torch.ones(1, 2, device='cpu')\nx = x.clone()\n"
    before = f"{code}with {region}:\n    print(m(x).dtype)\n"
    after = mended(tmp_path, before)
    assert f"with {instead}:" in after and "AMP104" not in rules(tmp_path)
    assert "Error" in printed(before) and printed(after).startswith("torch.")


# AMP804


@pytest.mark.parametrize(
    ("word", "instead"), [("16", '"16-mixed"'), ("'16'", "'16-mixed'"), ('"bf16"', '"bf16-mixed"')]
)
def test_words_of_old_lightning(tmp_path: Path, word: str, instead: str) -> None:
    before = f"import lightning.pytorch as pl\n\ntrainer = pl.Trainer(precision={word}, devices=1)\n"
    after = mended(tmp_path, before)
    assert f"precision={instead}, devices=1" in after and rules(tmp_path) == []


def test_what_lightning_makes_of_the_words_is_the_same() -> None:
    connector = pytest.importorskip("lightning.fabric.connector")
    for word, instead in ((16, "16-mixed"), ("16", "16-mixed"), ("bf16", "bf16-mixed")):
        assert connector._convert_precision_to_unified_args(word) == instead


# AMP002


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("x = 1  # amp-audit: ignore[AMP202] for now", "x = 1"),
        ("x = 1  # amp-audit: ignore[AMP202, AMP203]", "x = 1"),
        ("# amp-audit: ignore-next-line[AMP202]\nx = 1", "x = 1"),
        (
            "with torch.autocast(x.device):  # amp-audit: ignore[AMP202, AMP104] known\n    pass",
            "with torch.autocast(x.device):  # amp-audit: ignore[AMP104] known\n    pass",
        ),
        ("x = 1  # amp-audit: ignore[AMP2O2]", "x = 1  # amp-audit: ignore[AMP2O2]"),
    ],
)
def test_idle_suppressions_go(tmp_path: Path, comment: str, left: str) -> None:
    head = "import torch\n\nx = torch.ones(2)\n"
    assert mended(tmp_path, f"{head}{comment}\n") == f"{head}{left}\n"
