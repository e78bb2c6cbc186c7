"""Dtypes as the walk sees them against dtypes as torch makes them, and the rules that stand on them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.model import Confidence
from amp_audit.rulebook import Example, Rulebook
from amp_audit.static import dtypes
from amp_audit.static.dtypes.values import NAMES, Opaque, Tensor, rounded
from amp_audit.static.dtypes.walk import Walk
from amp_audit.static.lowering import lower, positions
from amp_audit.static.project import Project
from amp_audit.static.selection import select, triggers

OWN_RULES = ("AMP315", "AMP401", "AMP402", "AMP501", "AMP503")


def book() -> Rulebook:
    whole = rulebook.load()
    return Rulebook({rule: whole[rule] for rule in OWN_RULES})


def find(files: Mapping[str, str], least: Confidence = Confidence.MEDIUM) -> set[tuple[str, int, str]]:
    """(file, line, rule) of what is found in a project of these files."""
    modules = [lower(f"/project/{name}", source) for name, source in files.items()]
    found = dtypes.find(Project(modules, Path("/project")), book())
    places = {name: positions(source) for name, source in files.items()}
    return {
        (name, places[name](finding.at).line, finding.rule.id)
        for finding in found
        if finding.confidence >= least
        for name in [finding.path.removeprefix("/project/")]
    }


def marked(files: Mapping[str, str]) -> set[tuple[str, int, str]]:
    """(file, line, rule) of the comments that say what must be found."""
    return {
        (name, number, rule)
        for name, source in files.items()
        for number, line in enumerate(source.splitlines(), 1)
        for rule in re.findall(r"# (AMP\d+)", line)
        if rule in OWN_RULES
    }


def check(**sources: str) -> None:
    """What is marked is found, and nothing else; ``pkg__model="..."`` is the file ``pkg/model.py``."""
    files = {f"{name.replace('__', '/')}.py": textwrap.dedent(source) for name, source in sources.items()}
    assert find(files) == marked(files)


def filled(template: str, body: str) -> str:
    """``template`` with ``body`` in the place, and at the depth, of the line ``BODY``."""
    return re.sub(
        r"^( *)BODY$",
        lambda found: textwrap.indent(textwrap.dedent(body), found[1]),
        textwrap.dedent(template),
        flags=re.M,
    )


def examples() -> list[tuple[str, int, Example]]:
    return [(rule.id, number, one) for rule in book().rules.values() for number, one in enumerate(rule.examples, 1)]


@pytest.mark.parametrize(("rule", "number", "example"), examples(), ids=lambda value: str(value)[:9])
def test_examples_of_the_rules(rule: str, number: int, example: Example) -> None:
    check(train=example.code)


# Against torch: every tensor variable of a program that really runs

PROGRAMS = {
    "layers": """
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.1))
        conv, norm, batch = nn.Conv1d(4, 4, 1), nn.LayerNorm(8), nn.BatchNorm1d(4)
        with torch.autocast("cpu", dtype=torch.float16):
            a = net(x)
            b = conv(x)
            c = norm(x)
            d = norm(a)
            e = a + x
            f = a + b
            g = batch(x)
            h = nn.Softmax(-1)(a)
            i = nn.MSELoss()(a, x)
    """,
    "operators": """
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = x @ x.transpose(1, 2)
            b = a * 2 + 1
            c = 1 / a
            d = a ** 2
            e = -a
            f = a > 0
            g = a * f
            h = 1 - a
            i = a / x.mean()
            j = ids + 1
            k = ids / 2
            l = ids.sum()
            m = a.sum(-1)
            a += 1
            n = a.pow(2).mean(-1)
            o = nn.LSTM(8, 8, batch_first=True)(x)[0]
            p = a + torch.tensor(1.5)
            q = a.sum() + x.sum()
    """,
    "casts": """
        with torch.autocast("cpu", dtype=torch.float16):
            a = torch.matmul(x, x.mT)
            b = a.float()
            c = b.to(a.dtype)
            d = a.to(x)
            e = a.type_as(x)
            f = x.half().double()
            g = torch.softmax(a, -1, dtype=torch.float32)
            h = torch.zeros_like(a)
            i = torch.zeros(3, dtype=a.dtype)
            j = a.new_zeros(3)
            k = torch.arange(4)
            l = torch.arange(4, dtype=torch.float16)
            m = a.to("cpu")
            n = a.to(torch.float64)
            o = torch.full((2,), 1.0)
    """,
    "structure": """
        with torch.autocast("cpu", dtype=torch.bfloat16):
            q, k, v = nn.Linear(8, 24)(x).chunk(3, dim=-1)
            scores = q @ k.transpose(-2, -1)
            top, index = scores.topk(2)
            peak = scores.max(dim=-1).values
            parts = [part.relu() for part in (q, k)]
            joined = torch.cat([*parts, x], dim=-1)
            stacked = torch.stack(parts)
            table = {"q": q, "x": x}
            picked = table["q"]
            other = table["x"]
            first, *rest = q, x, x
            chosen = torch.where(scores > 0, scores, 0.0)
            flat = scores.flatten(1)[:, :2]
            length = q.norm(dim=-1)
            unit = F.normalize(q, dim=-1)
            total = scores.exp().cumsum(-1)
    """,
    "nesting": """
        with torch.autocast("cpu", dtype=torch.float16):
            a = x @ x.mT
            with torch.autocast("cpu", enabled=False):
                b = a @ a.mT
                c = x @ x.mT
                d = a + c
            e = F.binary_cross_entropy_with_logits(a, a)
            f = F.cross_entropy(a.flatten(1), ids[:, 0])
            g = F.mse_loss(a, a)
            h = F.smooth_l1_loss(a, a)
        i = a * x[:, :, :4]
        j = x @ x.mT
    """,
    "functions": """
        def halve(t, factor=0.5):
            if factor > 0:
                return t * factor
            return t

        def make(kind):
            return {"a": lambda t: t @ t.mT, "b": lambda t: t}[kind]

        class Block(nn.Module):
            scale = 2.0

            def __init__(self, dim, depth=2):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(dim, dim) for _ in range(depth)])
                self.gain = nn.Parameter(torch.ones(dim))
                self.register_buffer("table", torch.ones(dim))

            @property
            def width(self):
                return self.gain * self.scale

            def inner(self, t):
                for layer in self.layers:
                    t = layer(t).relu()
                return t

            def forward(self, t):
                t = self.inner(t)
                return t, t * self.table, self.width

        with torch.autocast("cpu", dtype=torch.float16):
            a, b, c = Block(8)(x)
            d = halve(a)
            e = halve(t=x)
        f = halve(a, factor=2)
    """,
}
PREFIX = """
import torch
import torch.nn.functional as F
from torch import nn

x = torch.rand(2, 4, 8)
ids = torch.ones(2, 3, dtype=torch.int64)
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_dtypes_are_those_of_a_run(name: str) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    source = PREFIX + textwrap.dedent(PROGRAMS[name])
    real: dict[str, object] = {}
    exec(compile(source, name, "exec"), real)
    module = lower("/project/program.py", source)
    walk = Walk(Project([module], Path("/project")))
    seen = walk.run_module(module)
    known = {}
    for variable, value in real.items():
        if isinstance(value, torch.Tensor):
            claim = seen[variable]
            assert isinstance(claim, (Tensor, Opaque)), (variable, claim)
            known[variable] = claim.dtypes
    expected = {variable: _dtype(real[variable]) for variable in known}
    wrong = {v: (known[v], expected[v]) for v in known if "?" not in known[v] and known[v] != {expected[v]}}
    assert wrong == {}
    assert sum("?" not in claim for claim in known.values()) >= 0.9 * len(known), known


def _dtype(tensor: object) -> str:
    return NAMES[str(tensor.dtype).removeprefix("torch.")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_is_torchs(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    values = [
        s * v for v in (0.0, 1e-8, 2.0**-25, 2.9e-8, 3.1e-8, 1 - 1e-7, 1 - 3e-4, 1.00390625, 1.01, 1e9) for s in (1, -1)
    ]
    for value in [*values, 65504.0, 65519.9, 65520.0, 3.3e38, 3.4e38, 1e-45, float("inf")]:
        assert rounded(value, dtype) == torch.tensor(value, dtype=torch.float64).to(getattr(torch, dtype)).item(), value


# Programs of several files

TRAIN = """
    import torch
    from model import Net

    def train(loader):
        model = Net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for x, mask in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(x, mask).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""
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
    check(train=TRAIN, model=MODEL.format(comment="  # AMP501"))


def test_a_model_that_no_training_program_imports_is_left_alone() -> None:
    check(train=TRAIN.replace("from model import Net", "from elsewhere import Net"), model=MODEL.format(comment=""))


def test_a_model_loaded_by_name() -> None:
    loading = TRAIN.replace("from model import Net", "import importlib\n    Net = importlib.import_module('model').Net")
    check(train=loading, model=MODEL.format(comment="  # AMP501"))


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
    chosen = select([module.path for module in modules], str(tmp_path), triggers(book()))
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
    check(train=train, model=MODEL.format(comment=""))


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
    check(train=train, model=MODEL.format(comment="  # AMP501"))


def test_a_region_of_unknown_dtype_is_not_enough() -> None:
    files = {
        "train.py": textwrap.dedent(TRAIN.replace("dtype=torch.float16", "dtype=loader.dtype")),
        "model.py": textwrap.dedent(MODEL.format(comment="")),
    }
    assert find(files) == set()
    assert find(files, Confidence.LOW) == {("model.py", 11, "AMP501")}


# The body of a forward that runs under CUDA autocast in float16

FORWARD = """
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Net(nn.Module):
        def __init__(self, eps=1e-8):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.norm = nn.LayerNorm(8)
            self.eps = eps
            self.fp16 = True
            self.factor = 8 ** -0.5

        def forward(self, x, mask):
            h = self.fc(x) * self.factor
            BODY

    def train(loader):
        model = Net()
        for x, mask in loader:
            with torch.autocast("cuda"):
                model(x, mask)
"""


def forward(body: str) -> None:
    check(train=filled(FORWARD, body))


@pytest.mark.parametrize(
    "line",
    [
        "h.float().masked_fill(mask, -1e9)",
        "self.norm(h).masked_fill(mask, -1e9)",
        "h.softmax(-1) + 1e-8",
        "h.masked_fill(mask, float('-inf'))",
        "h.masked_fill(mask, -1e4)",
        "h.masked_fill(mask, torch.finfo(h.dtype).min)",
        "h.masked_fill(mask, -torch.finfo(h.dtype).max)",
        "x.masked_fill(mask, -1e9)",
        "mask.masked_fill(mask > 0, 10 ** 9)",
        "torch.full((100_000,), 0.0, dtype=h.dtype)",
        "h.norm(dim=-1) + self.eps",
        "(h.exp() + 1e-12).log()",
        "(h * 1e-8).sum()",
        "(h + x.float()) + 1e-12",
        "h.double() + 1e-12",
        "h.clamp(min=1e-6)",
        "h.sum(-1).clamp(min=1e-12)",
        "F.normalize(h, dim=-1)",
        "F.layer_norm(h, (8,), eps=1e-12)",
        "h.mean().item() + 1e-12",
        "len(h) / (h.shape[0] + 1e-12)",
        "F.mse_loss(h, x) + 1e-12",
        "F.binary_cross_entropy_with_logits(h, x)",
        "1 / h + 1e-12",
        "h ** 2 + 1e-12",
    ],
)
def test_lines_that_are_right(line: str) -> None:
    forward(f"y = {line}\nreturn y")


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("h.masked_fill_(mask, -1e9)", "AMP501"),
        ("torch.masked_fill(h, mask, value=-1e9)", "AMP501"),
        ("h.relu().view(-1, 4).permute(1, 0).masked_fill(mask, -(10 ** 10))", "AMP501"),
        ("torch.full_like(h, float('1e30'))", "AMP501"),
        ("h.new_full((2,), torch.finfo(torch.float32).min)", "AMP501"),
        ("torch.full((2,), -1e9, dtype=h.dtype)", "AMP501"),
        ("torch.clamp(h, -1e5, 1e5)", "AMP501"),
        ("F.pad(h, (1, 1), value=-1e9)", "AMP501"),
        ("h + 1e-8", "AMP503"),
        ("self.eps + h", "AMP503"),
        ("h / (h.abs().mean(-1) + self.eps)", "AMP503"),
        ("torch.sigmoid(h).clamp(1e-7, 1 - 1e-7)", "AMP503"),
        ("h.clip(max=0.9999)", "AMP503"),
        ("torch.clamp_min(h.amax(-1), 1e-12)", "AMP503"),
        ("(h * h).mean() + 1e-9", "AMP503"),
        ("torch.einsum('bi,bj->ij', h, h).add(1e-10)", "AMP503"),
        ("F.binary_cross_entropy(torch.sigmoid(h), x)", "AMP315"),
        ("nn.BCELoss(reduction='sum')(torch.sigmoid(h), x)", "AMP315"),
    ],
)
def test_lines_that_are_wrong(line: str, rule: str) -> None:
    forward(f"y = {line}  # {rule}\nreturn y")


@pytest.mark.parametrize(
    "body",
    [
        # the constant goes with the dtype
        """
        if h.dtype == torch.float16:
            h = h.masked_fill(mask, -1e4)
        else:
            h = h.masked_fill(mask, -1e9)
        """,
        """
        if self.fp16:
            value = -1e4
        else:
            value = -1e9
        h = h.masked_fill(mask, value)
        """,
        """
        if not self.training and self.use_fp16:
            h = h.masked_fill(mask, -1e4)
        elif not self.use_fp16:
            h = h.masked_fill(mask, -1e9)
        """,
        "h = h.masked_fill(mask, -1e4 if h.dtype in (torch.float16, torch.bfloat16) else -1e9)",
        "h = h.masked_fill(mask, {torch.float16: -1e4, torch.float32: -1e9}[h.dtype])",
        # cast on the way
        """
        if h.dtype != torch.float32:
            h = h.float()
        h = h.masked_fill(mask, -1e9)
        """,
        """
        with torch.autocast("cuda", enabled=False):
            h = self.fc(x.float()).masked_fill(mask, -1e9)
        """,
        """
        def plain(t):
            return t.masked_fill(mask, -1e9)
        h = plain(h.float())
        """,
        """
        for _ in range(3):
            h = h.float()
            h = h.masked_fill(mask, -1e9)
        """,
    ],
)
def test_bodies_that_are_right(body: str) -> None:
    forward(textwrap.dedent(body))


@pytest.mark.parametrize(
    "body",
    [
        """
        if mask is not None:
            h = h.masked_fill(mask, -1e9)  # AMP501
        """,
        """
        value = -1e9
        for _ in range(3):
            h = self.fc(h).masked_fill(mask, value)  # AMP501
        """,
        """
        def plain(t, fill=-1e9):
            return t.masked_fill(mask, fill)  # AMP501
        h = plain(h)
        """,
        """
        try:
            h = self.fc(h)
        except RuntimeError:
            raise
        h = h.masked_fill(mask, -1e9)  # AMP501
        """,
        """
        if torch.is_autocast_enabled():
            h = h.masked_fill(mask, -1e9)  # AMP501
        """,
        """
        with torch.autocast("cuda", enabled=False):
            h = h * 2
            h = h.masked_fill(mask, -1e9)  # AMP501
        """,
    ],
)
def test_bodies_that_are_wrong(body: str) -> None:
    forward(textwrap.dedent(body))


@pytest.mark.parametrize(
    ("decorator", "comment"),
    [
        ('@torch.autocast("cuda", enabled=False)', ""),
        ("@torch.amp.custom_fwd(cast_inputs=torch.float32, device_type='cuda')", ""),
        ("@torch.no_grad()", "  # AMP315"),
        ("@torch.cuda.amp.custom_fwd", "  # AMP315"),
    ],
)
def test_decorated_losses(decorator: str, comment: str) -> None:
    check(
        train=f"""
        import torch
        import torch.nn.functional as F

        {decorator}
        def loss_of(p, y):
            return F.binary_cross_entropy(p.float(), y){comment}

        def train(model, loader):
            for x, y in loader:
                with torch.autocast("cuda"):
                    loss = loss_of(model(x), y)
        """
    )


# Casts of models

CASTS = """
    import copy
    import torch
    from accelerate import Accelerator
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(8, 8)
            self.head = nn.Linear(8, 2)

    def train(loader, model, args):
        BODY
        for x in loader:
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    "body",
    [
        "model.half()  # AMP402\noptimizer = torch.optim.SGD(model.parameters())",
        "model = model.cuda().to(torch.bfloat16)  # AMP402\noptimizer = torch.optim.SGD(list(model.parameters()))",
        "optimizer = torch.optim.SGD(model.parameters())\nmodel.half()  # AMP402",
        "model.encoder.bfloat16()  # AMP402\noptimizer = torch.optim.SGD(model.parameters())",
        "model = Net()\nmodel.body.to(dtype=torch.float16)  # AMP402\n"
        "optimizer = torch.optim.SGD([{'params': model.body.parameters()}, {'params': model.head.parameters()}])",
        "if args.fp16:\n    model = model.half()  # AMP402\noptimizer = torch.optim.Adam(params=model.parameters())",
        "model = nn.parallel.DistributedDataParallel(model.half())  # AMP402\n"
        "optimizer = torch.optim.SGD(model.module.parameters())",
        "model = model.type(torch.half)  # AMP402\noptimizer = torch.optim.SGD(model.parameters())",
    ],
)
def test_trained_models_that_are_cast(body: str) -> None:
    check(train=filled(CASTS, body))


@pytest.mark.parametrize(
    "body",
    [
        "optimizer = torch.optim.SGD(model.parameters())",
        "model.half().float()\noptimizer = torch.optim.SGD(model.parameters())",
        "model = model.half()\nmodel = model.to(torch.float32)\noptimizer = torch.optim.SGD(model.parameters())",
        "teacher = copy.deepcopy(model).half()\noptimizer = torch.optim.SGD(model.parameters())",
        "model.teacher.half()\noptimizer = torch.optim.SGD(model.student.parameters())",
        "model.half()\nfor p in model.parameters():\n    p.requires_grad = False\n"
        "optimizer = torch.optim.SGD(args.extra.parameters())",
        "model.half()\noptimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()))",
        "model, optimizer = Accelerator().prepare(model.half(), torch.optim.SGD(model.parameters()))",
        "model.half()\noptimizer = args.build(model.parameters())",
        "model.to(args.device)\noptimizer = torch.optim.SGD(model.parameters())",
        "model.to(args.dtype)\noptimizer = torch.optim.SGD(model.parameters())",
        "loader = [x.half() for x in loader]\noptimizer = torch.optim.SGD(model.parameters())",
    ],
)
def test_casts_that_train_nothing_low(body: str) -> None:
    check(train=filled(CASTS, body))


def test_a_cast_after_the_training() -> None:
    check(
        train="""
        import torch

        def train(model, loader):
            optimizer = torch.optim.SGD(model.parameters())
            for x in loader:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = model(x).sum()
                loss.backward()
                optimizer.step()
            model.half()
            torch.save(model.state_dict(), "model.pt")
        """
    )


def test_the_optimizer_is_built_in_another_file() -> None:
    check(
        optim="""
        import torch

        def build(model, lr):
            return torch.optim.AdamW(model.parameters(), lr=lr)
        """,
        train="""
        import torch
        from optim import build

        def train(model, loader):
            model = model.to(torch.bfloat16)  # AMP401
            optimizer = build(model, 1e-4)
            for x in loader:
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = model(x).sum()
                loss.backward()
                optimizer.step()
        """,
    )


# Detectors of other rules


def rule_of(**static: object) -> Rulebook:
    data = {"id": "X001", "name": "x", "severity": "error", "summary": "s", "why": "w", "fix": "f", "static": static}
    return Rulebook({"X001": rulebook.parse_rule(data)})


def messages(source: str, own: Rulebook) -> list[str]:
    module = lower("/project/train.py", textwrap.dedent(source))
    return [finding.message for finding in dtypes.find(Project([module], Path("/project")), own)]


@pytest.mark.parametrize("step", ["scaler.step(optimizer)", "scaler.unscale_(optimizer)"])
def test_half_parameters_with_a_scaler_can_be_told(step: str) -> None:
    own = rule_of(
        op="cast", inputs=["float16"], when={"trained": True, "scaler": True}, message="{name} as {dtype} {x}"
    )
    source = f"""
        import torch

        def train(model, scaler):
            model.half()
            optimizer = torch.optim.SGD(model.parameters())
            {step}
    """
    assert messages(source, own) == ["model as float16 {x}"]
    assert messages(source.replace(step, "optimizer.step()"), own) == []
    assert messages(source.replace("half()", "bfloat16()"), own) == []


def test_a_number_of_arguments_and_regions() -> None:
    own = rule_of(op=["sum"], inputs=["float16"], region={"live": False}, message="{op}")
    source = """
        import torch

        def f(x):
            y = x.half()
            with torch.autocast("cuda"):
                y.sum()
            return y.sum()
    """
    assert messages(source, own) == ["sum"]
    assert messages(source.replace("return y.sum()", "return y.float().sum()"), own) == []


@pytest.mark.parametrize("option", [{"constant": 1}, {"inputs": "float16"}, {"region": ["live"]}])
def test_options_of_the_wrong_kind_name_the_rule(option: dict[str, object]) -> None:
    with pytest.raises(rulebook.RuleError, match="X001: `"):
        messages("import torch\ntorch.zeros(1).half()", rule_of(op="add", **option))


# Input of any kind

ODD = """
    import torch
    from torch import nn
    from .nowhere import *
    from train import f as g

    class A(A): pass
    class B(nn.Module, metaclass=type):
        x: int
        def __init__(self, *a, k=lambda: 1, **kw):
            self.a, *self.b = a
            self.c = self.d = kw["c"]
            del self.c
        def forward(self): return self.forward() + self()
        async def go(self):
            async for i in self:
                await i
            async with torch.autocast("cuda") as (a, b):
                yield a
    def f(n):
        global z
        z = f(n - 1) if n else [f, *f(n)][0:n:2]
        while (n := n - 1): break
        else: return f"{n!r:>{z}}"
        match n:
            case {"a": [1, *_]} if n: return
            case B(x=0) | None: raise ValueError from None
        try: 1 / 0
        except* ValueError as e: e
        return z[...] @ n ** -1e308 ** 1e308, {**z, "k": -n}, {*z}, (lambda: (yield))(), not n, n if n else 1 < n < 2
    with torch.autocast("cuda"), torch.autocast(*[], **{}): f(f)
    torch.autocast("cuda")(f)(10 ** 400 + 1.5, "a" * 2, "a" % 3)
    torch.zeros(3).half() + 10 ** 400
    for f in f: f = f, f
"""


def test_odd_code_is_survived() -> None:
    assert find({"train.py": textwrap.dedent(ODD)}) == set()


def test_sources_of_torch_are_survived() -> None:
    torch = pytest.importorskip("torch")
    folder = Path(torch.__file__).parent / "nn" / "modules"
    files = {f"{name}.py": (folder / f"{name}.py").read_text() for name in ("transformer", "rnn", "adaptive")}
    files["train.py"] = textwrap.dedent(TRAIN).replace(
        "from model import Net", "from transformer import Transformer as Net"
    )
    assert find(files) == set()
