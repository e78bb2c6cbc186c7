"""Arguments that a call has from a dict it unpacks, and from the defaults of a dataclass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.static.found import lines

_SCALER = "import torch\n{before}\ns = torch.amp.GradScaler('cuda', {given})\n"


@pytest.mark.parametrize(
    ("before", "given", "found"),
    [
        ("kw = {'growth_factor': 1.0}", "**kw", True),
        ("kw = dict(growth_factor=1.0)", "**kw", True),
        ("", "**{'growth_factor': 1.0}", True),
        ("kw = {'growth_factor': 1.0, 'enabled': False}", "**kw", False),
        ("kw = {'growth_factor': 1.0}; kw['growth_factor'] = 2.0", "**kw", False),
        ("kw = {'growth_factor': 1.0}; kw.update(growth_factor=2.0)", "**kw", False),
        ("kw = {'growth_factor': 1.0}; kw |= other", "**kw", False),
        ("kw = {'growth_factor': 1.0}; del kw['growth_factor']", "**kw", False),
        ("kw = {'growth_factor': 1.0} if ok else {}", "**kw", False),
        ("kw = {'growth_factor': 1.0, **other}", "**kw", False),
        ("kw = dict(other, growth_factor=1.0)", "**kw", False),
        ("def f(**kw): return kw\nkw = f(growth_factor=1.0)", "**kw", False),
    ],
)
def test_a_call_has_the_arguments_of_a_dict_that_stays_as_it_was_made(
    before: str, given: str, found: bool, tmp_path: Path
) -> None:
    source = _SCALER.format(before=before, given=given)
    assert bool(lines(tmp_path, "AMP110", source)) is found


_FIELDS = (
    "import torch, dataclasses\nfrom dataclasses import dataclass, field\n{decorator}\nclass C:\n"
    "    on: int = {default}\n{after}\nwith torch.autocast('cuda', enabled=c.on):\n    pass\n"
)


@pytest.mark.parametrize(
    ("decorator", "default", "after", "found"),
    [
        ("@dataclass", "1", "c = C()", True),
        ("@dataclasses.dataclass(frozen=True)", "field(default=1)", "c = C()", True),
        ("@dataclass", "1", "def make():\n    return C()\nc = make()", True),
        ("", "1", "c = C()", False),
        ("@dataclass", "True", "c = C()", False),
        ("@dataclass", "field(default_factory=flag)", "c = C()", False),
        ("@dataclass", "1", "c = C(on=True)", False),
        ("@dataclass", "1", "c = C(True)", False),
        ("@dataclass", "1", "c = C(**given)", False),
        ("@dataclass", "1", "c = parse(C)", False),
        ("@dataclass", "1", "c = C()\nc.on = True", False),
        ("@dataclass", "1", "c = C()\nfor k in ks:\n    setattr(c, k, v)", False),
        ("@dataclass", "1", "c = C()\nc = c.on", False),
    ],
)
def test_a_field_that_nobody_sets_has_its_default(
    decorator: str, default: str, after: str, found: bool, tmp_path: Path
) -> None:
    source = _FIELDS.format(decorator=decorator, default=default, after=after)
    assert bool(lines(tmp_path, "AMP104", source)) is found


_NESTED = (
    "import torch, attrs\nfrom dataclasses import dataclass, field\n@dataclass\nclass C:\n    on: int = 1\n"
    "{decorator}\nclass D:\n    c: C = {default}\nd = D({given})\nc = d.c\n"
    "with torch.autocast('cuda', enabled=c.on):\n    pass\n"
)


@pytest.mark.parametrize(
    ("decorator", "default", "given", "found"),
    [
        ("@dataclass", "field(default_factory=C)", "", True),
        ("@dataclass", "field(default_factory=lambda: C())", "", True),
        ("@attrs.define", "attrs.field(factory=C)", "", True),
        ("@dataclass", "field(default_factory=lambda: C(on=True))", "", False),
        ("@dataclass", "field(default_factory=make)", "", False),
        ("@dataclass", "field(default_factory=C)", "c=C(on=True)", False),
        ("@dataclass", "field(default_factory=C)", "**given", False),
    ],
)
def test_a_field_holds_what_its_factory_makes(
    decorator: str, default: str, given: str, found: bool, tmp_path: Path
) -> None:
    source = _NESTED.format(decorator=decorator, default=default, given=given)
    assert bool(lines(tmp_path, "AMP104", source)) is found
