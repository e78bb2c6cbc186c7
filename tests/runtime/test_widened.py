"""Float32 tables that make float32 of low-precision activations, as a deep step shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import amp_audit
from amp_audit import rulebook
from amp_audit.model import Severity, Verdict
from amp_audit.trace import judge
from amp_audit.trace.schema import Number, Trace
from tests.runtime.recording import every_step_deep, notes, numbers, recorded

torch.set_num_threads(1)

WIDTH, LENGTH, BATCH = 32, 24, 8
Body = Callable[["Net", torch.Tensor], torch.Tensor]


class Net(nn.Module):
    """What a body does between a linear layer and another."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.first, self.last = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 4)
        self.inner = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.conv, self.norm = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), nn.LayerNorm(WIDTH)
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.plain = torch.linspace(0.5, 1, WIDTH)
        self.register_buffer("table", torch.randn(LENGTH, WIDTH))
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -1e4).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.body(self, self.first(x)))


def ran(body: Body, folder: Path, *, by_hand: bool = False, batch: int = BATCH) -> Trace:
    """Two steps of a network, under autocast or cast by hand."""
    torch.manual_seed(0)
    net = Net(body)
    if by_hand:
        net.bfloat16()

    def train() -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(2):
            optimizer.zero_grad()
            x, y = torch.randn(batch, LENGTH, 8), torch.randint(0, 4, (batch,))
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not by_hand):
                loss = F.cross_entropy(net(x.bfloat16() if by_hand else x).mean(1).float(), y)
            loss.backward()
            optimizer.step()

    with every_step_deep():
        trace = recorded(train, folder)
    assert notes(trace) == []
    return trace


def widened(body: Body, folder: Path) -> list[Number]:
    """What the second step shows."""
    (step,) = [step for step in ran(body, folder).steps if step.step == 2 and not step.open]
    return [number for number in step.numbers if number.name == "widened"]


def residual(net: Net, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    x = x + table
    for layer in net.inner:
        x = x + torch.relu(layer(x))
    return x


def written(trace: Trace) -> tuple[int, int]:
    """Bytes that the forward pass of the second step writes: in all, and in float32 by additions and relu."""
    rows = [row for step in trace.steps if step.step == 2 for row in step.ops if row.phase == "forward"]
    casts = [row for step in trace.steps if step.step == 2 for row in step.casts if row.phase == "forward"]
    wide = sum(row.bytes for row in rows if row.output == "float32" and row.op in ("aten.add.Tensor", "aten.relu"))
    return sum(row.bytes for row in (*rows, *casts)), wide


def test_what_is_counted_is_what_a_cast_of_the_table_saves(tmp_path: Path) -> None:
    wide = ran(lambda net, x: residual(net, x, net.table), tmp_path / "wide")
    cast = ran(lambda net, x: residual(net, x, net.table.to(x.dtype)), tmp_path / "cast")
    (number,) = [number for step in wide.steps if step.step == 2 for number in step.numbers if number.name == "widened"]
    assert numbers(cast, "widened") == []
    first = BATCH * LENGTH * WIDTH * 4  # the addition of the table itself
    assert number.values["bytes"] == written(wide)[1] - written(cast)[1] - first == 3 * first
    assert (number.subject, number.op, number.dtype, number.phase) == (
        "table",
        "aten.add.Tensor",
        "bfloat16",
        "forward",
    )
    assert number.values["ops"] == 3
    assert number.values["together"] == pytest.approx(written(wide)[0], rel=0.01)  # indices are counted there, too


WIDENS: dict[str, tuple[Body, str | None]] = {
    "an activation": (lambda net, x: torch.relu(x * net.table), "table"),
    "a tensor of a module that is no buffer": (lambda net, x: torch.tanh(x * net.plain), "plain"),
    "noise": (lambda net, x: F.gelu(x + 0.1 * torch.randn(x.shape)), None),
    "what is joined": (lambda net, x: F.silu(torch.cat([x, torch.zeros(BATCH, 2, WIDTH)], 1)), None),
    "what is chosen": (lambda net, x: torch.relu(torch.where(x > 0, x, torch.ones(1))), None),
    "made in parts": (lambda net, x: torch.relu(x + _made()), None),
    "a norm before the next layer": (
        lambda net, x: net.norm((x + net.table) + net.inner[0](net.norm(x + net.table))),
        "table",
    ),
    "a norm of one's own": (lambda net, x: _rms((x + net.table) + net.inner[0](_rms(x + net.table))), "table"),
}


def _made() -> torch.Tensor:
    table = torch.zeros(LENGTH, WIDTH)
    table[:, 0::2] = torch.sin(torch.linspace(0, 9, LENGTH)[:, None] * torch.ones(WIDTH // 2))
    return table


def _rms(x: torch.Tensor) -> torch.Tensor:
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)


@pytest.mark.parametrize("name", WIDENS)
def test_what_runs_in_float32_for_a_table(name: str, tmp_path: Path) -> None:
    body, table = WIDENS[name]
    found = widened(body, tmp_path)
    assert found and {number.subject for number in found} == {table}
    assert all(number.place is not None and number.place.path == __file__ for number in found)


def _rotary(net: Net, x: torch.Tensor) -> torch.Tensor:
    q = x * net.table.cos() + x.flip(-1) * net.table.sin()
    scores = q @ q.transpose(1, 2) + net.mask
    return F.dropout(scores.softmax(-1), 0.1) @ x


def _recurrent(net: Net, x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(BATCH, WIDTH)
    for item in x.unbind(1):
        state = torch.sigmoid(item) * state + torch.tanh(net.inner[0](state))
    return state[:, None].expand(-1, LENGTH, -1)


def _kept(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.seen = torch.from_numpy(np.random.rand(*x.shape).astype(np.float32))  # made out of sight
    return net.seen


LEAVES: dict[str, Body] = {
    "a cast table": lambda net, x: torch.relu(x * net.table.to(x.dtype)),
    "cast back": lambda net, x: torch.relu((x * net.table).to(x.dtype)),
    "raised by hand": lambda net, x: torch.relu(x.float() * net.table),
    "a product at once": lambda net, x: x * net.table,
    "a parameter": lambda net, x: torch.relu(x * net.weight),
    "numbers": lambda net, x: torch.relu(x * torch.tensor(0.5) * 2.0 * net.plain[0]),
    "float32 before": lambda net, x: torch.relu(net.weight * x + net.table),
    "rotary angles and a mask": _rotary,
    "a state that begins with zeros": _recurrent,
    "other random numbers": lambda net, x: torch.relu(x + torch.randn_like(x)),
    "data that the module has kept": lambda net, x: torch.relu(x + _kept(net, x)),
    "in place": lambda net, x: torch.relu(x.clone().mul_(net.table)),
    "a loss": lambda net, x: (torch.relu(x - net.table).mean(), x)[1],
}


@pytest.mark.parametrize("name", LEAVES)
def test_what_is_meant_or_costs_next_to_nothing(name: str, tmp_path: Path) -> None:
    assert widened(LEAVES[name], tmp_path) == []


def test_a_model_that_was_cast_by_hand_took_its_buffers_along(tmp_path: Path) -> None:
    trace = ran(lambda net, x: torch.relu(x * net.table), tmp_path, by_hand=True)
    assert numbers(trace, "widened") == []


@pytest.mark.parametrize(("batch", "told"), [(BATCH, 0), (2 * BATCH, 1)])
def test_the_finding_names_line_and_table(batch: int, told: int, tmp_path: Path) -> None:
    """Where a step writes 100,000 bytes more than it had to, or so."""
    trace = ran(lambda net, x: residual(net, x, net.table), tmp_path, batch=batch)
    found = [one for one in judge.findings([trace], rulebook.load()) if one.rule == "AMP607"]
    assert len(found) == told
    for one in found:
        assert one.location is not None and one.location.line == residual.__code__.co_firstlineno + 1
        assert "the float32 table table" in one.message
        assert one.evidence[0].value == pytest.approx(3 * 2 * BATCH * LENGTH * WIDTH * 4 / written(trace)[0], rel=0.01)


@pytest.mark.parametrize("number", [0, 1])
def test_what_is_read_and_what_a_run_shows_are_one_finding(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(rulebook.load()["AMP607"].examples[number].code, encoding="utf-8")
    report = amp_audit.audit("train.py")
    assert report is not None
    (found,) = report.findings
    assert (found.rule, found.verdict) == ("AMP607", Verdict.CONFIRMED)
    assert {item.source for item in found.evidence} == {"static", "runtime"}
    assert {item.name for item in found.evidence} >= {"widened_share"}


BY_HAND = """
import torch
from torch import nn

torch.set_num_threads(1)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.gate = torch.linspace(0.5, 1.0, 16)

    def forward(self, x):
        h = self.up(x) * self.gate
        return self.down(torch.relu(h))


model = Gated().to(torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(4, 8).bfloat16()).float().square().mean()
    loss.backward()
    optimizer.step()
"""


def test_what_a_product_refuses_was_widened_by_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes from the layer, and the table is why."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(BY_HAND, encoding="utf-8")
    report = amp_audit.audit("train.py")
    assert report is not None
    found = [one for one in report.findings if one.rule in ("AMP310", "AMP607")]
    assert [(one.rule, one.verdict, one.severity) for one in found] == [("AMP607", Verdict.CONFIRMED, Severity.ERROR)]
    assert found[0].location is not None and "self.gate" in BY_HAND.splitlines()[found[0].location.line - 1]
