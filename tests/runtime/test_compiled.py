"""What is seen of compiled code, and what is said of it: ``--compile eager|observe``."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import amp_audit
from amp_audit.runtime.attach import Config
from amp_audit.runtime.compiled import COMPILES
from amp_audit.runtime.session import Session
from amp_audit.trace import reader
from amp_audit.trace.schema import OpRow, Trace
from tests.runtime.drive import audited, plainly

torch.set_num_threads(1)
compiles = pytest.mark.skipif(not COMPILES, reason="this torch compiles nothing under a dispatch mode")


class Step:
    """A training step of a compiled model; ``graphs`` counts what the compiler was given."""

    def __init__(self, backend: str | Callable[..., Any], *, bare: bool = False) -> None:
        torch._dynamo.reset()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.run = torch.compile(self.call if bare else self.net, backend=backend, fullgraph=True)

    def call(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * 2

    def __call__(self) -> float:
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.run(torch.ones(3, 8)).float().square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def observed(step: Callable[[], object], folder: Path, *, steps: int = 3, deep: str = "none") -> Trace:
    config = Config(str(folder / "trace"), sample="all", deep=deep, go_on=True, main=True, compile="observe")
    session = Session(config)
    session.begin()
    for _ in range(steps):
        step()
    session.close("finished")
    (trace,) = reader.read(folder / "trace")
    return trace


def notes(trace: Trace) -> list[str]:
    return [note for step in trace.steps for note in step.notes]


def inside(rows: list[OpRow]) -> Counter[tuple[str, str]]:
    """Operators of the model, by phase; matrix products without the word that they write into a buffer."""
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row.output == "bfloat16" and row.phase in ("forward", "backward"):
            found[row.phase, row.op.removesuffix(".out")] += row.calls
    return found


OPERATORS = Counter(
    {
        ("forward", "aten.addmm"): 2,
        ("forward", "aten.gelu"): 1,
        ("forward", "aten.native_layer_norm"): 1,
        ("backward", "aten.mm"): 3,  # the first layer's input needs no gradient
        ("backward", "aten.sum.dim_IntList"): 2,
        ("backward", "aten.native_layer_norm_backward"): 1,
        ("backward", "aten.gelu_backward"): 1,
    }
)


@compiles
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_backends_that_run_operators_show_them_all(backend: str, tmp_path: Path) -> None:
    trace = observed(Step(backend), tmp_path)
    assert [inside(step.ops) for step in trace.steps] == [OPERATORS] * 3
    assert notes(trace) == [
        f"torch.compile ({backend}): every operator of the compiled code was seen, as the backend ran it"
    ]
    assert trace.end is not None and not trace.end.unobserved


@compiles
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor writes C++")
@pytest.mark.parametrize("bare", [False, True])
def test_of_inductor_the_matrix_products_are_seen_and_the_rest_is_said_to_be_missing(
    bare: bool, tmp_path: Path
) -> None:
    plain = Step("inductor", bare=bare)
    expected = [plain() for _ in range(3)]
    watched: list[float] = []
    step = Step("inductor", bare=bare)
    trace = observed(lambda: watched.append(step()), tmp_path, deep="all")
    assert watched == expected
    products = Counter({key: count for key, count in OPERATORS.items() if key[1] in ("aten.addmm", "aten.mm")})
    assert [inside(step.ops) for step in trace.steps] == [products] * 3
    assert {row.place.path for step in trace.steps for row in step.ops if row.op == "aten.addmm.out"} == {__file__}
    (note,) = notes(trace)
    assert note.startswith("torch.compile (inductor): of the compiled code were seen the calls of library kernels")
    assert trace.end is not None and trace.end.unobserved["operators inside compiled code (inductor)"] == 1
    # What follows values through operators has missed some.
    assert not [n for step in trace.steps for n in step.numbers if n.name in ("gradient", "nonfinite")]
    assert [n for step in trace.steps for n in step.numbers if n.name == "exponents" and n.phase == "gradient"]


@compiles
def test_a_compiler_of_the_program_s_own_is_named(tmp_path: Path) -> None:
    graphs = []

    def mine(graph: torch.fx.GraphModule, example: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    trace = observed(Step(mine), tmp_path)
    assert len(graphs) == 1
    (note,) = notes(trace)
    assert note.startswith("torch.compile (mine): of the compiled code were seen the operators that it calls through")


def test_a_step_in_compiled_code_leaves_the_next_recording_alone(tmp_path: Path) -> None:
    step, compile_before = Step("aot_eager"), torch.compile
    observed(step, tmp_path / "one")
    assert torch._dynamo.eval_frame._stance.stance == "default"
    assert torch.compile is compile_before
    trace = observed(lambda: None, tmp_path / "two")
    assert not trace.steps or notes(trace) == []


LATE = """
import torch
from torch import nn
torch.manual_seed(0)
with torch.autocast("cpu", torch.bfloat16):  # recording begins here, with no compiler loaded
    print((torch.ones(2, 2) @ torch.ones(2, 2)).dtype, "torch._dynamo.eval_frame" in __import__("sys").modules)
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fast = torch.compile(model, backend="aot_eager")
for step in range(3):
    fast(torch.ones(2, 8)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(model.weight.sum().item())
"""


@pytest.mark.parametrize("mode", ["eager", pytest.param("observe", marks=compiles)])
def test_a_compiler_that_is_loaded_after_recording_began_is_noticed(mode: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(LATE))
    plain = plainly(["train.py"], tmp_path)
    run = audited(["train.py"], tmp_path, compile=mode)
    assert (run.stdout, run.stderr, run.code) == (plain.stdout, plain.stderr, 0)
    assert run.stdout.startswith(b"torch.bfloat16 False")
    assert all(step.recorded for step in run.trace.steps) and len(run.trace.steps) == 3
    (note,) = notes(run.trace)
    assert note.startswith(
        "torch.compile: recorded steps ran" if mode == "eager" else "torch.compile (aot_eager): every"
    )


@compiles
def test_a_stance_that_the_program_took_itself_is_left_and_told(tmp_path: Path) -> None:
    step = Step("aot_eager")
    session = Session(Config(str(tmp_path / "trace"), sample="all", deep="none", go_on=True, main=True))
    with torch.compiler.set_stance("eager_on_recompile"):
        session.begin()
        step()
        assert torch._dynamo.eval_frame._stance.stance == "eager_on_recompile"
        session.close("finished")
    (trace,) = reader.read(tmp_path / "trace")
    (note,) = notes(trace)
    assert note.startswith("torch.compile (aot_eager)")


@pytest.mark.skipif(COMPILES, reason="this torch can observe compiled code")
def test_a_torch_that_compiles_nothing_under_a_mode_runs_it_as_written(tmp_path: Path) -> None:
    trace = observed(Step("aot_eager"), tmp_path)
    assert [inside(step.ops) for step in trace.steps] == [OPERATORS] * 3
    (note,) = notes(trace)
    assert note.startswith("torch.compile: recorded steps ran the functions as written")


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="compile must be eager or observe"), amp_audit.trace(compile="fast"):
        pass
