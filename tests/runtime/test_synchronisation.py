"""Inside a step nothing of ours waits for a device: whatever could is counted here, by who asked for it and when."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import amp_audit
from amp_audit.runtime import profilers, queue
from amp_audit.runtime.counts import compare, compare_cast, rounding
from amp_audit.runtime.numerics import Numerics
from amp_audit.runtime.origins import measured
from amp_audit.runtime.patches import UNSEEN
from amp_audit.runtime.queue import at_once
from amp_audit.runtime.session import Session
from amp_audit.trace.reader import Trace
from tests.runtime import programs
from tests.runtime.recording import every_step_deep, recorded

torch.set_num_threads(1)

OURS = str(Path(amp_audit.__file__).parent) + os.sep
TORCH = str(Path(torch.__file__).parent) + os.sep

METHODS = (
    *("item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "unique", "equal", "allclose", "is_nonzero"),
    *("__bool__", "__float__", "__int__", "__index__", "__complex__", "__contains__", "masked_select"),
    *("unique_consecutive", "__iter__", "__array__", "repeat_interleave", "__reduce_ex__"),
)
FUNCTIONS = (
    *("nonzero", "argwhere", "unique", "equal", "allclose", "is_nonzero", "masked_select", "unique_consecutive"),
    "repeat_interleave",
)


@contextmanager
def waits() -> Iterator[Counter[str]]:
    """Counts what asks a tensor for its values on behalf of amp-audit, except while a step is being written."""
    found: Counter[str] = Counter()
    writing = False
    measure = Session._measure

    def _measure(session: Session, *args: Any) -> None:
        nonlocal writing
        writing = True
        try:
            measure(session, *args)
        finally:
            writing = False

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            who = _who()
            if who is not None and not writing:
                found[who] += 1
            return original(*args, **kwargs)

        return call

    with mock.patch.object(Session, "_measure", _measure):
        patches = [mock.patch.object(torch.Tensor, name, counting(getattr(torch.Tensor, name)), create=True)
                   for name in METHODS if hasattr(torch.Tensor, name)]  # fmt: skip
        patches += [mock.patch.object(torch, name, counting(getattr(torch, name))) for name in FUNCTIONS]
        for patch in patches:
            patch.start()
        try:
            yield found
        finally:
            for patch in patches:
                patch.stop()


def _who() -> str | None:
    """The function of ours that asked, None when the program did or torch on its behalf."""
    frame: FrameType | None = sys._getframe(2)
    through_torch = False
    while frame is not None:
        path = frame.f_code.co_filename
        wrapper = path.endswith(UNSEEN)  # what stands around a function of torch: that waits, or the wrapper does
        if path.startswith(TORCH):
            through_torch = True
        elif not (wrapper and through_torch):
            return f"{Path(path.removesuffix(UNSEEN)).name}:{frame.f_code.co_name}" if path.startswith(OURS) else None
        frame = frame.f_back
    return None


def scaled() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(4):
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(16, 32)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def plain() -> None:
    for make in (programs.gpt, programs.cnn, lambda: programs.gpt(again="reentrant")):
        step = make()
        for _ in range(3):
            step()


def low(make: Callable[..., torch.optim.Optimizer], **options: Any) -> Callable[[], None]:
    """Weights in bfloat16, whose lost updates a step of the optimizer on copies tells."""

    def program() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).bfloat16()
        optimizer = make(model.parameters(), **options)
        for _ in range(4):
            model(torch.randn(4, 8).bfloat16()).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    return program


def closures() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.ones(4, 8)).float().square().mean()
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)


def several() -> None:
    """Two optimizers, one of them for sparse gradients, two scalers and an accumulated micro-batch."""
    torch.manual_seed(0)
    table, model = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 2)
    optimizers = [torch.optim.SparseAdam(list(table.parameters())), torch.optim.Adam(model.parameters(), fused=True)]
    scalers = [torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu", init_scale=256.0)]
    for _ in range(4):
        for _ in range(2):
            with torch.autocast("cpu", torch.float16):
                loss = model(table(torch.randint(20, (4, 3))).mean(1)).float().square().mean() / 2
            scalers[1].scale(loss).backward()
        for scaler, optimizer in zip(scalers, optimizers, strict=True):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


COUNTERS = 16
"""Four steps of four parameters, each with a step counter that torch keeps on the CPU."""

PROGRAMS = {
    "scaled": (scaled, 0),
    "plain": (plain, 0),
    "closures": (closures, 0),
    "several optimizers": (several, 0),
    "AdamW foreach": (low(torch.optim.AdamW, foreach=True), COUNTERS),
    "AdamW fused": (low(torch.optim.AdamW, fused=True), COUNTERS),
    "Adagrad": (low(torch.optim.Adagrad), COUNTERS),
    "SGD": (low(torch.optim.SGD, lr=0.1, momentum=0.9), 0),
    "RMSprop": (low(torch.optim.RMSprop), 0),
}


def watched(program: Callable[[], None], deep: bool, folder: Path) -> Trace:
    """The recording of a program, all of whose steps are deep, or none."""
    if not deep:
        return recorded(program, folder, deep="none")
    with every_step_deep():
        return recorded(program, folder)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("deep", [False, True])
def test_no_step_waits_for_the_device(name: str, deep: bool, tmp_path: Path) -> None:
    program, counters = PROGRAMS[name]
    with waits() as found:
        trace = watched(program, deep, tmp_path)
    assert len(trace.steps) >= 4 and all(step.recorded and step.deep is deep for step in trace.steps)
    assert not [note for step in trace.steps for note in step.notes]
    found.pop("queue.py:at_once", None)  # which asks only tensors that lie on the CPU
    assert found == ({"weights.py:_intended": counters} if deep and counters else {})


@pytest.mark.parametrize("ask", ["item", "tolist", "cpu", "nonzero", "__bool__", "__float__"])
def test_a_wait_in_the_hot_path_would_be_noticed(ask: str, tmp_path: Path) -> None:
    original = Numerics.after

    def after(numerics: Numerics, func: Any, args: Any, kwargs: Any, out: Any, *rest: Any) -> None:
        original(numerics, func, args, kwargs, out, *rest)
        getattr(torch.ones(1), ask)()

    after.__code__ = after.__code__.replace(co_filename=OURS + "planted.py")
    with mock.patch.object(Numerics, "after", after), waits() as found:
        recorded(scaled, tmp_path, deep="none")
    assert found["planted.py:after"] >= 4


def test_what_the_program_asks_for_itself_is_not_ours(tmp_path: Path) -> None:
    def program() -> None:
        step = programs.cnn()
        for _ in range(3):
            step()
            assert torch.ones(1).item() and torch.ones(2).tolist()

    with waits() as found:
        recorded(program, tmp_path, deep="none")
    assert found == {}


class Nothing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("deep", [False, True])
def test_inside_a_cuda_graph_nothing_is_run_and_nothing_is_read(
    deep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is captured, a whole step, is what the program runs: torch's profiler sees every operator, ours too."""
    inside = False
    monkeypatch.setattr(profilers, "profiled", lambda: False)  # nothing is hidden from it
    monkeypatch.setattr(queue, "_started", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: inside)
    captured: list[Counter[str]] = []

    def program() -> None:
        nonlocal inside
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(5):
            inside = number in (2, 3)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                with torch.autocast("cpu", torch.float16, cache_enabled=False):
                    loss = model(torch.ones(4, 8)).float().square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if inside:
                captured.append(Counter(event.name for event in profile.events()))
        inside = False

    with Nothing():  # under any mode some operators go another way
        program()
    with waits() as found:
        trace = watched(program, deep, tmp_path)
    plain, seen = captured[:2], captured[2:]
    assert [one - other for one, other in zip(seen, plain, strict=True)] == [Counter(), Counter()]
    found.pop("queue.py:at_once", None)
    assert found == {} and trace.finished == 5
    assert not [note for step in trace.steps for note in step.notes]
    assert trace.end is not None and trace.end.unobserved["values inside CUDA graphs"] > 0
    rows = [row for step in trace.steps for row in step.ops if row.op == "aten.addmm"]
    assert sum(row.calls for row in rows) == 10  # the operators themselves are counted


class Elsewhere(torch.Tensor):
    device = torch.device("cuda")  # type: ignore[assignment]


def elsewhere(values: torch.Tensor) -> torch.Tensor:
    return values.as_subclass(Elsewhere)


def test_only_what_lies_on_the_cpu_is_read_at_once() -> None:
    assert at_once(torch.tensor(2.5)) == 2.5
    with pytest.raises(ValueError, match="when the step is over"):
        at_once(elsewhere(torch.tensor(2.5)))


def test_magnitudes_of_what_lies_on_a_device_are_left_there() -> None:
    values = torch.tensor([1.0, -3.0, 2.0])
    with waits() as found:
        there = measured(elsewhere(values))
        assert not found
        here = measured(values)
    assert isinstance(there, torch.Tensor) and there.tolist() == here == [3.0, 0.0, 0.0]
    assert set(found) == {"queue.py:at_once"}
    bad = measured(torch.tensor([1.0, torch.inf, torch.nan, -torch.inf]))
    assert isinstance(bad, torch.Tensor) and bad.isnan().tolist() == [True, False, False] and bad[1:].tolist() == [2, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_counts_of_what_lies_on_a_device_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for power in (-24, -10, 0, 17):
        values = torch.randn(40, 30) * (torch.rand(40, 30) > 0.3) * 2.0**power
        out = values.to(dtype)
        for count in (compare, compare_cast, rounding):
            with waits() as found:
                there = count(elsewhere(values), elsewhere(out))
                assert not found
            assert isinstance(there, torch.Tensor)
            assert there.tolist() == pytest.approx(count(values, out), rel=1e-5)
