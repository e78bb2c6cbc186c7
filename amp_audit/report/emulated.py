"""What the report's head says of a run on an emulated device, and of a run for another torch than the one it ran on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from amp_audit import policy
from amp_audit.chips import parse
from amp_audit.report.content import Report
from amp_audit.report.words import listed
from amp_audit.trace.schema import Header


def story(header: Header) -> Iterator[str]:
    """One sentence each; nothing for a run on the device that was there."""
    if header.emulated is None:
        return
    chip = parse(header.emulated).chip
    if header.dry:
        yield (
            "DRY RUN of one step: operators, shapes, dtypes and casts are real, large tensors were not computed; what "
            "needs values is missing (underflow, non-finite values, lost updates, the loss scale's course)"
        )
    device = header.emulated.partition(":")[0].upper()
    capability = f" (compute capability {chip.major}.{chip.minor})" if chip.major else ""
    yield (
        f"{device} WAS EMULATED on the CPU, as {chip.name}{capability}: "
        f"dtypes, casts and which operators run are {device}'s, values are rounded as there except where the CPU's "
        "kernels round otherwise; times, memory and random numbers are not those of a GPU"
    )
    if not chip.bfloat16:
        yield f"{chip.name} has no tensor cores for bfloat16: what runs in it there is slower than in float16"
    yield f"autocast's lists: {table(header)}"


def table(header: Header) -> str:
    """The lists that were in force: ``CUDA's of torch 2.13.0 (unchanged since 2.12)``."""
    lists = policy.lists(header.policy, _release(header.torch))
    return f"{header.policy.upper()}'s of torch {_release(header.torch)} (unchanged since {lists.since})"


def _release(torch: str) -> str:
    return torch.partition("+")[0]


_NAMED = re.compile(r"[dD]imname|names_")
"""Overloads for named tensors, which torch 2.13 dropped."""


def for_torch(report: Report, wanted: str | None) -> Report:
    """A report that also says what autocast of another torch does otherwise; the same one when none is asked for."""
    if wanted is None or report.summary is None:
        return report
    return replace(report, notes=(*report.notes, *other_torch(report.summary.header, wanted)))


def other_torch(header: Header, wanted: str) -> Iterator[str]:
    """What autocast of torch ``wanted`` does otherwise than that of the torch that ran, on the run's device."""
    here, there = (policy.lists(header.policy, release) for release in (_release(header.torch), wanted))
    if here.since == there.since:
        return
    names = sorted({name for name in (*here.table, *there.table) if here.kind(name) != there.kind(name)})
    shown = [name for name in names if not name.endswith(".*") and not _NAMED.search(name)]
    if shown:
        what = [f"{n} ({here.kind(n) or 'as it comes'} here, {there.kind(n) or 'as it comes'} there)" for n in shown]
        yield (
            f"this ran under {table(header)}; those of torch {wanted} differ: {listed(what)}. "
            f"Run it with torch {wanted} to see what they do"
        )
