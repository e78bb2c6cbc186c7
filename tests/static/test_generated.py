"""Generated programs, whole and damaged: nothing crashes, every file is accounted for, every place exists."""

from __future__ import annotations

import ast
import json
import tempfile
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amp_audit import rulebook
from amp_audit.static.check import check

BOOK = rulebook.load()
NAMES = ("scaler", "model", "optimizer", "loss", "x", "self", "torch", "amp", "ctx", "flag", "train", "é")
ATTRIBUTES = (
    "scale",
    "backward",
    "unscale_",
    "step",
    "update",
    "zero_grad",
    "half",
    "to",
    "state_dict",
    "grad",
    "scaler",
)
CALLED = (
    "torch.amp.GradScaler",
    "torch.cuda.amp.autocast",
    "torch.autocast",
    "torch.optim.SGD",
    "torch.nn.Linear",
    "torch.nn.utils.clip_grad_norm_",
    "torch.autograd.grad",
    "torch.save",
    "functools.partial",
    "contextlib.nullcontext",
    "train",
    "Net",
)
LITERALS = ("0", "1e-8", "-1e9", "True", "None", "'cuda'", "'fp16'", "torch.float16", "b''", "...", "0x_f")
EXPRESSIONS = (
    "{e}.{a}",
    "{e}.{a}({e})",
    "{c}({e}, enabled={e})",
    "{c}({e}, *{e}, **{e})",
    "{e}[{e}]",
    "({e} + {e})",
    "({e} and {e})",
    "({e} is not {e})",
    "({e} if {e} else {e})",
    "(lambda {n}: {e})",
    "[{e} for {n} in {e} if {e}]",
    "{{{e}: {e}, **{e}}}",
    "({e}, *{e})",
    "(y := {e})",
    "f'{{{n}!r:>{{{n}}}}}'",
    "(not {e})",
    "-{e}",
)
SIMPLE = (
    "{e}",
    "{n} = {e}",
    "self.{a} = {e}",
    "{n}, {n} = {e}",
    "{n} += {e}",
    "{n}: {e} = {e}",
    "scaler.scale({e}).backward()",
    "scaler.step({n})",
    "scaler.unscale_({n})",
    "scaler.update()",
    "return {e}",
    "yield {e}",
    "del {n}",
    "assert {e}, {e}",
    "raise {e}",
    "pass",
    "global scaler",
    "{n}  # amp-audit: ignore[AMP202]",
    "{n}  # amp-audit: ignore-begin[AMP101]",
    "import a",
    "from b import *",
    "from torch.cuda import amp",
    "from a import train as train",
    "from . import b",
)
COMPOUND = (
    "if {e}:\n{b}\nelse:\n{b}",
    "for {n} in {e}:\n{b}",
    "while {e}:\n{b}",
    "with {e}:\n{b}",
    "with torch.autocast('cuda') as {n}, {e}:\n{b}",
    "try:\n{b}\nexcept {e} as {n}:\n{b}\nfinally:\n{b}",
    "match {e}:\n    case {{'a': {n}}}:\n        pass\n    case 1:\n        pass",
    "def {n}(first, *args, flag={e}, **more):\n{b}",
    "@{e}\ndef train(x):\n{b}",
    "class Net({e}):\n{b}",
    "async def train(x):\n{b}",
)


class Grammar:
    """Writes programs about mixed precision, most of them nonsense."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def expression(self, depth: int) -> str:
        if depth == 0:
            return self.random.choice(NAMES + LITERALS)
        return self.filled(self.random.choice(EXPRESSIONS), depth - 1)

    def statement(self, depth: int) -> str:
        kinds = SIMPLE if depth == 0 or self.random.random() < 0.5 else COMPOUND
        return self.filled(self.random.choice(kinds), depth)

    def filled(self, shape: str, depth: int) -> str:
        """A shape with something new at each of its places."""
        choice, inner = self.random.choice, max(0, depth - 1)
        made = {
            "{e}": lambda: self.expression(self.random.randint(0, min(2, depth))),
            "{b}": lambda: "\n".join(f"    {line}" for line in self.block(inner).split("\n")),
            "{n}": lambda: choice(NAMES),
            "{a}": lambda: choice(ATTRIBUTES),
            "{c}": lambda: choice(CALLED),
        }
        text = shape
        for place, make in made.items():
            while place in text:
                text = text.replace(place, make().replace("{", "\0").replace("}", "\1"), 1)
        return text.replace("{{", "{").replace("}}", "}").replace("\0", "{").replace("\1", "}")

    def block(self, depth: int) -> str:
        return "\n".join(self.statement(depth) for _ in range(self.random.randint(1, 4)))

    def program(self) -> str:
        return f"import torch\n{self.block(3)}\n"


PROGRAMS = st.integers(0, 2**32).map(lambda seed: Grammar(Random(seed)).program())
BRIEF = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def checked(files: dict[str, bytes]) -> None:
    """Check files, and what may be asked of every check."""
    with tempfile.TemporaryDirectory() as place:
        for name, data in files.items():
            Path(place, name).write_bytes(data)
        result = check([place], BOOK)
        coverage = result.coverage
        assert not [note for note in coverage.notes if "internal error" in note], coverage.notes
        assert coverage.files_checked + coverage.files_skipped + coverage.files_failed == len(files)
        assert len({finding.fingerprint for finding in result.findings}) == len(result.findings)
        for finding in result.findings:
            spot = finding.location
            assert spot is not None and finding.message
            text = Path(spot.path).read_bytes().decode("utf-8", "replace")
            lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            assert spot.cell is not None or 1 <= spot.line <= len(lines)
            assert spot.cell is not None or 1 <= spot.column <= len(lines[spot.line - 1]) + 2


@BRIEF
@given(st.lists(PROGRAMS, min_size=1, max_size=3))
def test_generated_programs(programs: list[str]) -> None:
    checked({f"{name}.py": program.encode() for name, program in zip("abc", programs)})


@BRIEF
@given(PROGRAMS, st.integers(0, 400), st.integers(0, 40), st.binary(max_size=3))
def test_damaged_programs(program: str, start: int, length: int, instead: bytes) -> None:
    data = program.encode()
    checked({"a.py": data[:start] + instead + data[start + length :]})


@BRIEF
@given(st.lists(PROGRAMS, max_size=3), st.sampled_from(["", "%matplotlib inline\n", "!ls\n", "%%time\n", "    "]))
def test_generated_notebooks(programs: list[str], before: str) -> None:
    cells = [{"cell_type": "code", "source": before + program} for program in programs]
    checked({"n.ipynb": json.dumps({"cells": cells, "metadata": {}}).encode()})


def test_most_generated_programs_are_python() -> None:
    """Else the tests above would be about errors only."""
    refused = 0
    for seed in range(300):
        try:
            ast.parse(Grammar(Random(seed)).program())
        except SyntaxError:
            refused += 1
    assert refused < 60
