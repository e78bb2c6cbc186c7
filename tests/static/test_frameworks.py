"""AMP802, AMP804, AMP805, AMP806: what the frameworks were told, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit.model import Confidence
from amp_audit.static.check import check
from tests.static.found import BOOK, findings, lines

LIGHTNING = """\
import lightning.pytorch as pl
import torch
class Net(pl.LightningModule):
    automatic_optimization = False
    def training_step(self, batch, index):
        self.manual_backward(batch.mean())
        self.clip_gradients(self.optimizers(), 1.0)
"""


@pytest.mark.parametrize(
    ("trainer", "confidence"),
    [
        ("pl.Trainer(precision='16-mixed')\n", Confidence.HIGH),
        ("pl.Trainer(precision=args.precision)\n", Confidence.MEDIUM),
        ("pl.Trainer(precision='bf16-mixed')\n", None),
        ("pl.Trainer()\n", None),
        ("", None),
    ],
)
def test_manual_clips_by_precision(tmp_path: Path, trainer: str, confidence: Confidence | None) -> None:
    found = [f for f in findings(tmp_path, "AMP804", LIGHTNING + trainer) if "scale" in f.message]
    assert [each.confidence for each in found] == ([confidence] if confidence is not None else [])


def test_a_trainer_in_another_file(tmp_path: Path) -> None:
    main = "import lightning.pytorch as pl\nfrom train import Net\npl.Trainer(precision=16).fit(Net())\n"
    assert lines(tmp_path, "AMP804", LIGHTNING, main=main) == [7]


@pytest.mark.parametrize(
    ("load", "trained", "marked"),
    [
        ("A.from_pretrained('x', torch_dtype=torch.float16)", "Trainer(model=m, args=a)", [4]),
        ("A.from_pretrained('x', dtype='float16')", "Trainer(m, a)", []),  # the arguments are not given by name
        ("A.from_pretrained('x', dtype='float16')", "Trainer(m, args=a)", [4]),
        ("A.from_pretrained('x', dtype=torch.bfloat16)", "Trainer(model=m, args=a)", []),
        ("A.from_pretrained('x', dtype=torch.float16).float()", "Trainer(model=m, args=a)", []),
        ("wrap(A.from_pretrained('x', dtype=torch.float16))", "Trainer(model=m, args=a)", []),
        ("A.from_pretrained('x', dtype=torch.float16)", "Trainer(model=m, args=a, **more)", []),
        ("A.from_pretrained('x', dtype=torch.float16)", "Trainer(model=other, args=a)", []),
    ],
)
def test_half_loaded_models(tmp_path: Path, load: str, trained: str, marked: list[int]) -> None:
    source = (
        "import torch\nfrom transformers import AutoModel as A, Trainer, TrainingArguments\n"
        f"a = TrainingArguments('out', fp16=True)\nm = {load}\nt = {trained}\n"
    )
    assert lines(tmp_path, "AMP802", source) == marked


@pytest.mark.parametrize(
    ("step", "marked"),
    [
        ("engine.backward(loss)\n    engine.step()", []),
        ("loss.backward()\n    engine.step()", [5]),
        ("engine.backward(loss)\n    optimizer.step()", [6]),
        ("aux = torch.ones(1, requires_grad=True).sum()\n    aux.backward()", []),
        ("loss.detach().item()", []),
    ],
)
def test_deepspeed_engines(tmp_path: Path, step: str, marked: list[int]) -> None:
    source = (
        "import deepspeed, torch\nengine, optimizer, _, _ = deepspeed.initialize(model=m, config=c)\n"
        f"def train(x):\n    loss = engine(x).mean()\n    {step}\n"
    )
    assert lines(tmp_path, "AMP805", source) == marked


SWITCHED = """
import torch
from accelerate import Accelerator

class Trainer:
    def __init__(self, args, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.accelerator = Accelerator(mixed_precision="fp16") if args.accelerate else None
        {prepare}

    def step(self, args, x):
        loss = self.model(x).mean()
        {step}
        self.optimizer.step()
"""
PREPARE = "self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)"


EITHER = "{}: self.accelerator.backward(loss)\n        else: loss.backward()"
OWN = "if args.twice: loss.backward(retain_graph=True)\n        else: loss.backward()"


@pytest.mark.parametrize(
    ("guard", "step", "is_bypassed"),
    [
        ("if args.accelerate: ", "loss.backward()", True),
        ("if args.accelerate: ", "if args.other: loss.backward()", True),
        ("if args.accelerate: ", "if args.accelerate: loss.backward()", True),
        ("if args.accelerate: ", "if not args.accelerate: loss.backward()", False),
        ("if not args.plain: ", "if args.plain: loss.backward()", False),
        ("", "if not args.accelerate: loss.backward()", True),
        ("", EITHER.format("if self.accelerator is not None"), False),
        ("if args.accelerate: ", EITHER.format("if args.accelerate"), False),
        ("", OWN, True),
    ],
)
def test_a_backward_where_there_is_no_accelerator_goes_past_none(
    tmp_path: Path, guard: str, step: str, is_bypassed: bool
) -> None:
    source = SWITCHED.format(prepare=guard + PREPARE, step=step)
    assert bool(findings(tmp_path, "AMP803", source)) is is_bypassed


@pytest.mark.parametrize(
    ("declared", "marked"),
    [("pytorch-lightning==1.7.7", []), ("pytorch-lightning>=1.7", [3, 4]), ("torch==1.13\nlightning==2.1", [3, 4])],
)
def test_the_words_of_lightning_1_are_right_where_that_is_pinned(
    tmp_path: Path, declared: str, marked: list[int]
) -> None:
    (tmp_path / "requirements.txt").write_text(declared, encoding="utf-8")
    source = "import pytorch_lightning as pl\n\npl.Trainer(precision=16)\npl.Trainer(amp_backend='apex')\n"
    assert lines(tmp_path, "AMP804", source) == marked


TWO_WAYS = """\
from accelerate import Accelerator
class Trainer:
    def __init__(self, model, optimizer, mode):
        self.model, self.optimizer, self.mode = model, optimizer, mode
        {test}
            self.accelerator = Accelerator()
            self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
    def fit(self, loader):
        return self.probe(loader) if self.mode == "probe" else self.tune(loader)
    def probe(self, loader):
        for x in loader:
            self.model(x).mean().backward()
            self.optimizer.step()
    def tune(self, loader):
        for x in loader:
            {backward}
            self.optimizer.step()
"""


@pytest.mark.parametrize(
    ("test", "backward", "marked"),
    [
        ("if mode == 'tune':", "self.accelerator.backward(self.model(x).mean())", []),
        ("if True or mode:", "self.model(x).mean().backward()", [12, 16]),
        ("with torch.device('cuda'):", "self.accelerator.backward(self.model(x).mean())", [12]),
    ],
)
def test_what_trains_without_the_accelerator_that_another_way_prepares(
    tmp_path: Path, test: str, backward: str, marked: list[int]
) -> None:
    assert lines(tmp_path, "AMP803", "import torch\n" + TWO_WAYS.format(test=test, backward=backward)) == [
        line + 1 for line in marked
    ]


@pytest.mark.parametrize(
    ("dtype", "marked"),
    [("getattr(torch, c.dtype)", [6]), ("getattr(torch, 'bfloat16')", []), ("getattr(torch, unknown())", [])],
)
def test_a_dtype_by_name(tmp_path: Path, dtype: str, marked: list[int]) -> None:
    source = (
        "import dataclasses, torch\nfrom transformers import AutoModel as A, Trainer, TrainingArguments\n"
        "@dataclasses.dataclass\nclass Config:\n    dtype: str = 'float16'\n"
    )
    source += f"c = Config(); m = A.from_pretrained('x', dtype={dtype})\n"
    source += "Trainer(model=m, args=TrainingArguments('o', fp16=True))\n"
    assert lines(tmp_path, "AMP802", source) == marked


@pytest.mark.parametrize(
    ("told", "sure"),
    [
        ("fp16=True", Confidence.MEDIUM),
        ("fp16_full_eval=True", Confidence.MEDIUM),
        ("bf16=True", None),
        ("bf16_full_eval=True", None),
    ],
)
@pytest.mark.parametrize(
    "flags", ["'-m', '--model-name', default='google/mt5-base'", "'--m', dest='model_name', default='t5-small'"]
)
def test_a_model_that_an_option_defaults_to(tmp_path: Path, told: str, sure: Confidence | None, flags: str) -> None:
    source = (
        "import argparse\nfrom transformers import AutoModel as A, Trainer, TrainingArguments\n"
        f"p = argparse.ArgumentParser()\np.add_argument({flags})\nargs = p.parse_args()\n"
        f"m = A.from_pretrained(args.model_name)\nTrainer(model=m, args=TrainingArguments('o', {told}))\n"
    )
    found = findings(tmp_path, "AMP506", source)
    assert [(f.location.line, f.confidence) for f in found if f.location] == ([(7, sure)] if sure else [])


def test_an_option_with_two_defaults_or_another_name_says_nothing(tmp_path: Path) -> None:
    source = (
        "import argparse\nfrom transformers import AutoModel as A, Trainer, TrainingArguments\n"
        "p = argparse.ArgumentParser()\np.add_argument('--model', default='t5-small')\n"
        "p.add_argument('--base', default='t5-small')\np.add_argument('--base', default='bert-base-uncased')\n"
        "args = p.parse_args()\n"
        "for name in (args.base, args.other, args.Model):\n"
        "    Trainer(model=A.from_pretrained(args.base), args=TrainingArguments('o', fp16=True))\n"
        "    Trainer(model=A.from_pretrained(args.other), args=TrainingArguments('o', fp16=True))\n"
    )
    assert lines(tmp_path, "AMP506", source) == []


@pytest.mark.parametrize(
    ("config", "told", "marked"),
    [
        ('{"fp16": {"enabled": true}}', "bf16=True", [2]),
        ('{"fp16": {"enabled": true}}', "fp16=True", []),
        ('{"fp16": {"enabled": true}}', "fp16_full_eval=True", []),
        ('{"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}', "bf16=True", []),
        ('{"bf16": {"enabled": false}}', "bf16=True", [2]),
        ('{"fp16": {"enabled": true}}', "bf16=chosen", [2]),
        ('{"fp16": {"enabled": true}}', "fp16=chosen", []),
        ('{"fp16": {"enabled": tr', "bf16=True", []),
        ('[{"fp16": {"enabled": true}}]', "bf16=True", []),
    ],
)
def test_a_deepspeed_file_that_says_otherwise(
    tmp_path: Path, config: str, told: str, marked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ds.json").write_text(config)
    source = (
        f"from transformers import TrainingArguments\na = TrainingArguments('o', {told}, deepspeed='configs/ds.json')\n"
    )
    assert lines(tmp_path, "AMP805", source) == marked


def test_a_deepspeed_file_that_is_not_there(tmp_path: Path) -> None:
    source = "from transformers import TrainingArguments\nTrainingArguments('o', bf16=True, deepspeed='no/ds.json')\n"
    assert lines(tmp_path, "AMP805", source) == []


@pytest.mark.parametrize(
    ("given", "marked"),
    [
        ("dtype='bfloat16', loss_scale='dynamic'", [2]),
        ("dtype='bfloat16', loss_scale=512.0", [2]),
        ("dtype='bfloat16', loss_scale=1.0", []),
        ("dtype='float16', loss_scale='dynamic'", []),
        ("loss_scale='dynamic'", []),
    ],
)
def test_a_wrapper_of_mmengine_that_code_makes(tmp_path: Path, given: str, marked: list[int]) -> None:
    source = f"from mmengine.optim import AmpOptimWrapper\nw = AmpOptimWrapper(optimizer=optimizer, {given})\n"
    assert lines(tmp_path, "AMP806", source) == marked


def test_pins_in_a_file_that_the_requirements_include(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r requirements/base.txt\n-r ../outside.txt\n", encoding="utf-8")
    (tmp_path / "requirements").mkdir()
    source = "import pytorch_lightning as pl\n\npl.Trainer(precision=16)\n"
    assert lines(tmp_path, "AMP804", source) == [3]
    base = tmp_path / "requirements" / "base.txt"
    base.write_text("-r ../requirements.txt\npytorch-lightning >1.7.0, <2.0.0  # strict\n", encoding="utf-8")
    assert lines(tmp_path, "AMP804", source) == []


LOADER = """
import torch
from transformers import AutoModelForCausalLM


def get_model(name):
    return AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float16)
"""
CALLER = """
from accelerate import Accelerator

from loader import get_model


def main(batches, optimizer):
    accelerator = Accelerator(mixed_precision="fp16")
    model = get_model("gpt2")
    BETWEEN
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    for batch in batches:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("between", "told"), [("pass", [7]), ("model.float()", []), ("model.requires_grad_(False)", [])]
)
def test_a_model_that_another_file_loads(between: str, told: list[int], tmp_path: Path) -> None:
    (tmp_path / "loader.py").write_text(LOADER)
    (tmp_path / "train.py").write_text(CALLER.replace("BETWEEN", between))
    found = check([tmp_path], BOOK).findings
    places = [each.location for each in found if each.rule == "AMP802"]
    assert [(place.path.rpartition("/")[2], place.line) for place in places if place] == [
        ("loader.py", n) for n in told
    ]


def test_models_bound_to_each_other_in_turn_are_followed_once(tmp_path: Path) -> None:
    source = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("x", torch_dtype=kind)
base = model.to(device)
model = base.train()
Trainer(model=model, args=TrainingArguments("out", fp16=True)).train()
"""
    (tmp_path / "train.py").write_text(source)
    result = check([tmp_path], BOOK)
    assert result.findings == () and result.coverage.notes == ()


def test_a_static_method_has_no_argument_for_its_object(tmp_path: Path) -> None:
    source = """
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM

class Runner:
    def __init__(self):
        self.accelerator = self.make("fp16", "PRECISION")
        model = AutoModelForCausalLM.from_pretrained("x", torch_dtype=torch.float16)
        self.model = self.accelerator.prepare(model)

    @staticmethod
    def make(log, precision):
        return Accelerator(mixed_precision=precision)
"""
    found = {}
    for precision in ("no", "fp16"):
        (tmp_path / "train.py").write_text(source.replace("PRECISION", precision))
        found[precision] = {each.rule for each in check([tmp_path], BOOK).findings}
    assert found == {"no": set(), "fp16": {"AMP802"}}


def test_hooks_of_lightning_run_outside_of_its_region(tmp_path: Path) -> None:
    source = """
import lightning.pytorch as pl
import torch
from torch import nn

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def HOOK(self, batch, batch_idx=None, closure=None):
        w = self.fc(batch)
        return torch.linalg.svd(w @ w.t())

pl.Trainer(precision="16-mixed").fit(Net())
"""
    found = {}
    for hook in ("on_validation_epoch_end", "optimizer_step", "on_before_batch_transfer", "validation_step"):
        (tmp_path / "train.py").write_text(source.replace("HOOK", hook))
        rules = {each.rule for each in check([tmp_path], BOOK).findings}
        found[hook] = "AMP406" in rules
    assert [hook for hook, is_told in found.items() if is_told] == ["validation_step"]
