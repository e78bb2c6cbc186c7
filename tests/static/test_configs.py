"""``config`` detectors: dicts in the code, JSON files by name and in folders; what is none is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from amp_audit import rulebook
from amp_audit.model import Finding
from amp_audit.static.check import check
from tests.static.found import lines

BOOK = rulebook.load()
BOTH = {"train_batch_size": 8, "fp16": {"enabled": True}, "bf16": {"enabled": True}}


def findings(*paths: Path) -> list[Finding]:
    return [finding for finding in check(list(paths), BOOK).findings if finding.rule.startswith("AMP8")]


def test_a_file_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import deepspeed\n")
    path = tmp_path / "configs" / "ds_zero2.json"
    path.parent.mkdir()
    path.write_text(json.dumps(BOTH, indent=2))
    (finding,) = findings(tmp_path)
    place = finding.location
    assert finding.rule == "AMP801" and place is not None and place.path == str(path)
    line = path.read_text().split("\n")[place.line - 1]
    assert place.line == 7 and line[place.column - 1 : (place.end_column or 0) - 1] == "true"


def test_a_file_by_its_name_whatever_that_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"fp16": {"enabled": True, "min_loss_scale": 1e-10}}))
    assert [finding.rule for finding in findings(path)] == ["AMP805"]
    assert check([path], BOOK).coverage.files_checked == 1


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1, 2]",
        '{"fp16": true, "bf16": true}',
        '{"fp16": {"enabled": "auto"}, "bf16": {"enabled": true}}',
        '{"fp16": {"enabled": false}, "bf16": {"enabled": true}}',
        '{"fp16": {"enabled": 1}, "bf16": {"enabled": true}}',
        '{"fp16": {"enabled": true, "min_loss_scale": 1}}',
        '{"other": {"fp16": {"enabled": true}, "bf16": {"enabled": true}}}',
        '{"fp16": {"enabled": true}, "bf16": []}',
        "[" * 100_000,
        "",
    ],
)
def test_what_is_right_or_no_configuration(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text(text)
    assert findings(path) == []


def test_other_json_of_a_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import deepspeed\n")
    (tmp_path / "annotations.json").write_text(json.dumps(BOTH))
    assert findings(tmp_path) == []
    (tmp_path / "deepspeed.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(BOTH).encode())
    assert len(findings(tmp_path)) == 1


@pytest.mark.parametrize(
    ("code", "marked"),
    [
        ("c = dict(fp16=dict(enabled=True),\n    bf16=dict(enabled=True))\n", [2]),
        ("c = {'a': {'fp16': {'enabled': True},\n 'bf16': {'enabled': True}}}\n", [2]),
        ("c = {**base, 'fp16': {'enabled': True}, key: {'enabled': True}}\n", []),
        ("c = {'fp16': {'enabled': on}, 'bf16': {'enabled': True}}\n", []),
        ("c = {'fp16': {'enabled': True, 'min_loss_scale': 2.0**-10}}\n", [1]),
    ],
)
def test_dicts_in_the_code(tmp_path: Path, code: str, marked: list[int]) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"{code}import deepspeed\n")
    assert [finding.location.line for finding in findings(path) if finding.location] == marked


FILLED = """
import deepspeed


def config(args):
    BODY
    return found


def main(args, model):
    deepspeed.initialize(model=model, config=config(args))
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('found = {"fp16": {"enabled": True}}\n    found["bf16"] = {"enabled": True}  # here', True),
        (
            'found = dict(zero=1)\n    found["fp16"] = dict(enabled=True)\n'
            '    found.update({"bf16": {"enabled": True}})  # here',
            True,
        ),
        ('found = {"fp16": {"enabled": True}, "bf16": {}}\n    found["bf16"]["enabled"] = True  # here', True),
        ('found = {"fp16": {"enabled": True}}\n    found["bf16"] = {"enabled": args.bf16}', False),
        ('found = {"fp16": {"enabled": True}}\n    if args.bf16:\n        found["bf16"] = {"enabled": True}', False),
        (
            'found = {}\n    found["bf16"] = {"enabled": True}\n    found["fp16"] = {"enabled": True}\n'
            '    if args.bf16:\n        found["fp16"] = {"enabled": False}',
            False,
        ),
        (
            'found = {}\n    found["bf16"] = {"enabled": True}\n    found["fp16"] = {"enabled": True}\n'
            '    found["fp16"]["enabled"] = False',
            False,
        ),
        (
            'found = {}\n    found["fp16"] = {"enabled": True}\n    other = {}\n    other["bf16"] = {"enabled": True}',
            False,
        ),
        *(
            ('found = {"fp16": {"enabled": True}}\n    ' + between + '\n    found["bf16"] = {"enabled": True}', False)
            for between in (
                'old = found.pop("fp16")',
                "if args.again:\n        found = {}",
                "found, extra = args.load(), 1",
                "with open(args.file) as file:\n        found = args.load(file)",
                "for found in args.all:\n        pass",
                "del found",
            )
        ),
    ],
)
def test_dicts_that_are_filled_key_by_key(body: str, told: bool, tmp_path: Path) -> None:
    program = FILLED.replace("BODY", body)
    here = [number for number, line in enumerate(program.split("\n"), 1) if line.endswith("# here")]
    assert lines(tmp_path, "AMP801", program) == here and bool(here) is told
