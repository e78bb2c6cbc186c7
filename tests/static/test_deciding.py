"""Which names keep paths apart, and how many paths a program then has."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.binding.project import External, Project
from amp_audit.static.source import lowering
from amp_audit.static.source.traverse import definitions
from amp_audit.static.walking import paths
from amp_audit.static.walking.algebra import comparison
from amp_audit.static.walking.deciding import Deciding, deciding
from amp_audit.static.walking.hot import Heat
from amp_audit.static.walking.values import NONE, Condition, Literal

TRAIN = """
import torch
from torch import nn

def train(model, optimizer, loader, args):
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=args.amp):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        {}
        scaler.step(optimizer)
        scaler.update()
"""


def names(source: str) -> tuple[Deciding, dict[str, frozenset[str]]]:
    """The deciding names of a module: all of them, and the local ones by function."""
    module = lowering.lower("/project/main.py", textwrap.dedent(source))
    found = deciding([module], Heat([module]))
    functions = [function for function, _ in definitions(module.body)]
    return found, {
        function.qualname: chosen.names if (chosen := found.local(function)) else frozenset() for function in functions
    }


def test_switches_of_regions_decide_wherever_they_come_from() -> None:
    found, local = names(
        """
        import torch
        WANTED = False
        def fit(model, data, half=WANTED, verbose=False):
            use = half and torch.cuda.is_available()
            with torch.autocast("cuda", enabled=use):
                loss = model(data).mean()
            if verbose:
                print(loss)
            loss.backward()
        """
    )
    assert {"use", "half"} <= local["fit"]
    assert "verbose" not in local["fit"]
    assert "WANTED" in found.globals


def test_a_test_decides_when_an_arm_trains_or_leaves() -> None:
    _, local = names(
        """
        def fit(loss, optimizer, clip, log, stop, path):
            if clip:
                clip_grad_norm_(optimizer, 1.0)
            if log:
                print(loss)
            name = "a" if path else "b"
            loss.backward()
            if stop:
                return
            optimizer.step()
        """
    )
    assert {"clip", "stop"} <= local["fit"]
    assert not {"log", "path", "name"} & local["fit"]


def test_where_nothing_trains_it_does_not_matter_where_a_call_leaves() -> None:
    _, local = names(
        """
        import torch
        def describe(loss, verbose, wide):
            if verbose:
                return str(loss)
            if wide:
                return torch.bfloat16
            return None
        def fit(loss, early, path=None):
            describe(loss, path)
            if early:
                return
            loss.backward()
        """
    )
    assert local["describe"] == {"wide"}
    assert "early" in local["fit"] and "path" not in local["fit"]


def test_values_pass_through_calls_attributes_and_returns() -> None:
    found, local = names(
        """
        class Trainer:
            def __init__(self, amp, tag):
                self.amp = choose(amp)
                self.tag = tag
            def fit(self, loss):
                if self.amp:
                    loss.backward()
        def choose(flag):
            picked = flag
            return picked
        """
    )
    assert "amp" in found.attributes
    assert "tag" not in found.attributes
    assert "amp" in local["Trainer.__init__"]
    assert {"flag", "picked"} <= local["choose"]


def test_switches_pass_through_what_takes_any_argument() -> None:
    found, _ = names(
        """
        import torch
        def region(device="cuda", **options):
            return torch.autocast(device, **options)
        def fit(params, loss):
            if params.wide:
                params.kind = torch.bfloat16
            else:
                params.kind = torch.float16
            with region(dtype=params.kind):
                loss.backward()
        """
    )
    assert "kind" in found.attributes
    assert "wide" not in found.attributes
    assert found.branches


@pytest.mark.parametrize("switches", [4, 9])
def test_switches_that_decide_nothing_cost_nothing(switches: int) -> None:
    """Each would double the paths; what they set is a name of its own, None or not."""
    lines = [f"extra{n} = make() if args.a{n} else None" for n in range(switches)]
    body = textwrap.indent("\n".join(lines), "    ")
    source = TRAIN.format("").replace("    scaler = ", f"{body}\n    scaler = ", 1)
    module = lowering.lower("/project/main.py", source)
    project = Project([module], Path("/project"))
    surveyor = paths._Surveyor(project, rulebook.load())
    before = surveyor.done.fuel
    surveyor.survey()
    used = before - surveyor.done.fuel
    assert not [entry.note for entry in surveyor.done.entries if entry.note]
    assert used < 80 + 4 * switches


def test_a_local_function_does_not_make_its_namesake_matter() -> None:
    source = """
    def outer(items):
        def run(item):
            return item + 1
        return [run(item) for item in items]
    class Trainer:
        def run(self, loss):
            loss.backward()
    def calls(trainer, loss):
        trainer.run(loss)
    """
    module = lowering.lower("/project/main.py", textwrap.dedent(source))
    heat = Heat([module])
    hot = {function.qualname for function, _ in definitions(module.body) if heat.function(function)}
    assert hot == {"Trainer.run", "calls"}


def test_a_builtin_and_a_logger_reach_no_method_of_that_name() -> None:
    source = """
    import logging
    import numpy as np
    logger = logging.getLogger(__name__)
    class Model:
        def info(self):
            self.loss().backward()
        def print(self):
            self.info()
        def save(self):
            self.info()
    def shows(items):
        print(items)
        logger.info(items)
        logging.info(items)
        np.save("a", items)
    def uses(model):
        model.save()
    """
    module = lowering.lower("/project/main.py", textwrap.dedent(source))
    heat = Heat([module])
    hot = {function.qualname for function, _ in definitions(module.body) if heat.function(function)}
    assert hot == {"Model.info", "Model.print", "Model.save", "uses"}


@pytest.mark.parametrize(
    ("call", "followed"), [("text.split()", False), ("self.split()", True), ("text.divide()", True)]
)
def test_methods_that_strings_have_too_do_not_make_code_matter(call: str, followed: bool) -> None:
    source = f"""
class Trainer:
    def split(self):
        self.optimizer.zero_grad()

    def divide(self):
        self.optimizer.zero_grad()

    def read(self, text):
        return {call}
"""
    module = lowering.lower("/project/main.py", source)
    read = next(function for function, _ in definitions(module.body) if function.name == "read")
    assert Heat([module]).function(read) is followed


def test_a_name_that_is_held_against_words_decides_by_its_word() -> None:
    source = """
        import torch
        def fit(model, data, args, way="mean", device="cuda"):
            precision = "fp16" if args.half else "fp32"
            if way == "mean":
                print(way)
            with torch.autocast(device, enabled=precision == "fp16"):
                loss = model(data).mean()
            loss.backward()
        """
    module = lowering.lower("/project/main.py", textwrap.dedent(source))
    (function,) = (found for found, _ in definitions(module.body))
    local = deciding([module], Heat([module])).local(function)
    assert local is not None
    assert "precision" in local.words
    assert "device" in local and "device" not in local.words
    assert "way" not in local.words


SETTINGS = """
import torch
from torch import nn

def region(settings):
    if not settings.get("amp", False):
        return nullcontext()
    name = settings.get("dtype", "float16")
    return torch.autocast("cuda", dtype=torch.float16 if name == "float16" else torch.bfloat16)

class Both(nn.Module):
    def __init__(self, one, two, settings=None):
        super().__init__()
        self.one, self.two = one, two
        self.settings = {kept}

    def forward(self, x):
        with region(self.settings or {{}}):
            return self.one(x) + self.two(x)

def main(settings, others, loader):
    model = Both(make(settings), make(settings), {given})
    for x in loader:
        with region(settings or {{}}):
            model(x)
"""


@pytest.mark.parametrize(
    ("kept", "given", "meet"),
    [
        ("settings or {}", "settings", False),
        ("settings if settings is not None else {}", "settings", False),
        ("settings or {}", "others", True),
    ],
)
def test_settings_or_an_empty_dict_decide_as_the_settings_do(kept: str, given: str, meet: bool) -> None:
    module = lowering.lower("/project/main.py", SETTINGS.format(kept=kept, given=given))
    raw, _ = paths.find(Project([module], Path("/project")), rulebook.load())
    assert ("AMP306" in {found.rule.id for found in raw}) is meet


@pytest.mark.parametrize(
    ("name", "equal"), [("torch.float16", Literal.of(False)), ("torch.version.hip", None), ("FLAGS.dtype", None)]
)
def test_what_a_library_has_is_not_nothing(name: str, equal: Literal | None) -> None:
    for pair in ((External(name), NONE), (NONE, External(name))):
        found = comparison("==", *pair)
        assert found == equal if equal is not None else isinstance(found, Condition)
