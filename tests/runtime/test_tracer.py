"""Operators: how many, where, in which dtype and phase. The truth comes from torch's own tools or from the source."""

from __future__ import annotations

import inspect
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from amp_audit.runtime.plans import Plan
from amp_audit.runtime.tracer import OFF
from amp_audit.trace.schema import OpRow
from tests.runtime import programs
from tests.runtime.programs import record, recorded
from tests.runtime.recording import recorded as session_recorded

torch.set_num_threads(1)

Program = Callable[[], Callable[[], None]]

PROGRAMS: dict[str, Program] = {
    "gpt": programs.gpt,
    "gpt float32": lambda: programs.gpt(dtype=None),
    "cnn": programs.cnn,
    "views": programs.views,
    "recurrent": programs.recurrent,
    "deep": programs.deep,
}


def line_of(function: Callable[..., Any], text: str) -> int:
    """The line of the file on which ``text`` stands, in the source of ``function``."""
    lines, first = inspect.getsourcelines(function)
    (found,) = [first + number for number, line in enumerate(lines) if text in line]
    return found


class Reference(TorchDispatchMode):
    """Counts operators the plain way; in a backward, by the line that anomaly mode kept with the node."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Any] = Counter()
        self.lines: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        plan = Plan(func)
        if plan.silent:
            return out
        flat = [item for value in args for item in (value[:1] if isinstance(value, (list, tuple)) else [value])]
        inputs = tuple(str(item.dtype)[6:] for item in flat if isinstance(item, torch.Tensor))
        result = args[0] if out is None else out
        if isinstance(result, (list, tuple)):
            result = next(item for item in result if item is not None)
        self.counts[plan.name, inputs, str(result.dtype)[6:], result.numel()] += 1
        node = torch._C._current_autograd_node()
        if node is not None and "AccumulateGrad" not in node.name() and "traceback_" in node.metadata:
            text = "".join(node.metadata["traceback_"])
            mine = [part for part in text.split('  File "') if part.startswith(programs.HERE)]
            if mine:
                self.lines[plan.name, int(mine[-1].split("line ")[1].split(",")[0])] += 1
        return out


def counted(rows: list[OpRow]) -> Counter[Any]:
    return _sum(rows, lambda row: (row.op, row.inputs, row.output))


def _sum(rows: list[OpRow], key: Callable[[OpRow], Any]) -> Counter[Any]:
    total: Counter[Any] = Counter()
    for row in rows:
        total[key(row)] += row.calls
    return total


@pytest.mark.parametrize("name", PROGRAMS)
def test_counts_agree_with_a_plain_counting_mode(name: str) -> None:
    step = PROGRAMS[name]()
    with Reference() as reference:
        step()
    result = record(PROGRAMS[name]())
    again = record(step)  # optimizer state exists by now

    def all_of(recorded_: programs.Recorded) -> Counter[Any]:
        found = counted(recorded_.step.ops)
        for cast in recorded_.step.casts:
            found["cast", cast.source, cast.target] += cast.calls
        return found

    expected: Counter[Any] = Counter()
    for (op, inputs, output, _), calls in reference.counts.items():
        source = inputs[-1] if inputs else ""
        cast = op in ("aten._to_copy", "aten.copy_") and source != output and "float" in source and "float" in output
        expected[("cast", source, output) if cast else (op, inputs, output)] += calls
    assert all_of(result) == expected
    assert sum(all_of(again).values()) > 0


def test_elements_and_bytes_are_those_of_the_results() -> None:
    def program() -> None:
        a, b = torch.ones(3, 4), torch.ones(4, 5, dtype=torch.float32)
        (a @ b).half()
        torch.native_layer_norm(a.bfloat16(), (4,), None, None, 1e-5)
        torch._foreach_add_([a, b], 1.0)

    ops = {row.op: row for row in record(program).step.ops}
    assert (ops["aten.mm"].elements, ops["aten.mm"].bytes, ops["aten.mm"].flops) == (15, 60, 2 * 3 * 4 * 5)
    assert ops["aten.mm"].read == 4 * (3 * 4 + 4 * 5)
    norm = ops["aten.native_layer_norm"]
    # In bfloat16 the mean and the reciprocal deviation of each row come back in bfloat16, too.
    assert (norm.elements, norm.bytes) == (12 + 3 + 3, 2 * 18)
    assert norm.read == 2 * 12
    assert (ops["aten._foreach_add_.Scalar"].elements, ops["aten._foreach_add_.Scalar"].bytes) == (32, 128)
    assert ops["aten._foreach_add_.Scalar"].read == 128
    assert ops["aten._foreach_add_.Scalar"].output == "float32"


def test_a_number_before_the_tensor_is_no_operand_with_a_dtype() -> None:
    """``1 // x`` comes by as an operator whose first argument is a number (``Tensor.__rfloordiv__``)."""

    def step() -> None:
        x = torch.ones(3)
        for _ in (1 // x, 2**x, 2 % x, 2 - x, 2 / x, torch.xlogy(2, x)):
            pass

    rows = record(step).step.ops
    (row,) = [row for row in rows if row.op == "aten.floor_divide"]
    assert (row.inputs, row.output, row.calls, row.elements, row.bytes) == (("float32",), "float32", 1, 3, 12)
    assert counted(rows).total() == counted_plainly(step)


def counted_plainly(step: Callable[[], None]) -> int:
    with Reference() as reference:
        step()
    return reference.counts.total()


def test_a_fused_layer_is_as_much_work_as_its_unrolled_twin() -> None:
    layer, cell = nn.LSTM(3, 5, batch_first=True), nn.LSTMCell(3, 5)
    with FlopCounterMode(display=False) as counter:
        state = None
        for x in torch.ones(4, 2, 3):
            state = cell(x, state)
        state[0].sum().backward()
    step = record(lambda: layer(torch.ones(2, 4, 3))[0].sum().backward()).step
    forward, backward = (
        sum(row.flops or 0 for row in step.ops if row.phase == phase) for phase in ("forward", "backward")
    )
    assert forward == 2 * 4 * 2 * (20 * 3 + 20 * 5)
    by_hand = counter.get_flop_counts()["Global"]
    assert forward + backward == 3 * forward
    # The unrolled twin needs no gradient of its inputs, nor of its first state.
    assert sum(by_hand.values()) == 3 * forward - 2 * 4 * 2 * 20 * 3 - 2 * 2 * 20 * 5


def test_a_formula_of_torch_s_own_is_used_where_we_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    formula = lambda x, weight, bias, pad=0, *, out_val: x.numel() * out_val.numel()  # noqa: E731
    monkeypatch.setitem(torch.utils.flop_counter.flop_registry, torch.ops.aten.conv_tbc, formula)
    plan = Plan(torch.ops.aten.conv_tbc.default)
    x, weight, bias, out = (torch.empty(size, device="meta") for size in ((5, 2, 3), (1, 3, 4), (4,), (5, 2, 4)))
    assert plan.flops is not None and plan.flops((x, weight, bias), out) == 30 * 40
    assert Plan(torch.ops.aten.linalg_solve_ex.default).flops is None


@pytest.mark.parametrize("name", ["gpt", "gpt float32", "cnn"])
def test_work_agrees_with_the_flop_counter_of_torch(name: str) -> None:
    step = PROGRAMS[name]()
    with FlopCounterMode(display=False) as counter:
        step()
    ours = Counter()
    for row in record(step).step.ops:
        if row.flops is not None:
            ours[row.op.removeprefix("aten.")] += row.flops
    theirs = {str(op).removeprefix("aten."): n for op, n in counter.get_flop_counts()["Global"].items()}
    attention = {op: n for op, n in ours.items() if "for_cpu" in op}  # which torch's counter does not know
    assert {op: n for op, n in ours.items() if op not in attention} == theirs
    # batch 3, heads 2, length 4, head width 4, two layers: scores and mix; backward scores again and four products
    product = 2 * 3 * 2 * 4 * 4 * 4 * 2
    assert sorted(attention.values()) == ([] if name == "cnn" else [2 * product, 5 * product])


@pytest.mark.parametrize("name", PROGRAMS)
def test_backward_stands_at_the_line_of_its_forward(name: str) -> None:
    step = PROGRAMS[name]()
    step()
    with torch.autograd.set_detect_anomaly(True, check_nan=False), Reference() as reference:
        step()
    result = record(step)
    rows = [row for row in result.step.ops if row.phase == "backward" and row.place.line is not None]
    ours = _sum(rows, lambda row: (row.op, row.place.line))
    for cast in result.step.casts:
        if cast.phase == "backward" and cast.place.line is not None:
            ours["aten._to_copy", cast.place.line] += cast.calls
    again = line_of(programs.deep, "checkpoint(")  # a forward repeated in the backward of the checkpoint itself
    assert ours == Counter({key: calls for key, calls in reference.lines.items() if key[1] != again})
    assert sum(ours.values()) > 10
    assert not result.unobserved


def test_a_grouped_convolution_is_less_work() -> None:
    conv = nn.Conv2d(4, 6, 3, groups=2)

    def program() -> None:
        conv(torch.ones(2, 4, 5, 5, requires_grad=True)).sum().backward()

    work = {row.op: row.flops for row in record(program).step.ops if row.flops}
    forward = 2 * (2 * 6 * 3 * 3) * (2 * 3 * 3)  # each output element meets a filter of 2 channels of its group
    assert work == {"aten.convolution": forward, "aten.convolution_backward": 2 * forward}


def test_inference_is_as_much_work_as_the_forward_of_training() -> None:
    """In inference mode operators are not taken apart into those that have formulas of torch's."""
    grouped, wider = nn.Conv2d(4, 6, 3, groups=2), nn.ConvTranspose2d(6, 4, 2, 2)
    project, narrow = nn.Linear(4, 12), nn.Conv1d(4, 4, 3)

    def forward() -> torch.Tensor:
        x = wider(grouped(torch.ones(2, 4, 5, 5))).flatten(2).transpose(1, 2)
        q, k, v = (one[:, None] for one in project(x).chunk(3, -1))
        x = narrow(F.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2))
        return torch.matmul(x, x.transpose(1, 2))

    def total() -> int:
        return sum(row.flops or 0 for row in record(forward).step.ops if row.phase in ("forward", "other"))

    expected = total()
    with torch.inference_mode():
        assert total() == expected > 10_000


def test_places_name_module_line_and_columns() -> None:
    result = record(programs.gpt())
    source = line_of(programs.Block.forward, "F.gelu")
    gelu = [row for row in result.step.ops if row.op == "aten.gelu"]
    assert [row.place.module for row in gelu] == ["blocks.0", "blocks.1"]
    for row in gelu:
        assert (row.place.path, row.place.line, row.phase) == (programs.HERE, source, "forward")
        text = inspect.getsource(programs).splitlines()[source - 1]
        if row.place.column is not None:
            assert text[row.place.column - 1 : row.place.end_column - 1] == "F.gelu(self.widen(self.norm2(x)))"
            assert row.place.function == "Block.forward"
    widen = [row for row in result.step.ops if row.op == "aten.addmm" and row.place.module == "blocks.1.widen"]
    assert [(row.inputs, row.output, row.place.line, row.autocast) for row in widen] == [
        (("bfloat16",) * 3, "bfloat16", source, None)
    ]
    back = [row for row in result.step.ops if row.op == "aten.mm" and row.place.module == "blocks.1.widen"]
    assert {row.phase for row in back} == {"backward"} and sum(row.calls for row in back) == 2


def test_optimizer_phase_is_known_without_a_hook() -> None:
    result = record(programs.cnn())
    optimizing = {row.op for row in result.step.ops if row.phase == "optimizer"}
    assert optimizing and optimizing <= {row.op for row in result.step.ops if "step()" in _source(row)}
    assert not {row.phase for row in result.step.ops if row.op == "aten.convolution"} - {"forward"}


def _source(row: OpRow) -> str:
    lines = inspect.getsource(programs).splitlines()
    return lines[row.place.line - 1] if row.place.line else ""


@pytest.mark.parametrize("kind", ["reentrant", "plain"])
def test_recomputed_operators_are_a_phase_of_their_own(kind: str) -> None:
    plain, again = record(programs.gpt()).step.ops, record(programs.gpt(again=kind)).step.ops
    attention = "aten._scaled_dot_product_flash_attention_for_cpu"

    def phases(rows: list[OpRow], op: str) -> Counter[Any]:
        return _sum([row for row in rows if row.op == op], lambda row: (row.phase, row.place.module, row.place.line))

    line = line_of(programs.Block.forward, "scaled_dot_product_attention")
    forward = Counter({("forward", f"blocks.{n}", line): 1 for n in range(2)})
    recompute = Counter({("recompute", f"blocks.{n}", line): 1 for n in range(2)})
    assert phases(plain, attention) == forward
    assert phases(again, attention) == forward + recompute
    dtypes = {row.inputs[0] for row in again if row.phase == "recompute" and row.op == "aten.addmm"}
    assert dtypes == {"bfloat16"}
    backward = Counter({("backward", f"blocks.{n}", line): 1 for n in range(2)})
    assert phases(again, f"{attention}_backward") == phases(plain, f"{attention}_backward") == backward


def test_a_function_of_the_program_has_its_own_lines() -> None:
    weight = torch.ones(3, requires_grad=True)

    def program() -> None:
        programs.Double.apply(weight * 1.5).sum().backward()

    rows = record(program).step.ops
    own = line_of(programs.Double.backward, "return grad")
    inner = [row for row in rows if row.place.line == own and row.place.path == programs.HERE]
    assert _sum(inner, lambda row: (row.op, row.phase)) == Counter(
        {("aten.mul.Tensor", "backward"): 2, ("aten.add.Tensor", "backward"): 1}
    )
    before = [row for row in rows if row.phase == "backward" and row.place.line == line_of(program, "weight * 1.5")]
    assert _sum(before, lambda row: row.op)["aten.mul.Tensor"] == 1


def test_double_backward_inherits_the_line_of_the_first() -> None:
    weight = torch.ones(3, requires_grad=True)

    def program() -> None:
        value = weight.exp().sum()
        (grad,) = torch.autograd.grad(value, weight, create_graph=True)
        grad.pow(2).sum().backward()

    rows = [row for row in record(program).step.ops if row.phase == "backward"]
    assert {row.place.line for row in rows} <= {
        line_of(program, "weight.exp()"),
        line_of(program, "grad.pow(2)"),
        None,
    }
    # d/dw exp(w), and twice again for d/dw of that product
    assert (
        sum(row.calls for row in rows if row.op == "aten.mul.Tensor" and row.place.line == line_of(program, "exp()"))
        == 3
    )


def test_gradients_that_are_added_up_stand_at_their_module() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))

    def program() -> None:
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()

    added = [row for row in record(program).step.ops if row.op in ("aten.add_.Tensor", "aten.add.Tensor")]
    added = [row for row in added if row.place.line is None]
    assert _sum(added, lambda row: row.place.module) == Counter({"0": 2, "1": 2})


def test_graphs_older_than_a_step_are_still_known() -> None:
    weight = torch.ones(3, requires_grad=True)
    result_host = programs.Host()
    recording = programs.Recording(result_host, result_host.places)  # type: ignore[arg-type]
    recording.start()
    kept = weight.exp().sum()
    for _ in range(3):
        for tracer in recording.book.tracers:
            tracer.turn()
        (weight * 2).sum().backward()
    kept.backward()
    recording.stop()
    assert not recording.unobserved


def test_threads_of_the_program_are_seen_through_their_modules() -> None:
    model = nn.Linear(3, 3)

    def work() -> None:
        for _ in range(5):
            model(torch.ones(2, 3))

    def program() -> None:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    rows = record(program).step.ops
    assert sum(row.calls for row in rows if row.op == "aten.addmm") == 15


def test_a_program_that_pushes_modes_of_its_own_gets_them_back() -> None:
    class Mine(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return func(*args, **(kwargs or {}))

    mine = Mine()
    with recorded() as result:
        mine.__enter__()
        torch.ones(2).exp()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is mine
    torch.ones(2).exp()
    mine.__exit__(None, None, None)
    assert mine.seen == 4
    result.stop()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert _sum(result.step.ops, lambda row: row.op)["aten.exp"] == 1
    host = programs.Host()
    recording = programs.Recording(host, host.places)  # type: ignore[arg-type]
    with Mine():
        recording.start()
        assert not recording.active and host.notes


def test_tensor_subclasses_are_seen_by_what_they_do_inside() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    def program() -> None:
        TwoTensor(torch.ones(2, 2), torch.ones(2, 2)) @ torch.ones(2, 2)

    assert _sum(record(program).step.ops, lambda row: row.op)["aten.mm"] == 2


def test_an_error_in_an_operator_is_the_users_own() -> None:
    with recorded() as result, pytest.raises(RuntimeError, match="mat1 and mat2"):
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert result.step.ops and torch._C._len_torch_dispatch_stack() == 0
    assert [(number.name, number.op, number.dtype) for number in result.step.numbers] == [
        ("raised", "aten.mm", "float32")
    ]


def test_an_error_in_a_view_is_the_users_own_too() -> None:
    with recorded(), pytest.raises(RuntimeError, match="invalid for input of size"):
        torch.ones(2, 3).view(4)
    with recorded(), pytest.raises(RuntimeError, match="invalid for input of size"):
        torch.ones(2, 3, requires_grad=True).view(4)


def test_a_fault_of_the_tracer_never_reaches_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("amp_audit.runtime.tracer.Tracer._count", fail)
    with recorded() as result:
        assert (torch.ones(2) + 1).tolist() == [2, 2]
        assert torch.ones(2).exp().numel() == 2
    assert result.notes == ["tracer failed and was turned off: ZeroDivisionError: ours"]


def test_higher_order_operators_run() -> None:
    from torch._higher_order_ops.cond import cond

    with recorded() as result:
        out = cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(2),))
    assert out.tolist() == [2, 2] and result.step.ops


def test_compiled_functions_are_compiled_again_afterwards() -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True)
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos()

    x = torch.ones(3)
    expected = function(x)
    assert len(graphs) == 1
    with recorded() as result:
        assert torch.equal(function(x), expected)
        assert torch.equal(function(torch.ones(4))[:3], expected)
    assert {"aten.sin", "aten.cos"} <= {row.op for row in result.step.ops}
    assert any("torch.compile" in note for note in result.notes)
    assert result.unobserved == {"compiled code: recorded steps ran it as written": 1}
    before = len(graphs)
    assert torch.equal(function(x), expected) and len(graphs) == before  # the code compiled before is in use
    function(torch.ones(2, 2))
    assert len(graphs) == before + 1
    with recorded() as later:  # what is compiled in this process is not run in this recording
        x.sin()
    assert not later.notes and not later.unobserved


def test_replays_of_a_cuda_graph_are_counted_as_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda.graphs.CUDAGraph, "replay", lambda graph: "replayed")
    graph = SimpleNamespace()  # without CUDA none can be made in torch 2.6
    replay = torch.cuda.graphs.CUDAGraph.replay
    with recorded() as result:
        assert [torch.cuda.graphs.CUDAGraph.replay(graph) for _ in range(3)] == ["replayed"] * 3
    assert result.unobserved == {"replays of a CUDA graph": 3}
    assert torch.cuda.graphs.CUDAGraph.replay is replay


def test_profiler_agrees_on_matrix_products() -> None:
    step = programs.gpt()
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    events = Counter(event.name for event in profile.events())
    ours = _sum(record(step).step.ops, lambda row: row.op)
    for name in ("addmm", "mm", "gelu", "native_layer_norm", "gelu_backward", "native_layer_norm_backward"):
        assert ours[f"aten.{name}"] == events[f"aten::{name}"] > 0


def test_dtype_of_the_region_is_that_of_the_operators_device() -> None:
    from amp_audit.trace.schema import EventRow, Place

    host = programs.Host()
    recording = programs.Recording(host, host.places)  # type: ignore[arg-type]
    book = recording.book

    def enter(number: int, device: str, dtype: str, enabled: bool) -> dict[str, str]:
        row = EventRow("region_enter", Place(), region=number, device=device, dtype=dtype, enabled=enabled)
        recording.region(row)
        return book.regions[book.region]

    def leave(number: int) -> dict[str, str]:
        recording.region(EventRow("region_exit", Place(), region=number))
        return book.regions[book.region]

    assert enter(1, "cuda", "float16", True) == {"cuda": "float16"}
    assert enter(2, "cpu", "bfloat16", True) == {"cuda": "float16", "cpu": "bfloat16"}
    assert enter(3, "cuda", "float16", False) == {"cuda": OFF, "cpu": "bfloat16"}
    assert leave(3) == {"cuda": "float16", "cpu": "bfloat16"}
    assert leave(2) == {"cuda": "float16"}
    assert leave(1) == {}
    assert enter(4, "cpu", "bfloat16", False) == {}  # nothing is on that it would turn off


def test_work_in_a_region_turned_off_within_a_live_one_is_told_apart(tmp_path: Path) -> None:
    weights = torch.ones(4, 4, requires_grad=True)

    def run() -> None:
        for _ in range(2):
            optimizer = torch.optim.SGD([weights], 0.1)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                low = torch.ones(2, 4) @ weights
                with torch.autocast("cpu", enabled=False):
                    kept = torch.ones(2, 4) @ weights
            with torch.autocast("cpu", enabled=False):
                stray = torch.ones(2, 4) @ weights
            (low.float() + kept + stray).sum().backward()
            optimizer.step()

    rows = [row for step in session_recorded(run, tmp_path).steps for row in step.ops if row.op == "aten.mm"]
    lines = sorted({row.place.line or 0 for row in rows})
    by_line = {line: {(row.phase, row.off, row.autocast) for row in rows if row.place.line == line} for line in lines}
    assert list(by_line.values()) == [
        {("forward", False, "bfloat16"), ("backward", False, None)},
        {("forward", True, None), ("backward", True, None)},
        {("forward", False, None), ("backward", False, None)},
    ]


def test_bitwise_the_same_numbers() -> None:
    def train(watched: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = programs.CNN()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            images = torch.randn(2, 1, 10, 10)
            loss = F.cross_entropy(model(images), torch.tensor([1, 2]))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*model.state_dict().values(), torch.rand(3)]

    plain = train(False)
    with recorded():
        watched = train(True)
    assert all(torch.equal(one, two) for one, two in zip(plain, watched, strict=True))
