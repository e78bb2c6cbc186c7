"""Models and regions in different files of a program."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from amp_audit.model import Confidence
from amp_audit.static import dtypes
from amp_audit.static.binding.project import Project
from amp_audit.static.source.lowering import lower
from amp_audit.static.source.screen import screen
from amp_audit.static.source.selection import select
from tests.static.dtypes.judging import TRAIN, book, find, misjudged

MODEL = """
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x, mask):
            h = self.fc(x)
            return h.masked_fill(mask, -1e9){comment}
"""


def test_a_model_of_another_file() -> None:
    assert misjudged(train=TRAIN, model=MODEL.format(comment="  # AMP501")) == []


def test_a_model_that_no_training_program_imports_is_left_alone() -> None:
    assert (
        misjudged(
            train=TRAIN.replace("from model import Net", "from elsewhere import Net"), model=MODEL.format(comment="")
        )
        == []
    )


def test_a_model_loaded_by_name() -> None:
    loading = TRAIN.replace("from model import Net", "import importlib\n    Net = importlib.import_module('model').Net")
    assert misjudged(train=loading, model=MODEL.format(comment="  # AMP501")) == []


def test_a_model_of_the_same_package_that_a_registry_builds(tmp_path: Path) -> None:
    sources = {
        "pkg/__init__.py": "",
        "pkg/train.py": TRAIN.replace("from model import Net", "from pkg.registry import build as Net"),
        "pkg/registry.py": "",
        "pkg/model.py": MODEL.format(comment=""),
        "other/model.py": MODEL.format(comment=""),
    }
    for name, source in sources.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(source))
    modules = [lower(str(tmp_path / name), textwrap.dedent(source)) for name, source in sources.items()]
    found = dtypes.find(Project(modules, tmp_path), book())
    assert [(finding.rule.id, finding.path) for finding in found] == [("AMP501", str(tmp_path / "pkg/model.py"))]
    chosen = select([module.path for module in modules], str(tmp_path), screen(book()))
    assert str(tmp_path / "pkg/model.py") in chosen.checked
    assert str(tmp_path / "other/model.py") not in chosen.checked


@pytest.mark.parametrize(
    "region",
    [
        'torch.autocast("cuda", dtype=torch.bfloat16)',
        'torch.autocast("cuda", enabled=False)',
        'torch.autocast("cuda", dtype=torch.float32)',
        "torch.cuda.amp.autocast(False)",
    ],
)
def test_regions_in_which_the_constant_fits(region: str) -> None:
    train = TRAIN.replace('torch.autocast("cuda", dtype=torch.float16)', region)
    assert misjudged(train=train, model=MODEL.format(comment="")) == []


@pytest.mark.parametrize(
    "region",
    [
        "torch.cuda.amp.autocast()",
        "torch.cuda.amp.autocast(enabled=loader.amp)",
        "torch.autocast('cuda')",
        "torch.autocast(device_type=device.type)",
        "(torch.autocast('cuda') if loader.amp else nullcontext())",
    ],
)
def test_regions_in_which_it_does_not(region: str) -> None:
    train = TRAIN.replace('torch.autocast("cuda", dtype=torch.float16)', region)
    assert misjudged(train=train, model=MODEL.format(comment="  # AMP501")) == []


def test_a_region_of_unknown_dtype_is_not_enough() -> None:
    files = {
        "train.py": textwrap.dedent(TRAIN.replace("dtype=torch.float16", "dtype=loader.dtype")),
        "model.py": textwrap.dedent(MODEL.format(comment="")),
    }
    assert find(files) == set()
    assert find(files, Confidence.LOW) == {("model.py", 11, "AMP501")}


@pytest.mark.parametrize(("evaluated", "mark"), [("", ""), ("model(images)", "# AMP310")])
def test_a_model_with_a_region_of_its_own_is_outside_where_it_is_called_outside(evaluated: str, mark: str) -> None:
    assert (
        misjudged(
            train=TRAIN + textwrap.indent(evaluated, " " * 8),
            model=f"""
        import torch
        from torch import nn

        class Head(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem, self.last = nn.Linear(8, 8), nn.Linear(8, 2)

            def forward(self, x):
                with torch.autocast("cuda", dtype=torch.float16):
                    x = self.stem(x)
                return self.last(x)  {mark}

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.head = Head()

            def forward(self, x, mask=None):
                return self.head(x)
        """,
        )
        == []
    )


def test_a_guard_that_a_nested_config_holds() -> None:
    config = """
        from dataclasses import dataclass, field

        @dataclass
        class Loss:
            eps: float = {eps}

        @dataclass
        class Config:
            loss: Loss = field(default_factory=Loss)
    """
    model = """
        from torch import nn
        from config import Config

        class Net(nn.Module):
            def __init__(self, cfg=Config()):
                super().__init__()
                self.fc = nn.Linear(8, 8)
                self.cfg = cfg.loss

            def forward(self, x, mask):
                h = self.fc(x)
                return h / (h.abs().amax() + self.cfg.eps){comment}
    """
    assert misjudged(train=TRAIN, config=config.format(eps="1e-8"), model=model.format(comment="  # AMP503")) == []
    assert misjudged(train=TRAIN, config=config.format(eps="1e-5"), model=model.format(comment="")) == []


@pytest.mark.parametrize("around", ["contextlib.nullcontext()", "torch.autocast('cuda', dtype=torch.float16)"])
def test_a_forward_that_enters_regions_itself_runs_outside_of_one(around: str) -> None:
    """The features are cast to float32 between its regions; a trainer that cannot be followed adds none around it."""
    train = """
        import torch
        from model import Net

        def train(step, loader):
            model = Net().cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            for x in loader:
                scaler.scale(step(model, x)).backward()
                scaler.step(optimizer)
                scaler.update()
    """
    model = f"""
        import contextlib

        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 8)

            def forward(self, x):
                with torch.autocast("cuda", dtype=torch.float16):
                    h = self.fc(x)
                h = h.float()
                with {around}:
                    return h.transpose(0, 1) @ h{"  # AMP307" if "autocast" in around else ""}
    """
    assert misjudged(train=train, model=model) == []


@pytest.mark.parametrize(("build", "mark"), [("Net().cuda()", "  # AMP306"), ("build_from(config)", "")])
def test_the_other_half_type_is_foreign_to_a_region_that_a_model_is_known_to_run_in(build: str, mark: str) -> None:
    """Where it is only taken to run in the project's region, it may be another program's that casts by hand."""
    assert (
        misjudged(
            train=TRAIN.replace("Net().cuda()", build).replace("dtype=torch.float16):", f"dtype=torch.float16):{mark}"),
            model="""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x, mask):
            return self.fc(x.to(torch.bfloat16))
    """,
        )
        == []
    )


@pytest.mark.parametrize(
    ("rest", "found"),
    [
        ("if __name__ == '__main__':\n    print(Net())", True),
        ("if __name__ == '__main__':\n    Net()(x, mask).sum().backward()", False),
        ("if __name__ == '__main__':\n    Trainer(Net(), TrainingArguments('out')).train()", False),
    ],
)
def test_what_trains_by_itself_is_not_loaded_by_another_program(tmp_path: Path, rest: str, found: bool) -> None:
    sources = {
        "pkg/__init__.py": "",
        "pkg/train.py": TRAIN.replace("from model import Net", "from pkg.registry import build as Net"),
        "pkg/other.py": f"{textwrap.dedent(MODEL.format(comment=''))}\n{rest}\n",
    }
    for name, source in sources.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(source))
    modules = [lower(str(tmp_path / name), textwrap.dedent(source)) for name, source in sources.items()]
    rules = [finding.rule.id for finding in dtypes.find(Project(modules, tmp_path), book())]
    assert rules == (["AMP501"] if found else [])


@pytest.mark.parametrize(
    ("test", "mark"), [("self.fc.weight.dtype == torch.float16", ""), ("self.fc.training is None", "  # AMP404")]
)
def test_a_cast_under_a_test_of_the_dtype_fits_what_it_is_made_for(test: str, mark: str) -> None:
    assert (
        misjudged(
            train=TRAIN,
            model=f"""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.fc, self.inner = nn.Linear(8, 8), inner
            self.inner.train()

        def forward(self, x, mask):
            if {test}:
                return self.inner(x.to(torch.float16)).sum(){mark}
            return self.inner(x).sum()
    """,
        )
        == []
    )


@pytest.mark.parametrize(("halved", "mark"), [("self.coder = self.coder.half()", ""), ("pass", "# AMP310")])
def test_every_method_of_a_model_that_was_cast_runs_with_weights_in_that_dtype(halved: str, mark: str) -> None:
    main = f"""
        import torch
        from torch import nn
        from coder import Coder

        class Latents(nn.Module):
            def __init__(self, coder):
                super().__init__()
                self.coder = coder
                {halved}

            def encode_image(self, image):
                with torch.autocast("cuda", enabled=False):
                    return self.coder.encode(image.half())

        Latents(Coder()).encode_image(torch.randn(2, 3, 8, 8))
    """
    coder = f"""
        from torch import nn

        class Encoder(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv_in = nn.Conv2d(3, 4, 3)

            def forward(self, x):
                return self.conv_in(x)  {mark}

        class Coder(nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder = Encoder()

            def encode(self, x):
                return self.encoder(x)
    """
    assert misjudged(main=main, coder=coder) == []


@pytest.mark.parametrize(
    ("importer", "found"),
    [
        ("", True),  # by a registry, perhaps
        ("from pkg.model import Net\n\n\ndef show():\n    print(Net())\n", True),
        ("from pkg.model import Net\n\n\ndef fit(x, m):\n    Net()(x, m).sum().backward()\n", False),
        (
            "from pkg.model import Net\n\n\nclass Task:\n    def training_step(self, x):\n        return Net()(*x)\n",
            False,
        ),
    ],
)
def test_a_model_that_others_train_is_theirs(tmp_path: Path, importer: str, found: bool) -> None:
    sources = {
        "pkg/__init__.py": "",
        "pkg/train.py": TRAIN.replace("from model import Net", "from pkg.registry import build as Net"),
        "pkg/model.py": MODEL.format(comment=""),
        "pkg/other.py": importer,
    }
    for name, source in sources.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(source))
    modules = [lower(str(tmp_path / name), textwrap.dedent(source)) for name, source in sources.items()]
    rules = [finding.rule.id for finding in dtypes.find(Project(modules, tmp_path), book())]
    assert rules == (["AMP501"] if found else [])


LEARNER = """
    import torch

    def region(device, dtype=torch.bfloat16):
        return torch.autocast(device.type, dtype=dtype)

    class Learner:
        def __init__(self, model, config):
            self.model, self.config = model, config

        def values(self, batches):
            held = torch.zeros(64, 8)
            for batch in batches:
                with {region}:
                    out = self.model(batch)
                held[torch.randperm(64)] = out{comment}
            return held
"""
STAND_IN = """
    import torch
    from torch import nn
    from learner import Learner

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            return self.fc(x)

    def test_values(config):
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        Learner(model, config).values(config.batches).mean().backward()
        optimizer.step()
"""


def test_what_a_test_hands_over_tells_nothing_of_the_program() -> None:
    """The stand-in ends in a layer, the model perhaps in a softmax; in which precision it runs, the test says."""
    assert misjudged(learner=LEARNER.format(region="region(batch.device)", comment=""), test_learner=STAND_IN) == []
    told = LEARNER.format(region="region(batch.device)", comment="  # AMP405")
    assert misjudged(learner=told, train=STAND_IN.replace("def test_values", "def values")) == []


def test_what_surely_happens_in_a_test_is_told() -> None:
    sure = LEARNER.format(region="torch.autocast('cuda', dtype=torch.bfloat16)", comment="  # AMP405")
    assert misjudged(learner=sure, test_learner=STAND_IN) == []


@pytest.mark.parametrize(
    ("beside", "found"),
    [
        ("other/fit.py", False),  # what trains nearest to the model trains in float32
        ("elsewhere/fit.py", True),
    ],
)
def test_a_model_that_switches_autocast_off_runs_in_the_regions_of_programs_around_it(
    tmp_path: Path, beside: str, found: bool
) -> None:
    cost = """
        class Cost(nn.Module):
            def forward(self, x):
                with torch.autocast("cuda", enabled=False):
                    return x.float().sum()
    """
    sources = {
        "one/train.py": TRAIN.replace("from model import Net", "from elsewhere import Net"),
        "other/models/net.py": "import torch\n" + textwrap.dedent(MODEL.format(comment="")) + textwrap.dedent(cost),
        beside: "def fit(model, x, m):\n    load(model)(x, m).sum().backward()\n",
    }
    modules = [lower(str(tmp_path / name), textwrap.dedent(source)) for name, source in sources.items()]
    rules = {finding.rule.id for finding in dtypes.find(Project(modules, tmp_path), book())}
    assert ("AMP501" in rules) is found
