"""Settings: a text or a switch that some code sets by one option, and that other code goes by."""

from __future__ import annotations

import textwrap

import pytest

from tests.static.pathing import rules

_PROGRAM = """\
import argparse
import copy
import sys
import torch
from dataclasses import dataclass
{top}

def main(x):
    parser = argparse.ArgumentParser()
    group = parser.{group}
    group.add_argument("--fp16", action="store_true")
    group.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{setup}
    scaler = torch.amp.GradScaler("cuda") if args.{flag} else None
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=dtype is not None, dtype=dtype):
            loss = model(x).mean()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()

main(torch.randn(2, 4))
"""

_COMPARED = """
dtype = None
if {name} == "fp16":
    dtype = torch.float16
elif {name} == "bf16":
    dtype = torch.bfloat16
"""
_TAKEN = 'dtype = {{"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": None}}[{name}]'
_ASKED = 'dtype = {{"fp16": torch.float16, "bf16": torch.bfloat16}}.get({name})'

_SET = """
{name} = "fp32"
if args.fp16:
    {name} = "fp16"
elif args.bf16:
    {name} = "bf16"
"""

_CLASS = """
class Settings:
    def __init__(self, args):
        if args.fp16:
            self.precision = "fp16"
        elif args.bf16:
            self.precision = "bf16"
        else:
            self.precision = "fp32"
"""
_LATER = """
class Settings:
    def __init__(self, args):
        self.fp16 = args.fp16
        self.precision = "bf16" if args.bf16 else "fp32"
        self.check()

    def check(self):
        if self.fp16:
            self.precision = "fp16"
"""
_DATA = """
@dataclass
class Settings:
    fp16: bool = False
    bf16: bool = False
    precision: str = "fp32"

    def __post_init__(self):
        if self.fp16:
            self.precision = "fp16"
        elif self.bf16:
            self.precision = "bf16"
"""
_GIVEN = """
def settle(args):
    args.precision = "fp32"
    if args.bf16:
        args.precision = "bf16"
    if args.fp16:
        args.precision = "fp16"
    return args
"""
_ITEM = """
def settle(args, settings):
    if args.fp16:
        settings["precision"] = "fp16"
    else:
        settings["precision"] = "bf16" if args.bf16 else "fp32"
"""
_NAMED = """
def precision_of(args):
    if args.fp16:
        return "fp16"
    if args.bf16:
        return "bf16"
    return "fp32"
"""
_BUILT = """
def settings_of(args):
    settings = {"precision": "fp32", "epochs": 3}
    if args.fp16:
        settings["precision"] = "fp16"
    elif args.bf16:
        settings["precision"] = "bf16"
    return settings
"""
_EXCLUDING = """
def settle(args):
    if args.fp16:
        args.bf16 = False
"""
_REFUSING = """
def check(args):
    if args.fp16 and args.bf16:
        raise ValueError("one of them")
"""
_ASSERTING = """
def check(args):
    assert not (args.fp16 and args.bf16)
"""
_NESTED = """
def check(args):
    if args.fp16:
        if args.bf16:
            sys.exit("one of them")
"""
_SWITCHED = "dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None"

_WAYS = {
    "a name": ("", _SET.format(name="precision") + _TAKEN.format(name="precision")),
    "a name, compared": ("", _SET.format(name="precision") + _COMPARED.format(name="precision")),
    "an attribute": ("", _SET.format(name="args.precision") + _COMPARED.format(name="args.precision")),
    "a conditional expression": (
        "",
        'precision = "fp16" if args.fp16 else "bf16" if args.bf16 else "fp32"\n' + _ASKED.format(name="precision"),
    ),
    "a number of bits": (
        "",
        "bits = 32\nif args.fp16:\n    bits = 16\nelif args.bf16:\n    bits = 8\n"
        "dtype = torch.float16 if bits == 16 else torch.bfloat16 if bits == 8 else None",
    ),
    "a dict of arguments": (
        "",
        "given = {}\nif args.fp16:\n    given = {'dtype': torch.float16}\nelif args.bf16:\n"
        "    given = {'dtype': torch.bfloat16}\ndtype = given.get('dtype')",
    ),
    "a class": (_CLASS, "settings = Settings(args)\n" + _TAKEN.format(name="settings.precision")),
    "a method": (_LATER, "settings = Settings(args)\n" + _COMPARED.format(name="settings.precision")),
    "a dataclass": (_DATA, "settings = Settings(args.fp16, args.bf16)\n" + _ASKED.format(name="settings.precision")),
    "a function": (_GIVEN, "args = settle(args)\n" + _COMPARED.format(name="args.precision")),
    "an item": (
        _ITEM,
        "settings = vars(parser.parse_args())\nsettle(args, settings)\n" + _TAKEN.format(name='settings["precision"]'),
    ),
    "a copy": (
        _ITEM,
        "settings = vars(parser.parse_args())\nsettle(args, settings)\nsettings = copy.deepcopy(settings)\n"
        'precision = settings.get("precision", "fp32")\n' + _COMPARED.format(name="precision"),
    ),
    "a returned text": (_NAMED, "precision = precision_of(args)\n" + _ASKED.format(name="precision")),
    "a returned dict": (_BUILT, "settings = settings_of(args)\n" + _COMPARED.format(name='settings["precision"]')),
    "an option that excludes another": (_EXCLUDING, "settle(args)\n" + _SWITCHED),
    "options that are refused together": (_REFUSING, "check(args)\n" + _SWITCHED),
    "options that an assertion excludes": (_ASSERTING, "check(args)\n" + _SWITCHED),
    "a check in a check": (_NESTED, "check(args)\n" + _SWITCHED),
    "an error of the parser": ("", 'if args.fp16 and args.bf16:\n    parser.error("one of them")\n' + _SWITCHED),
    "options of one group": ("", _SWITCHED),
}
_GROUP = {"options of one group": "add_mutually_exclusive_group()"}


def _program(way: str, flag: str) -> str:
    top, setup = _WAYS[way]
    group = _GROUP.get(way, "add_argument_group()")
    return _PROGRAM.format(top=top, setup=textwrap.indent(setup.strip(), "    "), flag=flag, group=group)


@pytest.mark.parametrize("way", _WAYS)
def test_the_option_that_builds_the_scaler_settles_the_dtype(way: str) -> None:
    assert rules(_program(way, "fp16")) == set()


@pytest.mark.parametrize("way", _WAYS)
def test_the_other_option_builds_a_scaler_for_bfloat16(way: str) -> None:
    assert "AMP213" in rules(_program(way, "bf16"))
