"""Which entries are walked: those that may end in a hazard, however the code gets there, and those that have a say."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.static.binding.project import ClassRef, Project
from amp_audit.static.source import lowering
from amp_audit.static.source.traverse import definitions
from amp_audit.static.walking import paths
from amp_audit.static.walking.hot import Heat
from amp_audit.static.walking.means import Danger, Means, dangers, of_word
from amp_audit.static.walking.reach import Reach

BOOK = rulebook.load()
TRAINING = """
import torch

def train(model, optimizer, loader):
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


def project(**sources: str) -> Project:
    modules = [lowering.lower(f"/project/{name}.py", textwrap.dedent(text)) for name, text in sources.items()]
    return Project(modules, Path("/project"))


def hazardous(read: Project, name: str, path: str = "/project/main.py") -> bool:
    """Whether the function of this qualified name may come to a hazard, as an entry."""
    module = read.modules[path]
    reach = Reach(read, Heat(read.modules.values()), BOOK)
    function, cls = next(found for found in definitions(module.body) if found[0].qualname == name)
    return reach.hazardous([(module, function, ClassRef(module, cls) if cls is not None else None)]) == [True]


@pytest.mark.parametrize(
    "source",
    [
        "from train import train\ndef entry(m, o, d):\n    train(m, o, d)",
        "import train\ndef entry(m, o, d):\n    train.train(m, o, d)",
        "def entry(m, o, d):\n    from train import train as fit\n    fit(m, o, d)",
        "def entry(m, o, d):\n    import train as t\n    t.train(m, o, d)",
        "from train import train\nfit = train\ndef entry(m, o, d):\n    fit(m, o, d)",
        "from train import train\nFITS = {'a': train}\ndef entry(m, o, d):\n    FITS['a'](m, o, d)",
        "from train import train\ndef run(f, *a):\n    f(*a)\ndef entry(m, o, d):\n    run(train, m, o, d)",
        "from train import train\ndef entry(m, o, d):\n    fit = lambda: train(m, o, d)\n    fit()",
        "from train import train\ndef entry(m, o, d, fit=train):\n    fit(m, o, d)",
        "from train import train\ndef entry(m, o, d):\n    def inner():\n        train(m, o, d)\n    inner()",
        "from train import train\nclass T:\n    def fit(self, m):\n        train(m, m.o, m.d)\n"
        "def entry(m):\n    T().fit(m)",
        "from train import train\nclass T:\n    fit = train\ndef entry(m, o, d):\n    T.fit(m, o, d)",
        "from train import train\nclass T:\n    def __init__(self, m):\n        train(m, m.o, m.d)\n"
        "def entry(m):\n    T(m)",
        "from train import train\nclass T:\n    def __call__(self, m):\n        train(m, m.o, m.d)\n"
        "class U:\n    def __init__(self):\n        self.t = T()\ndef entry(m):\n    U().t(m)",
        "from train import train\nclass T:\n    @property\n    def fit(self):\n        return train\n"
        "def entry(m, o, d):\n    T().fit(m, o, d)",
        "from train import train\nclass T:\n    def fit(self, m):\n        train(m, m.o, m.d)\n"
        "def entry(m):\n    getattr(T(), 'fit')(m)",
        "import train\nclass Base:\n    def fit(self, m):\n        train.train(m, m.o, m.d)\n"
        "class T(Base):\n    def fit(self, m):\n        super().fit(m)\ndef entry(m):\n    T().fit(m)",
        "from train import *\ndef entry(m, o, d):\n    train(m, o, d)",
    ],
)
def test_calls_are_followed_however_they_are_written(source: str) -> None:
    assert hazardous(project(main=source, train=TRAINING), "entry")


def test_a_method_reaches_what_subclasses_make_of_its_own() -> None:
    source = """
    from train import train
    class Base:
        def entry(self, m):
            self.fit(m)
    class T(Base):
        def fit(self, m):
            train(m, m.o, m.d)
    class U(Base):
        def begin(self, m):
            T().entry(m)
    """
    read = project(main=source, train=TRAINING)
    assert hazardous(read, "U.begin")
    assert not hazardous(read, "Base.entry")  # no object of T is there: none was made


def test_an_object_that_the_modules_own_code_made_is_there() -> None:
    source = """
    from train import train
    class T:
        def fit(self, m):
            train(m, m.o, m.d)
    trainer = T()
    def entry(m):
        trainer.fit(m)
    """
    assert hazardous(project(main=source, train=TRAINING), "entry")


def test_names_that_are_others_reach_nothing() -> None:
    source = """
    import train
    class T:
        def fit(self, m):
            train.train(m, m.o, m.d)
    class Other:
        def fit(self, optimizer):
            optimizer.zero_grad()
    def entry(trainer: T, optimizer):
        Other().fit(optimizer)
        if isinstance(trainer, T):
            trainer.fit(optimizer)
    """
    read = project(main=source, train=TRAINING)
    assert not hazardous(read, "entry")
    assert hazardous(read, "T.fit")


def test_a_rank_can_leave_alone_only_where_models_are_replicated() -> None:
    source = """
    import math
    from torch.nn.parallel import DistributedDataParallel as Replicated
    def skips(model, loader):
        for x in loader:
            loss = model(x)
            if math.isnan(loss):
                continue
            loss.backward()
    def replicates(model, loader):
        skips(Replicated(model), loader)
    """
    read = project(main=source)
    assert not hazardous(read, "skips")
    assert hazardous(read, "replicates")


def test_entries_are_asked_together_which_files_they_go_through() -> None:
    source = """
    from train import train
    def entry(m, o, d):
        train(m, o, d)
    def other(m, o, d):
        m.step()
    """
    read = project(main=source, train=TRAINING)
    module = read.modules["/project/main.py"]
    starts = [(module, None, None), *((module, function, None) for function, _ in definitions(module.body))]
    reach = Reach(read, Heat(read.modules.values()), BOOK)
    assert reach.through(starts, {"/project/train.py"}) == [False, True, False]
    assert reach.through(starts, {"/project/main.py"}) == [True, True, True]
    assert reach.through(starts, {"/project/elsewhere.py"}) == [False, False, False]


def test_plain_training_matters_for_the_order_of_its_steps_alone() -> None:
    source = """
    def loss_only(model, x):
        model(x).backward()
    def trains(model, optimizer, x):
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
    """
    read = project(main=source)
    assert not hazardous(read, "loss_only")
    assert hazardous(read, "trains")


def test_every_rule_about_events_can_be_met_by_code_that_says_all() -> None:
    everything = ~Means.NONE
    assert all(danger.within(everything) for danger in dangers(BOOK))
    assert not any(danger.within(Means.NONE) for danger in dangers(BOOK))


def test_what_words_need() -> None:
    assert of_word("step.scaler") == Means.STEP | Means.SCALER
    assert of_word("backward.scaled.low") == Means.BACKWARD | Means.SCALER
    assert of_word("backward.plain") == Means.BACKWARD
    assert of_word("halves.none") == Means.NONE
    assert Danger(Means.STEP, mixed=True).within(Means.STEP | Means.REGION)
    assert not Danger(Means.STEP, mixed=True).within(Means.STEP)


def test_entries_that_can_end_in_nothing_are_not_walked() -> None:
    source = """
    def helper(optimizer):
        optimizer.zero_grad()
    def entry(model, optimizer, scaler, x):
        loss = scaler.scale(model(x))
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    """
    read = project(main=source)
    surveyor = paths._Surveyor(read, BOOK)
    done = surveyor.survey()
    at = {function.name: function.at for function, _ in definitions(surveyor.modules[0].body)}
    assert done.followed == {("/project/main.py", at["entry"])}


def test_an_entry_without_hazards_answers_what_another_asks() -> None:
    """The optimizer steps in a function of the same file, which alone would end in nothing."""
    backward = """
    import torch
    def backward(model, x, optimizer):
        with torch.autocast("cuda", torch.float16):
            loss = model(x).mean()
        loss.backward()
        {}
    """
    stepping = "def finish(trainer):\n    trainer.optimizer.step()\n"
    found = {}
    for text in ("optimizer.step()", "pass"):
        source = textwrap.dedent(backward.format(text))
        found[text] = {raw.rule.id for raw in paths.find(project(main=source), BOOK)[0]}
        found[text + stepping] = {raw.rule.id for raw in paths.find(project(main=source + stepping), BOOK)[0]}
    assert "AMP201" in found["optimizer.step()"]
    assert found["pass"] == set()


def test_of_files_that_are_context_only_those_entries_are_walked_that_go_through_one_asked_for() -> None:
    unused = "import torch\nfrom torch.nn.utils import clip_grad_norm_\n"
    wrong = TRAINING.replace("scaler.step(optimizer)", "clip_grad_norm_(model.parameters(), 1.0)\n        {}")
    wrong = unused + wrong.format("scaler.step(optimizer)")
    main = "from train import train\ndef entry(m, o, d):\n    train(m, o, d)"
    read = project(main=main, train=wrong, other=wrong)
    whole = [raw for raw in paths.find(read, BOOK)[0] if raw.path == "/project/train.py"]
    asked = [raw for raw in paths.find(read, BOOK, {"/project/train.py"})[0] if raw.path == "/project/train.py"]
    assert asked == whole
    assert "AMP202" in {raw.rule.id for raw in asked}
    walked = paths._Surveyor(read, BOOK).survey({"/project/train.py"}).followed
    assert {path for path, _ in walked} == {"/project/main.py", "/project/train.py"}


def test_entries_that_are_asked_together_are_judged_as_each_alone() -> None:
    read = project(
        train=TRAINING + "\ndef show(x):\n    print(x)\n\nclass Quiet:\n    def step(self):\n        return 1\n",
        main="from train import train, show, Quiet\n"
        "class Task:\n"
        "    def fit(self, m, o, d):\n        self.run(m, o, d)\n"
        "    def run(self, m, o, d):\n        train(m, o, d)\n"
        "    def tell(self):\n        show(self)\n"
        "def outer(m, o, d):\n    Task().fit(m, o, d)\n"
        "def quiet():\n    Quiet().step()\n",
    )
    starts = [
        (module, function, ClassRef(module, cls) if cls is not None else None)
        for module in read.modules.values()
        for function, cls in definitions(module.body)
    ]
    heat = Heat(read.modules.values())
    together = Reach(read, heat, BOOK).hazardous(starts)
    assert together == [Reach(read, heat, BOOK).hazardous([start])[0] for start in starts]
    names = {start[1].qualname for start, found in zip(starts, together) if found}
    assert names == {"train", "Task.fit", "Task.run", "outer"}
