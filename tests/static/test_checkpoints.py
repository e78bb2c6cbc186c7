"""Which checkpoints leave out the scaler: gathered over statements, functions and files."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.model import Confidence
from amp_audit.static.binding.project import Project
from amp_audit.static.source import lowering
from amp_audit.static.spots import patterns

TRAIN = """
import torch
from torch import nn

def train(model, optimizer, scaler, loader):
    for x in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

MAIN = """
import torch
from train import train

def main(model, loader, args):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    train(model, optimizer, scaler, loader)
"""


def found(**sources: str) -> list[tuple[str, int, Confidence]]:
    """(module, line, confidence) of each AMP701."""
    texts = {f"/project/{name}.py": textwrap.dedent(source) for name, source in sources.items()}
    modules = [lowering.lower(path, text) for path, text in texts.items()]
    raw, failed = patterns.find(Project(modules, Path("/project")), rulebook.load())
    assert not failed
    places = {path: lowering.positions(text) for path, text in texts.items()}
    return sorted((Path(f.path).stem, places[f.path](f.at).line, f.confidence) for f in raw if f.rule.id == "AMP701")


def main_with(saving: str) -> str:
    return MAIN + textwrap.indent(textwrap.dedent(saving), "    ")


def line(source: str, text: str) -> int:
    return next(n for n, each in enumerate(source.split("\n"), 1) if text in each)


BARE = '{"model": model.state_dict(), "optimizer": optimizer.state_dict()}'
SAVES = {
    "a display": f"torch.save({BARE}, 'a.pt')  # here",
    "a name": f"checkpoint = {BARE}\ntorch.save(checkpoint, 'a.pt')  # here",
    "items": "d = {}\nd['m'] = model.state_dict()\nd['o'] = optimizer.state_dict()\ntorch.save(d, 'a.pt')  # here",
    "a state that has a name": "o = optimizer.state_dict() if args.full else None\ntorch.save(dict(o=o), 'a')  # here",
    "a record": "torch.save(asdict(Snapshot(model.state_dict(), optimizer.state_dict())), 'a.pt')  # here",
    "all of several": "d = {k: v.state_dict() for k, v in args.optimizers.items()}\ntorch.save({'o': d}, 'a')  # here",
    "arguments": "save_checkpoint(model.state_dict(), optimizer.state_dict(), 'a.pt')  # here",
    "objects": "to_save = {'model': model, 'optimizer': optimizer}\nhandlers(trainer, to_save=to_save)  # here",
    "pickled": f"with open('a.pkl', 'wb') as f: pickle.dump({BARE}, f)  # here",
    "scheduler": f"torch.save({{**{BARE}, 'sched': scheduler.state_dict()}}, 'a.pt')  # here",
}


@pytest.mark.parametrize("name", SAVES)
def test_an_optimizer_without_its_scaler_is_told_where_it_is_written(name: str) -> None:
    source = main_with(SAVES[name])
    assert found(main=source, train=TRAIN) == [("main", line(source, "# here"), Confidence.HIGH)]


COMPLETE = {
    "beside it": f"torch.save({{**{BARE}, 'scaler': scaler.state_dict()}}, 'a.pt')",
    "an item": f"d = {BARE}\nif scaler.is_enabled(): d['amp'] = scaler.state_dict()\ntorch.save(d, 'a.pt')",
    "update": f"d = {BARE}\nd.update(scaler=scaler.state_dict())\ntorch.save(d, 'a.pt')",
    "a file of its own": f"torch.save({BARE}, 'a.pt')\ntorch.save(scaler.state_dict(), 'b.pt')",
    "the object": "to_save = {'model': model, 'optimizer': optimizer, 'scaler': scaler}\nhandlers(t, to_save=to_save)",
    "an argument": "save_checkpoint(model.state_dict(), optimizer.state_dict(), scaler=scaler)",
    "registered": f"register_for_checkpointing(scaler)\ntorch.save({BARE}, 'a.pt')",
    "whatever there is": f"d = {BARE}\nfor k, v in args.parts.items(): d[k] = v.state_dict()\ntorch.save(d, 'a.pt')",
    "all there are": f"torch.save({{'all': {{k: v.state_dict() for k, v in args.parts.items()}}, 'o': {BARE}}}, 'a')",
    "whatever is passed": f"torch.save({{**{BARE}, **args.extra}}, 'a.pt')",
    "weights alone": "torch.save(model.state_dict(), 'a.pt')",
    "not written": f"print({BARE})",
    "a summary": "summary = {'optimizer': optimizer}\nwith open('a.json', 'w') as f: json.dump(summary, f)",
    "the name of one": "torch.save({'model': model.state_dict(), 'optimizer': optimizer_name}, 'a.pt')",
    "a setting": "torch.save({'model': model.state_dict(), 'optimizer': args.optimizer}, 'a.pt')",
    "only the schedule": "torch.save({'scheduler': lr_scheduler.state_dict()}, 'a.pt')",
}


@pytest.mark.parametrize("name", COMPLETE)
def test_a_checkpoint_that_holds_the_scaler_or_no_optimizer_is_left_alone(name: str) -> None:
    assert found(main=main_with(COMPLETE[name]), train=TRAIN) == []


def test_a_helper_in_a_file_without_a_scaler_is_judged_by_the_programs_that_import_it() -> None:
    helper = f"import torch\ndef save(model, optimizer, path):\n    torch.save({BARE}, path)\n"
    plain = "from helper import save\ndef fit(m, o, loss):\n    loss.backward()\n    o.step()\n    save(m, o, 'a')\n"
    assert found(main=MAIN, train=TRAIN, helper=helper, other=plain) == []
    importing = "from helper import save\n" + main_with("save(model, optimizer, 'a.pt')\n")
    assert found(main=importing, train=TRAIN, helper=helper) == [("helper", 3, Confidence.HIGH)]
    saved = importing + "    torch.save(scaler.state_dict(), 'b.pt')\n"
    assert found(main=saved, train=TRAIN, helper=helper) == []


def test_a_state_that_one_function_gives_is_told_where_another_writes_it() -> None:
    source = main_with("torch.save(gather(model, optimizer), 'a.pt')  # here")
    source += f"\ndef gather(model, optimizer):\n    return {BARE}\n"
    assert found(main=source, train=TRAIN) == [("main", line(source, "# here"), Confidence.HIGH)]
    held = f"\ndef gather(model, optimizer):\n    state = {BARE}\n    return state\n"
    source = main_with("print(gather(model, optimizer))") + held
    assert found(main=source, train=TRAIN) == []


def test_a_library_that_can_scale_does_not_scale_for_everyone_who_imports_it() -> None:
    library = "import torch\nclass Timer: pass\ndef supervised(): return torch.amp.GradScaler('cuda')\n"
    source = f"from library import THING\nimport torch\ndef main(model, optimizer):\n    torch.save({BARE}, 'a.pt')\n"
    assert found(library=library, main=source.replace("THING", "Timer")) == []
    assert found(library=library, main=source.replace("THING", "supervised")) == [("main", 4, Confidence.HIGH)]


def test_what_a_package_hands_on_need_not_belong_together() -> None:
    scaled = (
        "import torch\nclass Scaled:\n    def __init__(self):\n        self.scaler = torch.amp.GradScaler('cuda')\n"
    )
    plain = f"import torch\nclass Plain:\n    def save(self, model, optimizer):\n        torch.save({BARE}, 'a')\n"
    sources = {
        "trainers/__init__": "from .scaled import Scaled\nfrom .plain import Plain\n",
        "trainers/scaled": scaled,
        "trainers/plain": plain,
        "run_scaled": "from trainers import Scaled\nScaled()\n",
        "run_plain": "from trainers import Plain\nPlain()\n",
    }
    assert found(**sources) == []
    both = sources | {"run_plain": "from trainers import Plain, Scaled\nScaled()\nPlain()\n"}
    assert [name for name, _, _ in found(**both)] == ["plain"]


@pytest.mark.parametrize(
    ("enabled", "expected"),
    [
        ("False", []),
        ("DTYPE == 'float16'", []),
        ("DTYPE == 'bfloat16'", ["main"]),
        ("args.amp", ["main"]),
    ],
)
def test_a_scaler_that_is_switched_off_has_no_state(enabled: str, expected: list[str]) -> None:
    source = f"DTYPE = 'bfloat16'\n{MAIN}".replace('GradScaler("cuda")', f'GradScaler("cuda", enabled={enabled})')
    source += f"    torch.save({BARE}, 'a.pt')\n"
    assert [name for name, _, _ in found(main=source, train=TRAIN.replace("scaler", "unused"))] == expected
    changed = source + "exec(open('settings.py').read())\n"
    if enabled != "False":
        assert [name for name, _, _ in found(main=changed, train=TRAIN.replace("scaler", "unused"))] == ["main"]


def test_a_scaler_out_of_sight_is_known_by_what_is_done_with_it() -> None:
    fit = "import torch\ndef fit(accel, optimizer, model):\n    accel.scaler.unscale_(optimizer)\n"
    source = f"{fit}    torch.save({BARE}, 'a')\n"
    assert found(main=source) == [("main", 4, Confidence.MEDIUM)]


WRAPPER = """
class {name}:
    def __init__(self, optimizer):
        self.optimizer, self.scaler = optimizer, torch.amp.GradScaler("cuda")

    def state_dict(self):
        {state}

    def load_state_dict(self, state):
        self.scaler.load_state_dict(state)
"""


@pytest.mark.parametrize(
    ("name", "state", "complete"),
    [
        ("LossScaler", "return self.scaler.state_dict()", False),
        ("OptimWrapper", "return {**self.optimizer.state_dict(), 'scaler': self.scaler.state_dict()}", True),
        ("Trainer", "state = super().state_dict(); state['s'] = self.scaler.state_dict(); return state", True),
    ],
)
def test_what_hands_on_the_state_of_its_scaler(name: str, state: str, complete: bool) -> None:
    source = main_with(f"torch.save({BARE}, 'a.pt')\n") + WRAPPER.format(name=name, state=state)
    assert bool(found(main=source, train=TRAIN)) is not complete


def test_handing_the_scaler_to_what_trains_keeps_no_state_of_it() -> None:
    """What a function of the project does with it is read there; what one of a library does is not known."""
    handed = MAIN.replace(
        "train(model, optimizer, scaler, loader)", "train(model, optimizer, scaler=scaler, loader=loader)"
    )
    saving = textwrap.indent(f"torch.save({BARE}, 'last.pt')\n", "    ")
    assert found(main=handed + saving, train=TRAIN) == [("main", line(handed + saving, "torch.save"), Confidence.HIGH)]
    writes = TRAIN + "    torch.save({'scaler': scaler.state_dict()}, 'scaler.pt')\n"
    assert found(main=handed + saving, train=writes) == []
    library = handed.replace("from train import train", "from engine import train")
    assert found(main=library + saving, train=TRAIN) == []
    named = handed.replace("train(model,", "train_and_save(model,").replace("import train", "import train_and_save")
    assert found(main=named + saving, train=TRAIN.replace("def train", "def train_and_save")) == []


def test_states_that_two_programs_gather_alike_are_held_against_the_one_that_scales() -> None:
    gather = "def gather(model, optimizer):\n    return {'m': model.state_dict(), 'o': optimizer.state_dict()}\n"
    plain = """
        import torch
        from gather import gather

        def main(model, optimizer, loss):
            loss.backward()
            torch.save(gather(model, optimizer), "a")
        """
    other = {"gather": gather, "train": TRAIN, "other": plain}
    scaled = found(**other, main=main_with("import gather\ntorch.save(gather.gather(model, optimizer), 'a')"))
    assert [place[0] for place in scaled] == ["main"]
    assert found(**other, main=MAIN) == []
