"""Names of models and of their parameters, as a person would give them who sees the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from amp_audit.runtime import owners
from tests.runtime.recording import notes, numbers, recorded

torch.set_num_threads(1)


def named(run: Callable[[], object], folder: Path) -> list[str]:
    """The parameters whose gradients were measured, in order."""
    trace = recorded(run, folder)
    assert notes(trace) == []
    found = [number for number in numbers(trace, "exponents") if number.phase == "gradient"]
    return list(dict.fromkeys(str(number.subject) for number in found))


def modules(run: Callable[[], object], folder: Path) -> set[str | None]:
    """The modules in which products were computed in the forward pass."""
    trace = recorded(run, folder)
    assert notes(trace) == []
    rows = [row for step in trace.steps for row in step.ops if row.phase == "forward" and row.op == "aten.addmm"]
    return {row.place.module for row in rows}


def train(forward: Callable[[torch.Tensor], torch.Tensor], *models: Any, steps: int = 2) -> None:
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
    for _ in range(steps):
        forward(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def lone() -> None:
    model, loss = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.MSELoss()
    train(lambda x: loss(model(x), x), model)


def bare_layers() -> None:
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    train(lambda x: last(first(x)), first, last)


def a_list() -> None:
    layers = [nn.Linear(4, 4) for _ in range(2)]

    def forward(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
        return x

    train(forward, *layers)


def helper() -> None:
    """What the helper calls all of them is no name."""
    netG, netD = nn.Linear(4, 4), nn.Linear(4, 4)

    def run(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return net(x)  # type: ignore[no-any-return]

    train(lambda x: run(netD, run(netG, x)), netG, netD)


class Trainer:
    def __init__(self) -> None:
        self.encoder = nn.Linear(4, 4)
        self.heads = {"left": nn.Linear(4, 4), "right": nn.Linear(4, 4)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.encoder(x)
        return sum((self.heads[side](x) for side in ("left", "right")), torch.zeros(()))  # type: ignore[no-any-return]


def attributes() -> None:
    trainer = Trainer()
    train(trainer.forward, trainer.encoder, *trainer.heads.values())


def parts() -> None:
    """The model itself is never called."""
    model = nn.ModuleDict({"encoder": nn.Linear(4, 4), "decoder": nn.Linear(4, 4)})
    train(lambda x: model["decoder"](model["encoder"](x)), model)


def parts_of_two() -> None:
    one, two = (nn.ModuleDict({"inner": nn.Linear(4, 4)}) for _ in range(2))
    train(lambda x: two["inner"](one["inner"](x)), one, two)


def loose() -> None:
    """A parameter beside the model makes it no second model."""
    model, temperature = nn.Linear(4, 4), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
    (model(torch.randn(3, 4)) * temperature).sum().backward()
    optimizer.step()


class Hides(nn.Module):
    """Its layers are in a list, so that they are not registered."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale


def hidden() -> None:
    one, two = Hides(), Hides()
    train(lambda x: two(one(x)), one, two, *one.layers, *two.layers)


class Grows(nn.Module):
    """Makes its layer when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Linear(4, 4)
        return self.late(x) * self.scale  # type: ignore[no-any-return]


def grown() -> None:
    model = Grows()
    model(torch.ones(1, 4))
    train(model, model)


def folds() -> None:
    """One after the other: each is the model."""
    for _ in range(3):
        model = nn.Linear(4, 4)
        train(model, model)


def keeps_its_variables() -> None:
    """Looking at the variables of a function would change what it got from ``locals`` (before Python 3.13)."""
    before = locals()
    left, right = nn.Linear(4, 4), nn.Linear(4, 4)
    train(lambda x: right(left(x)), left, right)
    assert before == {}


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lone, ["0.weight", "0.bias", "1.weight", "1.bias"]),
        (bare_layers, ["first.weight", "first.bias", "last.weight", "last.bias"]),
        (a_list, ["layers[0].weight", "layers[0].bias", "layers[1].weight", "layers[1].bias"]),
        (helper, ["netG.weight", "netG.bias", "netD.weight", "netD.bias"]),
        (
            attributes,
            ["encoder.weight", "encoder.bias"]
            + [f"heads['{side}'].{name}" for side in ("left", "right") for name in ("weight", "bias")],
        ),
        (parts, ["encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias"]),
        (parts_of_two, ["one.inner.weight", "one.inner.bias", "two.inner.weight", "two.inner.bias"]),
        (
            hidden,
            ["one.scale", "two.scale"]
            + [f"{net}.layers[{n}].{name}" for net in ("one", "two") for n in (0, 1) for name in ("weight", "bias")],
        ),
        (grown, ["scale", "late.weight", "late.bias"]),
        (folds, ["weight", "bias"]),
    ],
    ids=lambda item: item.__name__ if callable(item) else "",
)
def test_parameters_are_called_by_the_variables_of_the_program(
    program: Callable[[], None], expected: list[str], tmp_path: Path
) -> None:
    assert named(program, tmp_path) == expected


def test_a_parameter_beside_the_model_leaves_its_names(tmp_path: Path) -> None:
    assert named(loose, tmp_path) == ["weight", "bias", "SGD.0.2"]


def test_variables_that_the_program_has_in_a_dictionary_are_left_alone(tmp_path: Path) -> None:
    names = named(keeps_its_variables, tmp_path)
    assert len(names) == len(set(names)) == 4


def test_a_teacher_beside_the_student_takes_no_name_from_it(tmp_path: Path) -> None:
    def program() -> None:
        student, teacher = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
        train(lambda x: student(x) - teacher(x), student)

    assert named(program, tmp_path / "1") == ["weight", "bias"]
    assert modules(program, tmp_path / "2") == {"", "teacher"}


def test_a_forward_before_there_is_an_optimizer_settles_no_name(tmp_path: Path) -> None:
    def program() -> None:
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second(first(torch.ones(1, 4))).sum().backward()
        train(lambda x: second(first(x)), first, second)

    assert named(program, tmp_path) == ["first.weight", "first.bias", "second.weight", "second.bias"]


def test_nothing_is_kept_alive_by_the_search(tmp_path: Path) -> None:
    freed: list[bool] = []

    class Big(torch.Tensor):
        def __del__(self) -> None:
            freed.append(True)

    def program() -> None:
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        held = torch.zeros(3).as_subclass(Big)
        train(lambda x: second(first(x)), first, second)
        del held
        assert freed

    named(program, tmp_path)


def test_looking_runs_no_code_of_the_program(tmp_path: Path) -> None:
    class Touchy:
        @property
        def model(self) -> nn.Module:
            raise AssertionError("was read")

        def __getattr__(self, name: str) -> Any:
            raise AssertionError("was asked")

        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("was gone through")

    def program() -> None:
        touchy = Touchy()
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        train(lambda x: second(first(x)), first, second)
        del touchy

    assert named(program, tmp_path)[0] == "first.weight"


def gan() -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    netG, netD = net(), net()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (netG, netD)]
    for _ in range(2):
        netD(netG(torch.randn(3, 4))).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()


def one_model_two_optimizers() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    matrices = torch.optim.SGD([p for p in model.parameters() if p.ndim > 1], lr=0.1)
    others = {"rest": torch.optim.SGD([p for p in model.parameters() if p.ndim == 1], lr=0.1)}
    for _ in range(2):
        model(torch.randn(3, 4)).square().mean().backward()
        for optimizer in (matrices, *others.values()):
            optimizer.step()


def parts_of_a_model() -> None:
    model = nn.ModuleDict({"enc": nn.Sequential(nn.Linear(4, 4)), "head": nn.Sequential(nn.Linear(4, 4))})
    one, two = (torch.optim.SGD(model[name].parameters(), lr=0.1) for name in ("enc", "head"))
    for _ in range(2):
        model["head"](model["enc"](torch.randn(3, 4))).square().mean().backward()
        one.step()
        two.step()


def folds() -> None:
    for _ in range(2):
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("run", "names"),
    [
        (folds, {"optimizer", "optimizer (2)"}),
        (gan, {"netG", "netD"}),
        (one_model_two_optimizers, {"matrices", "others['rest']"}),
        (parts_of_a_model, {"enc", "head"}),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_optimizers_are_told_apart_by_what_they_train(run: Callable[[], None], names: set[str], tmp_path: Path) -> None:
    found = [number.subject for number in numbers(recorded(run, tmp_path), "grad_norm")]
    assert set(found) == names and len(found) == 4


@pytest.mark.parametrize(
    ("module", "others", "label"),
    [
        ("actor.net", ["critic.net"], "actor"),
        ("model.encoder.layers", ["model.decoder"], "model.encoder"),
        ("model", ["model.head"], "model"),
        ("model.head", ["model"], "model.head"),
        ("encoder", [""], "encoder"),
        ("a", ["ab"], "a"),
        ("", [], ""),
        ("a.b", ["a.b"], ""),
    ],
)
def test_a_module_is_told_apart_as_far_out_as_it_goes(module: str, others: list[str], label: str) -> None:
    assert owners._apart(module, others) == label
