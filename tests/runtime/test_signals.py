"""Events of real programs, and that torch is what it was while they are told and afterwards."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from amp_audit import rulebook
from amp_audit.runtime import roots
from amp_audit.trace import judge
from tests.runtime.recording import events, kinds, loss_of, named, net, notes, numbers, recorded

torch.set_num_threads(1)


def test_one_step_in_order_and_in_place(tmp_path: Path) -> None:
    def run() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        optimizer.zero_grad()
        loss = loss_of(model)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, tmp_path / "saved.pt")

    trace = recorded(run, tmp_path)
    assert notes(trace) == []
    assert kinds(trace) == [
        *("optimizer_new", "scaler_new", "zero_grad", "region_enter", "forward", "region_exit", "scale", "backward"),
        *("unscale", "clip", "step", "update", "save"),
    ]
    rows = {row.kind: row for row in events(trace)}
    first = inspect.getsourcelines(run)[1]
    assert [rows[kind].place.line for kind in ("backward", "clip", "step")] == [first + 6, first + 8, first + 9]
    inside = ("region_enter", "forward", "region_exit")
    assert {row.place.path for row in events(trace) if row.kind not in inside} == {__file__}
    assert {row.place.path for row in events(trace) if row.kind in inside} == {inspect.getsourcefile(loss_of)}
    assert rows["backward"].scaled is True
    assert rows["backward"].dtype == "float16"
    assert rows["backward"].scaler == rows["scaler_new"].scaler
    assert rows["step"].via == "scaler"
    assert rows["save"].contents == ("optimizer", "scaler")
    assert rows["scaler_new"].names == ("scaler",)
    assert {rows[kind].owners for kind in ("backward", "unscale", "clip", "step", "zero_grad")} == {
        rows["optimizer_new"].owners
    }


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_is_known(fused: bool, tmp_path: Path) -> None:
    def run() -> None:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            scaler.step(optimizer)
            scaler.update()
        scaler.update(1.0)
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()

    trace = recorded(run, tmp_path)
    assert [row.skipped for row in named(events(trace), "step")] == [True, True, False]
    assert [row.given for row in named(events(trace), "update")] == [False, False, True, False]
    scales = [
        (number.values["before"], number.values["after"], number.values["skipped"])
        for number in numbers(trace, "scale")
    ]
    assert scales[:2] == [(2.0**40, 2.0**39, 1), (2.0**39, 2.0**38, 1)]
    assert scales[-1] == (1.0, 1.0, 0)


def test_a_disabled_scaler_says_nothing_and_the_step_is_plain(tmp_path: Path) -> None:
    def run() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        scaler.scale(loss_of(model)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    rows = events(recorded(run, tmp_path))
    assert [row.kind for row in rows if row.scaler is not None] == ["scaler_new"]
    assert [(row.via, row.scaled) for row in rows if row.kind in ("step", "backward")] == [
        (None, False),
        ("plain", None),
    ]


def test_only_owners_whose_gradients_changed_are_told(tmp_path: Path) -> None:
    def run() -> None:
        one, two = nn.Linear(4, 4), nn.Linear(4, 4)
        torch.optim.SGD(one.parameters(), lr=0.1)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, two)]
        x = torch.randn(2, 4)
        two(one(x).detach()).sum().backward()
        two(one(x)).sum().backward()
        one(x.requires_grad_()).sum().backward(inputs=[x])
        del optimizers

    rows = events(recorded(run, tmp_path))
    first, second = (row.owners for row in named(rows, "optimizer_new")[1:])
    assert first is not None and second is not None
    assert [row.owners for row in named(rows, "backward")] == [second, (*first, *second)]


def test_gradients_cleared_and_made_by_hand(tmp_path: Path) -> None:
    def run() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(2, 4)).sum().backward()
        for parameter in model.parameters():
            parameter.grad = None
        model(torch.randn(2, 4)).sum().backward()
        optimizer.zero_grad()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    assert [
        kind for kind in kinds(recorded(run, tmp_path)) if kind in ("backward", "zero_grad", "grad_write", "step")
    ] == [*("backward", "zero_grad", "backward", "zero_grad", "grad_write", "step")]


def test_scaled_gradients_divided_by_hand_are_no_longer_known(tmp_path: Path) -> None:
    def run() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(model)).backward()
        for parameter in model.parameters():
            parameter.grad.div_(scaler.get_scale())
        optimizer.step()

    assert kinds(recorded(run, tmp_path))[-2:] == ["grad_write", "step"]


def test_a_wrapped_optimizer_steps_once(tmp_path: Path) -> None:
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: None = None) -> None:
            self.inner.step()

    def run() -> None:
        model = net()
        outer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(model)).backward()
        scaler.step(outer)
        loss_of(model).backward()
        outer.step()

    assert [row.via for row in named(events(recorded(run, tmp_path)), "step")] == ["scaler", "plain"]


def test_a_closure_comes_before_its_step(tmp_path: Path) -> None:
    def run() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.randn(2, 4)).sum()
            loss.backward()
            return loss

        optimizer.step(closure)

    assert kinds(recorded(run, tmp_path)) == ["optimizer_new", "zero_grad", "backward", "step"]


def test_a_step_that_raised_does_not_hide_the_next_one(tmp_path: Path) -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: None = None) -> None:
            raise RuntimeError("out of luck")

    def run() -> None:
        model = nn.Linear(4, 1)
        broken, sound = Broken(model.parameters(), lr=0.1), torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(RuntimeError, match="luck"):
            broken.step()
        sound.step()

    assert len(named(events(recorded(run, tmp_path)), "step")) == 2


def test_an_optimizer_whose_step_raised_steps_again(tmp_path: Path) -> None:
    def run() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            optimizer.step()
        handle.remove()
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    trace = recorded(run, tmp_path)
    assert trace.finished == 3
    assert [len(named(step.events, "step")) for step in trace.steps if not step.open] == [2, 1, 1]


def test_calls_that_torch_refuses_are_told_before_they_raise(tmp_path: Path) -> None:
    def run() -> None:
        optimizer = torch.optim.SGD(net().parameters(), lr=0.1)
        torch.amp.GradScaler("cpu").step(optimizer)

    trace = recorded(run, tmp_path)
    assert kinds(trace) == ["optimizer_new", "scaler_new", "step"]
    assert trace.end is not None and trace.end.reason == "failed"


def test_recomputed_regions_and_other_threads_are_left_out(tmp_path: Path) -> None:
    import threading

    from torch.utils.checkpoint import checkpoint

    def run() -> None:
        model = net()
        torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = checkpoint(model, torch.randn(4, 8), use_reentrant=False).float().sum()
        loss.backward()
        thread = threading.Thread(target=lambda: loss_of(model))
        thread.start()
        thread.join()

    rows = events(recorded(run, tmp_path))
    assert len(named(rows, "region_enter")) == len(named(rows, "region_exit")) == 1


def test_a_region_opened_inside_the_model(tmp_path: Path) -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        @torch.autocast("cpu", dtype=torch.float16)
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x).float()

    def run() -> None:
        model = Inside()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            net()(torch.randn(4, 8))

    (row,) = named(events(recorded(run, tmp_path)), "backward")
    assert row.dtype == "float16"


def test_inference_in_half_says_nothing_about_training(tmp_path: Path) -> None:
    def run() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.no_grad():
            loss_of(model)
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()

    (row,) = named(events(recorded(run, tmp_path)), "backward")
    assert row.dtype == "float32"


def test_weights_written_in_a_region_are_told(tmp_path: Path) -> None:
    def run() -> None:
        model = net()
        torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.randn(4, 8))
            model.load_state_dict(net().state_dict())
            model(torch.randn(4, 8))
            with torch.no_grad():
                model[0].weight.mul_(2.0)
            model(torch.randn(4, 8))
            torch.clear_autocast_cache()
            model(torch.randn(4, 8))

    inside = kinds(recorded(run, tmp_path))[2:-1]
    assert inside == [
        *("forward", "weight_write", "forward", "weight_write", "forward", "cache_clear", "forward"),
    ]


# The root of a backward


def scaled(loss: torch.Tensor, scaler: torch.amp.GradScaler) -> torch.Tensor:
    result = scaler.scale(loss)
    roots.mark(result, 7)
    return result


@pytest.mark.parametrize(
    ("build", "kinds"),
    [
        (lambda s, p: s(), (True,)),
        (lambda s, p: p(), (False,)),
        (lambda s, p: s() / 4, (True,)),
        (lambda s, p: torch.stack([s(), s()]).mean(), (True,)),
        (lambda s, p: s() + p(), (True, False)),
        (lambda s, p: s() - 0.5 * p(), (True, False)),
        (lambda s, p: s() * p(), (True,)),
        (lambda s, p: p() * 1024.0, (None,)),
        (lambda s, p: p() / 2**-10, (None,)),
        (lambda s, p: p() / 8 + 0.5 * p(), (False,)),
    ],
)
def test_which_terms_of_a_loss_carry_the_scale(
    build: Callable[..., torch.Tensor], kinds: tuple[bool | None, ...]
) -> None:
    scaler, weight = torch.amp.GradScaler("cpu"), torch.randn(3, requires_grad=True)

    def plain() -> torch.Tensor:
        return weight.square().sum()

    found, by = roots.losses([build(lambda: scaled(plain(), scaler), plain)])
    assert found == kinds
    assert by == (7 if True in kinds else None)


def test_a_loss_without_a_graph_is_detached() -> None:
    weight = torch.randn(3, requires_grad=True)
    assert roots.detached([torch.tensor(2.0, requires_grad=True) * 65536.0])
    assert not roots.detached([weight.square().sum() * 2])


# Nothing changes


WRAPPED = [
    *((torch.amp.GradScaler, name) for name in ("__init__", "scale", "unscale_", "step", "update", "load_state_dict")),
    *((torch.optim.Optimizer, name) for name in ("__init__", "zero_grad")),
    *((nn.Module, name) for name in ("__call__", "zero_grad", "load_state_dict")),
    *((torch.amp.autocast_mode.autocast, name) for name in ("__enter__", "__exit__")),
    *((torch.autograd, name) for name in ("backward", "grad")),
    *((nn.utils, name) for name in ("clip_grad_norm_", "clip_grad_value_")),
    (torch.optim.lr_scheduler.LRScheduler, "step"),
    (torch, "save"),
    (torch, "clear_autocast_cache"),
]


def test_nothing_is_left_patched_and_wrappers_look_like_what_they_wrap(tmp_path: Path) -> None:
    def look() -> list[object]:
        return [vars(owner)[name] for owner, name in WRAPPED]

    before = look()
    during: list[object] = []
    recorded(lambda: during.extend(look()), tmp_path)
    assert look() == before
    assert not _global_optimizer_pre_hooks
    assert not _global_optimizer_post_hooks
    for original, wrapper in zip(before, during, strict=True):
        assert wrapper is not original
        assert (wrapper.__name__, wrapper.__doc__) == (original.__name__, original.__doc__)  # type: ignore[attr-defined]
        if inspect.isfunction(original):
            assert inspect.signature(wrapper) == inspect.signature(original)  # type: ignore[arg-type]


def train() -> list[float]:
    """A program that uses much of what is wrapped; its numbers and its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)
        torch.amp.GradScaler("cuda")
        seen = []
        for _ in range(6):
            optimizer.zero_grad(set_to_none=False)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.randn(16, 8)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(parameters=model.parameters(), max_norm=0.5)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            seen += [loss.item(), float(torch.nan_to_num(norm)), scaler.get_scale()]
        nn.utils.clip_grad_norm_((p for p in ()), 1.0)
        state = pickle.loads(pickle.dumps(optimizer)).state_dict()["param_groups"][0]["lr"]
        seen += [state, *copy.deepcopy(scaler).state_dict().values(), float(torch.rand(()))]
        seen += [p.double().sum().item() for p in model.parameters()]
    places = [(warning.filename, warning.lineno, str(warning.message)) for warning in caught]
    return [*seen, places]  # type: ignore[list-item]


def test_the_same_numbers_warnings_and_random_state(tmp_path: Path) -> None:
    plain = train()
    watched: list[float] = []
    recorded(lambda: watched.extend(train()), tmp_path)
    assert watched == plain


def test_a_compiled_model_stays_in_one_graph(tmp_path: Path) -> None:
    def run() -> None:
        model = net()
        graphs: list[object] = []

        def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
            graphs.append(graph)
            return graph.forward

        compiled = torch.compile(model, backend=backend, fullgraph=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = compiled(torch.randn(4, 8)).float().sum()
            loss.backward()
            optimizer.step()

    torch._dynamo.reset()
    trace = recorded(run, tmp_path, sample="1000")
    assert trace.end is not None and trace.end.reason == "finished"
    assert len(named(events(trace), "forward")) == 3


FRAMEWORK = """
from contextlib import contextmanager
import torch

def fit(training_step):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        training_step()

@contextmanager
def region():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield
"""


def test_a_region_that_a_framework_entered_around_the_program_is_none_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "framework_of_this_test.py").write_text(FRAMEWORK)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    framework = importlib.import_module("framework_of_this_test")
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        model(torch.ones(3, 4)).float().sum().backward()
        optimizer.step()

    def own() -> None:
        with framework.region():
            step()

    def nested() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            step()

    for run, foreign, told in (
        (lambda: framework.fit(step), [True], set()),
        (own, [False], {"AMP302", "AMP303"}),
        (lambda: framework.fit(nested), [True, False], {"AMP302", "AMP303"}),
    ):
        trace = recorded(run, tmp_path / str(len(told)) / str(foreign))
        rows = [row for part in trace.steps for row in part.events]
        assert [row.foreign for row in named(rows, "region_enter")] == foreign
        assert {one.rule for one in judge.findings([trace], rulebook.load())} & {"AMP302", "AMP303"} == told
