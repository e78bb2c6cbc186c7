"""Call detectors beyond the rules' own examples: bindings, files, gates; and that rule files use words that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.binding.signatures import KEYWORDS, SIGNATURES
from amp_audit.static.check import check
from amp_audit.static.spots.facts import FACT_NAMES
from amp_audit.static.spots.patterns import _function

BOOK = rulebook.load()
KINDS = frozenset("bool int float str none dict dtype device module callable parameters tensor flag".split())  # noqa: SIM905


def found(folder: Path, rule: str, **files: str) -> list[tuple[str, int]]:
    """The places of one rule's findings in a project of files, without the suffix."""
    for name, source in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    findings = check([folder], BOOK).findings
    return [(Path(f.location.path).stem, f.location.line) for f in findings if f.rule == rule and f.location]


def lines(folder: Path, rule: str, source: str) -> list[int]:
    return [line for _, line in found(folder, rule, train=source)]


# Rule files


def test_rule_files_use_facts_parameters_and_kinds_that_exist() -> None:
    for rule, detector in BOOK.detectors("static", "call"):
        assert {key for key, _ in detector.when} <= FACT_NAMES, rule.id
        for param, wanted in detector.options.get("arguments", {}).items():
            assert wanted.keys() <= {"kind", "given", "keyword", "values", "at_least", "at_most"}, rule.id
            assert set(wanted.get("kind", ())) <= KINDS, rule.id
            known = {
                name for target in detector.targets for name in (*SIGNATURES.get(target, ()), *KEYWORDS.get(target, ()))
            }
            assert param in known or wanted.keys() == {"given"}, (rule.id, param)


def test_checks_exist_and_are_few() -> None:
    checks = BOOK.detectors("static", "check")
    assert all(callable(_function(detector)) and detector.options["reason"] for _, detector in checks)
    assert len({rule.id for rule, _ in checks}) <= 0.16 * len(BOOK.rules)


def test_signatures_are_torchs_own() -> None:
    torch = pytest.importorskip("torch")
    import inspect

    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    for name, owner in {
        "torch.amp.autocast": torch.amp.autocast,
        "torch.amp.GradScaler": torch.amp.GradScaler,
        "torch.cuda.amp.autocast": torch.cuda.amp.autocast,
        "torch.cpu.amp.autocast": torch.cpu.amp.autocast,
        "torch.cuda.amp.GradScaler": torch.cuda.amp.GradScaler,
        "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler": ShardedGradScaler,
    }.items():
        parameters = inspect.signature(owner.__init__).parameters
        assert tuple(parameters)[1 : 1 + len(SIGNATURES[name])] == SIGNATURES[name], name


# AMP101: gates


@pytest.mark.parametrize(
    "source",
    [
        "if hasattr(torch, 'amp'):\n    s = torch.amp.GradScaler()\nelse:\n    s = torch.cuda.amp.GradScaler()\n",
        "s = torch.amp.GradScaler() if torch.__version__ >= '2.3' else torch.cuda.amp.GradScaler()\n",
        "def f():\n    if hasattr(torch.amp, 'GradScaler'):\n        return torch.amp.GradScaler()\n"
        "    return torch.cuda.amp.GradScaler()\n",
        "try:\n    s = torch.amp.GradScaler()\nexcept AttributeError:\n    s = torch.cuda.amp.GradScaler()\n",
        "if TORCH_VERSION >= (2, 3):\n    s = torch.amp.GradScaler()\nelse:\n    s = torch.cuda.amp.GradScaler()\n",
        "OLD = tuple(torch.__version__.split('.')) < ('2', '3')\nif OLD:\n    s = torch.cuda.amp.GradScaler()\n",
        "try:\n    from torch.amp import GradScaler\nexcept ImportError:\n    from torch.cuda.amp import GradScaler\n"
        "s = GradScaler()\n",
        "def f(x: torch.cuda.amp.GradScaler):\n    return isinstance(x, torch.cuda.amp.GradScaler)\n",
        "import torch.cuda.amp as amp\namp = None\namp.autocast()\n",
        "def autocast(): pass\nwith autocast(): pass\n",
        "def f(torch):\n    with torch.cuda.amp.autocast(): pass\n",
    ],
)
def test_version_fallbacks_and_shadows_are_left_alone(tmp_path: Path, source: str) -> None:
    assert lines(tmp_path, "AMP101", "import torch\n" + source) == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("if torch.cuda.is_available():\n    s = torch.cuda.amp.GradScaler()\n", 3),
        ("try:\n    s = torch.cuda.amp.GradScaler()\nexcept RuntimeError:\n    s = None\n", 3),
        ("def f():\n    from torch.cuda import amp as A\n    with A.autocast():\n        pass\n", 4),
        ("g = lambda x: torch.cuda.amp.autocast(x)\n", 2),
        ("use_new_model = True\nif use_new_model:\n    s = torch.cuda.amp.GradScaler()\n", 4),
        ("if parse(torch.__version__) >= parse('1.6.0'):\n    s = torch.cuda.amp.GradScaler()\n", 3),
        ("if TORCH_VERSION >= (1, 6):\n    s = torch.cuda.amp.GradScaler()\n", 3),
        ("class A:\n    cast = torch.cuda.amp.autocast\n    @torch.cuda.amp.autocast()\n    def f(self): pass\n", 4),
    ],
)
def test_what_is_no_gate_does_not_silence(tmp_path: Path, source: str, line: int) -> None:
    assert lines(tmp_path, "AMP101", "import torch\n" + source) == [line]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("from torch.cuda.amp import GradScaler as Scaler\nmake = {'amp': Scaler}\n", 2),
        ("from torch.cuda.amp.grad_scaler import GradScaler\n", 2),
        ("try:\n    from torch.cuda.amp import autocast\nexcept ImportError:\n    class autocast: pass\n", 3),
        ("try:\n    cast = torch.cuda.amp.autocast\nexcept AttributeError:\n    class cast: pass\n", 3),
        ("def f():\n    from torch.cpu.amp import autocast\n    return autocast\n", 3),
    ],
)
def test_what_has_moved_is_seen_where_it_is_imported(tmp_path: Path, source: str, line: int) -> None:
    assert lines(tmp_path, "AMP101", "import torch\n" + source) == [line]


@pytest.mark.parametrize(
    "source",
    [
        "from torch.amp import GradScaler, autocast\n",
        "from torch.cuda import amp\n",
        "from torch.cuda.amp.common import amp_definitely_not_available\n",
        "from compat import GradScaler\n",
        "if torch.__version__ < '2.3':\n    from torch.cuda.amp import GradScaler\n",
        "if TYPE_CHECKING:\n    from torch.cuda.amp import GradScaler\n",
        "try:\n    cast = torch.amp.autocast\nexcept AttributeError:\n    cast = torch.cuda.amp.autocast\n",
    ],
)
def test_other_imports_are_left_alone(tmp_path: Path, source: str) -> None:
    assert lines(tmp_path, "AMP101", "import torch\n" + source) == []


def test_names_come_from_other_files_of_the_project(tmp_path: Path) -> None:
    files = {
        "compat__init": "",
        "compat__amp": "from torch.cuda.amp import *\nimport torch.cuda.amp as old\n",
        "train": "from compat.amp import autocast, old\nwith autocast():\n    pass\ns = old.GradScaler()\n",
    }
    assert found(tmp_path, "AMP101", **files) == [("train", 2), ("train", 4)]


# AMP103 and AMP104: kinds of arguments


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("True", True),
        ("2.0 ** 10", True),
        ("x > 1", True),
        ("not x", True),
        ("bool(x)", True),
        ("args.use_amp", True),
        ("args['use_amp']", True),
        ("args.get('mixed_precision', False)", True),
        ("getattr(args, 'fp16', False)", True),
        ("args.use_amp and device.type == 'cuda'", True),
        ("x > 1 and torch.cuda.is_available()", True),
        ("args.device and args.device.type", False),
        ("args['device']", False),
        ("args.get('amp_device', 'cuda')", False),
        ("getattr(args, 'amp_device_type', 'cuda')", False),
        ("args.amp_device", False),
        ("'cuda'", False),
        ("device", False),
        ("torch.device('cuda')", False),
        ("*args", False),
        ("**{'enabled': True}", False),
        ("enabled=True", False),
        ("unknown(x)", False),
        ("'cuda' if x else 'cpu'", False),
    ],
)
def test_the_first_argument_of_a_new_scaler(tmp_path: Path, argument: str, wrong: bool) -> None:
    source = f"import torch\ndef f(x, args, device):\n    return torch.amp.GradScaler({argument})\n"
    assert lines(tmp_path, "AMP103", source) == ([3] if wrong else [])


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("first: float = 2.0 ** 12", True),
        ("first: float", True),
        ("first: bool = settings()", False),
        ("first = True", True),
        ("first: str = 'cuda'", False),
        ("first: str", False),
        ("first: Optional[str] = None", False),
        ("second: float = 1.0", False),
    ],
)
@pytest.mark.parametrize(
    "use", ["def f(config: Config):\n    return {}", "config = Config(1)\ndef f():\n    return {}"]
)
def test_what_a_class_says_of_its_fields(tmp_path: Path, field: str, wrong: bool, use: str) -> None:
    source = f"import torch\nfrom typing import Optional\nclass Config:\n    {field}\n"
    source += use.format("torch.amp.GradScaler(config.first)") + "\n"
    expected = [source.count("\n")] if wrong else []
    assert lines(tmp_path, "AMP103", source) == expected


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        ("torch.autocast(images.device)", True),
        ("torch.autocast(next(model.parameters()).device)", True),
        ("torch.autocast(images.device.type)", False),
        ("torch.autocast(args.device)", False),
        ("torch.autocast(self.device)", False),
        ("torch.autocast(given)", True),
        ("torch.autocast(*args)", False),
        ("torch.autocast('cuda', enabled=None)", True),
        ("torch.autocast('cuda', enabled=flag)", False),
        ("torch.autocast('cuda', enabled=x and 1 > 0)", False),
        ("torch.autocast('cuda', torch.float32)", False),
        ("torch.autocast('mps', torch.float32)", True),
        ("torch.autocast(device_type=kind, dtype=torch.float32)", False),
        ("torch.cuda.amp.autocast('cuda')", True),
        ("torch.cuda.amp.autocast(x is None)", False),
    ],
)
def test_arguments_of_autocast(tmp_path: Path, call: str, wrong: bool) -> None:
    head = "import torch\ndef f(self, args, images, model, flag, x, kind, given: torch.device):\n"
    assert lines(tmp_path, "AMP104", f"{head}    with {call}:\n        pass\n") == ([3] if wrong else [])


# AMP105: kept, but never entered


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("def f(x):\n    ctx = torch.autocast('cuda')\n    return x\n", 3),
        ("def f(x):\n    ctx = torch.autocast('cuda')\n    with ctx:\n        return x\n", None),
        ("def f(x):\n    ctx = torch.autocast('cuda')\n    return lambda: ctx\n", None),
        ("def f(x):\n    ctx = torch.autocast('cuda')\n    return locals()\n", None),
        ("ctx = torch.autocast('cuda')\n", 2),
        ("ctx = torch.autocast('cuda')\n__all__ = ['ctx']\n", None),
        ("class A:\n    def __init__(self):\n        self.c = torch.autocast('cuda')\n", 4),
        (
            "class A:\n    def __init__(self):\n        self.c = torch.autocast('cuda')\ndef f(a):\n    return a.c\n",
            None,
        ),
        ("class A:\n    def __init__(self):\n        self.c = torch.autocast('cuda')\nx = getattr(A(), 'c')\n", None),
    ],
)
def test_regions_that_are_kept(tmp_path: Path, source: str, line: int | None) -> None:
    assert lines(tmp_path, "AMP105", "import torch\n" + source) == ([line] if line else [])


def test_a_region_that_a_file_not_asked_for_enters(tmp_path: Path) -> None:
    (tmp_path / "contexts.py").write_text("import torch\nctx = torch.autocast('cuda')\n")
    (tmp_path / "setup.py").write_text("")
    (tmp_path / "train.py").write_text("from contexts import ctx\nwith ctx:\n    pass\n")
    assert check([tmp_path / "contexts.py"], BOOK).findings == ()


def test_a_region_of_another_file_is_entered_there(tmp_path: Path) -> None:
    files = {
        "contexts": "import torch\nctx = torch.autocast('cuda')\nidle = torch.autocast('cuda')\n",
        "train": "from contexts import ctx\nwith ctx:\n    pass\n",
    }
    assert found(tmp_path, "AMP105", **files) == [("contexts", 3)]


# AMP107: what a scaler is


@pytest.mark.parametrize(
    ("source", "lined"),
    [
        ("def f(scaler: torch.amp.GradScaler, loss):\n    scaler.scale(loss)\n", [3]),
        ("def f(scaler, loss):\n    scaler.scale(loss)\n", []),
        ("def make():\n    return torch.amp.GradScaler()\ns = make()\ns(1)\n", [5]),
        ("def f(x):\n    s = torch.amp.GradScaler() if x else None\n    if s:\n        s.step()\n", [5]),
        ("s = torch.amp.GradScaler()\ns = Other()\ns(1)\n", []),
        ("def f(x, o):\n    s = torch.amp.GradScaler()\n    y = s.step(*o)\n    s.update(1.0)\n    s.update(2)\n", [6]),
        ("s = torch.amp.GradScaler(enabled=False)\ns.scale(1)\n", []),
        ("def f(s):\n    s = torch.amp.GradScaler()\n    s()\n", []),
    ],
)
def test_scalers_are_known_by_their_binding(tmp_path: Path, source: str, lined: list[int]) -> None:
    assert lines(tmp_path, "AMP107", "import torch\n" + source) == lined


def test_a_scaler_of_a_base_class_in_another_file(tmp_path: Path) -> None:
    files = {
        "base": "import torch\nclass Base:\n    def setup(self):\n        self.scaler = torch.amp.GradScaler()\n",
        "train": "from base import Base\nclass T(Base):\n    def f(self, loss):\n        self.scaler.backward(loss)\n",
    }
    assert found(tmp_path, "AMP107", **files) == [("train", 4)]
