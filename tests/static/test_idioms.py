"""What correct programs do, as people write it: ``idioms`` holds one small program each, and none may be flagged.

Silence alone proves little, so many of them are broken again by one change each: then the rule that the idiom keeps
must speak.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import amp_audit
from amp_audit.model import Severity
from amp_audit.settings import Settings

IDIOMS = sorted(path for path in (Path(__file__).parent / "idioms").iterdir() if path.name.startswith("n"))
ALLOWED = {"n62": {"AMP302"}}
"""A backward in the region of its own iteration costs nothing but clarity; it deserves a warning and no more."""


def found(files: dict[str, str], folder: Path) -> set[str]:
    """The rules that find something of warning or above, save for deprecated spellings."""
    for name, code in files.items():
        (folder / name).write_text(code, encoding="utf-8")
    report = amp_audit.check(folder, settings=Settings(root=folder))
    assert report.coverage.files_failed == 0
    assert report.coverage.notes == ()
    told = {finding.rule for finding in report.findings if finding.severity >= Severity.WARNING}
    return told - {"AMP101"}


def sources(idiom: Path) -> dict[str, str]:
    paths = sorted(idiom.glob("*.py")) if idiom.is_dir() else [idiom]
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda path: path.stem)
def test_an_idiom_is_not_flagged(idiom: Path, tmp_path: Path) -> None:
    assert found(sources(idiom), tmp_path) == ALLOWED.get(idiom.stem[:3], set())


def test_all_idioms_are_there() -> None:
    assert [path.stem[:3] for path in IDIOMS] == [f"n{number:02}" for number in range(1, 66)]


BROKEN = [
    ("n01", "                self._scaler.unscale_(optimizer)\n", "", "AMP202"),
    ("n01", '        state["scaler"] = loss_scaler.state_dict()', "        pass", "AMP701"),
    (
        "n02",
        "            self._scaler.unscale_(optimizer)\n            norm = torch",
        "            norm = torch",
        "AMP202",
    ),
    ("n03", "            self.grad_scaler.unscale_(self.optimizer)\n", "", "AMP202"),
    ("n04", "scaler.scale(loss).backward()", "loss.backward()", "AMP209"),
    ("n05", "    scaler.update()\n", "", "AMP205"),
    ("n07", "            scaler.unscale_(optimizer)\n", "", "AMP202"),
    ("n08", "        if step % args.acc", "        scaler.unscale_(optimizer)\n        if step % args.acc", "AMP207"),
    ("n09", "                scaler.unscale_(optimizer)\n", "", "AMP202"),
    ("n10", "                fp16_scaler.unscale_(optimizer)\n", "", "AMP202"),
    ("n11", "        scaler.update()\n", "", "AMP205"),
    ("n12", "accelerator.backward(loss)", "loss.backward()", "AMP803"),
    ("n13", "self.scaler.step(self.optimizer, closure)", "self.optimizer.step(closure)", "AMP203"),
    ("n20", "        scaler.unscale_(optimizer)\n", "", "AMP202"),
    ("n23", "        grad_scaler.update()\n", "", "AMP205"),
    ("n24", "                scaler.unscale_(optimizer)\n", "", "AMP202"),
    (
        "n25",
        "        scaler.step(optim_d)\n",
        "        scaler.step(optim_d)\n        scaler.update()\n        scaler.update()\n",
        "AMP206",
    ),
    ("n26", "self.d_scaler.step(self.d_optimizer)", "self.d_optimizer.step()", "AMP203"),
    ("n27", "scaler.scale(loss_g).backward()", "loss_g.backward()", "AMP204"),
    ("n29", "    scaler.unscale_(optimizer)\n", "", "AMP202"),
    ("n30", "accelerator.clip_grad_norm_(unet", "torch.nn.utils.clip_grad_norm_(unet", "AMP803"),
    ("n32", "model.half().float()", "model.half()", "AMP403"),
    ("n33", "    optimizer = torch.optim.SGD", "    model.half()\n    optimizer = torch.optim.SGD", "AMP403"),
    ("n35", "dtype=torch.bfloat16", "dtype=torch.float16", "AMP201"),
    ("n37", "            self.scaler.scale(loss).backward()", "            loss.backward()", "AMP209"),
    ("n40", "        scaler.step(optimizer)\n", "        optimizer.step()\n", "AMP203"),
    ("n42", "            self.loss_scaler.unscale_(self.optimizer)\n", "", "AMP202"),
    ("n43", "        scaler.unscale_(optimizer)\n", "", "AMP202"),
    ("n44", "            scaler.unscale_(optimizer)\n", "", "AMP202"),
    ("n49", '                "scaler": scaler.state_dict(),\n', "", "AMP701"),
    ("n51", "            scaler.unscale_(optimizer)\n", "            optimizer.step()\n", "AMP203"),
    ("n53", "        scaler.unscale_(optim)\n", "", "AMP202"),
    ("n54", "torch.finfo(scores.dtype).min", "-1e9", "AMP501"),
    ("n55", "enabled=False", "enabled=True", "AMP315"),
    ("n59", "        self.scaler.unscale_(self.optimizer)\n", "", "AMP202"),
    ("n60", "        scaler.step(optimizer)\n", "        optimizer.step()\n", "AMP203"),
    ("n62", "            scaler.step(optimizer)\n", "                scaler.step(optimizer)\n", "AMP303"),
    ("n63", "    scaler.update()\n", "", "AMP205"),
    ("n65", "                scaler.unscale_(optimizer)\n", "", "AMP202"),
]
"""Idiom, a text in it, what takes its place, the rule that must speak then."""


@pytest.mark.parametrize(("name", "text", "instead", "rule"), BROKEN)
def test_an_idiom_that_is_broken_is_flagged(name: str, text: str, instead: str, rule: str, tmp_path: Path) -> None:
    files = sources(next(path for path in IDIOMS if path.stem.startswith(name)))
    assert sum(code.count(text) for code in files.values()) == 1
    assert rule in found({path: code.replace(text, instead) for path, code in files.items()}, tmp_path)
