"""What the report says of an emulated run, and of another torch's autocast lists."""

from __future__ import annotations

from dataclasses import replace

from amp_audit.report import emulated
from amp_audit.trace.schema import Header


def header(**given: object) -> Header:
    made = Header(1, "0", "2.13.0+cpu", "3.11", "NVIDIA A100", "cuda", 0, 1, (), "", "default", None, "")
    return replace(made, **given)  # type: ignore[arg-type]


def test_a_real_run_has_nothing_to_say() -> None:
    assert list(emulated.story(header())) == []


def test_the_head_says_what_was_emulated_and_whose_lists_were_in_force() -> None:
    first, *_, last = emulated.story(header(emulated="cuda:sm90"))
    assert first.startswith("CUDA WAS EMULATED on the CPU, as NVIDIA H100") and "compute capability 9.0" in first
    assert last == "autocast's lists: CUDA's of torch 2.13.0 (unchanged since 2.13)"
    assert any("no tensor cores for bfloat16" in line for line in emulated.story(header(emulated="cuda:sm75")))
    assert next(emulated.story(header(emulated="cuda", dry=True))).startswith("DRY RUN of one step")


def test_another_torch() -> None:
    (line,) = emulated.other_torch(header(), "2.11")
    assert "rms_norm (float32 here, as it comes there)" in line and "Run it with torch 2.11" in line
    assert list(emulated.other_torch(header(), "2.14.1")) == []
    assert list(emulated.other_torch(header(torch="2.7.0"), "2.11")) == []
