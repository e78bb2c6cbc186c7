"""Traces: what is written is what is read, whatever became of the writer."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_audit.trace import ranks, reader
from amp_audit.trace.schema import (
    PHASES,
    VERSION,
    CastRow,
    End,
    EventRow,
    Header,
    Number,
    OpRow,
    Place,
    StepRecord,
    from_json,
    to_json,
)
from amp_audit.trace.writer import Writer, encode


def header(rank: int = 0, world: int = 1) -> Header:
    return Header(
        VERSION, "0", "2", "3", "cpu", "cpu", rank, world, ("train.py", "--x"), "/", "all", 5, "now", {"a": 1}
    )


def write(folder: Path, *steps: StepRecord, rank: int = 0, end: End | None = None) -> Path:
    complaints: list[str] = []
    writer = Writer(folder, complaints.append)
    writer.open(header(rank))
    for step in steps:
        writer.step(step)
    if end is not None:
        writer.end(end)
    writer.close()
    assert complaints == [] and writer.path is not None
    return writer.path


words = st.text(max_size=5)
maybe = st.none() | words
numbers = st.integers(0, 2**60)
places = st.builds(
    Place,
    path=maybe,
    line=st.none() | numbers,
    column=st.none() | numbers,
    function=maybe,
    module=maybe,
    user_path=maybe,
)
ops = st.builds(
    OpRow,
    phase=st.sampled_from(PHASES),
    op=words,
    inputs=st.lists(words, max_size=3).map(tuple),
    output=maybe,
    place=places,
    autocast=maybe,
    calls=numbers,
    elements=numbers,
    bytes=numbers,
    flops=st.none() | numbers,
)
casts = st.builds(
    CastRow,
    phase=st.sampled_from(PHASES),
    source=words,
    target=words,
    place=places,
    calls=numbers,
    nonzero=st.none() | numbers,
)
events = st.builds(
    EventRow,
    kind=words,
    place=places,
    owners=st.none() | st.lists(numbers, max_size=2).map(tuple),
    contents=st.lists(words, max_size=2).map(tuple),
    skipped=st.booleans(),
    scaled=st.none() | st.booleans(),
    enabled=st.none() | st.booleans(),
)
measured = st.builds(
    Number,
    name=words,
    place=st.none() | places,
    values=st.dictionaries(words, st.none() | st.floats(allow_nan=False, allow_infinity=False) | numbers, max_size=3),
)
steps = st.builds(
    StepRecord,
    step=numbers,
    recorded=st.booleans(),
    ops=st.lists(ops, max_size=3),
    casts=st.lists(casts, max_size=2),
    events=st.lists(events, max_size=3),
    numbers=st.lists(measured, max_size=2),
    lines=st.dictionaries(words, st.lists(numbers, max_size=2), max_size=2),
)
ends = st.builds(End, reason=words, program_exit=st.none() | numbers, steps=numbers, notes=st.lists(words, max_size=2))


@given(steps | ends | st.just(header()))
def test_records_survive_json(record: Any) -> None:
    assert from_json(json.loads(encode(to_json(record)))) == record


def test_defined_rows_are_put_together_again(tmp_path: Path) -> None:
    writer = Writer(tmp_path, pytest.fail)
    writer.open(header())
    place = Place("/a.py", 3, 1, 9, "f", "fc", "/a.py", 3)
    op = OpRow("forward", "aten.mm", ("float16", "float16"), "float16", place, "float16")
    cast = CastRow("backward", "float32", "float16", place)
    assert (writer.define_op(op), writer.define_cast(cast)) == (0, 0)
    writer.step(StepRecord(1, recorded=True), [[0, 2, 30, 60, 90, 700]], [[0, 1, 5, 10, 2, 4, 3, 2, 1, 0]])
    assert writer.define_op(OpRow("other", "aten.add.Tensor", ("float32",), "float32", Place(), None)) == 1
    writer.step(StepRecord(2, recorded=True), [[1, 1, 1, 4, 8], [0, 1, 15, 30, 45, 350]], [[0, 1, 5, 10]])
    writer.close()
    (trace,) = reader.read(tmp_path)
    assert trace.steps[0].ops == [
        OpRow("forward", "aten.mm", op.inputs, "float16", place, "float16", 2, 30, 60, 90, 700)
    ]
    assert trace.steps[0].casts == [CastRow("backward", "float32", "float16", place, 1, 5, 10, 2, 4, 3, 2, 1, 0)]
    assert [(row.op, row.calls, row.flops) for row in trace.steps[1].ops] == [
        ("aten.add.Tensor", 1, None),
        ("aten.mm", 1, 350),
    ]
    assert trace.steps[1].casts[0].nonzero is None
    assert (op.calls, cast.calls) == (0, 0)


def test_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    number = Number("loss", values={"value": math.nan, "limit": -math.inf, "fine": 1e-30})
    file = write(tmp_path, StepRecord(1, recorded=False, numbers=[number], seconds=math.inf))
    for line in file.read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    (trace,) = reader.read(tmp_path)
    assert trace.steps[0].numbers[0].values == {"value": None, "limit": None, "fine": 1e-30}


def test_text_that_is_no_unicode_is_written(tmp_path: Path) -> None:
    write(tmp_path, StepRecord(1, recorded=False, notes=["bad \udcff name", "line\u2028end"]))
    assert reader.read(tmp_path)[0].steps[0].notes == ["bad \udcff name", "line\u2028end"]


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.99])
def test_a_torn_last_line_is_ignored(tmp_path: Path, kept: float) -> None:
    file = write(tmp_path, StepRecord(1, recorded=False, notes=["x"]), StepRecord(2, recorded=False, notes=["y" * 50]))
    whole = file.read_bytes()
    last = whole.rstrip(b"\n").rindex(b"\n") + 1
    file.write_bytes(whole[: last + int((len(whole) - last - 1) * kept)])
    (trace,) = reader.read(tmp_path)
    assert ([step.step for step in trace.steps], trace.torn, trace.end) == ([1], True, None)


def test_parts_of_a_step_are_joined(tmp_path: Path) -> None:
    one = StepRecord(1, recorded=False, seconds=1.0, events=[EventRow("step", Place())], lines={"a": [1], "b": [2]})
    two = StepRecord(1, recorded=True, seconds=0.5, events=[EventRow("update", Place())], lines={"a": [3]})
    write(tmp_path, one, two, StepRecord(2, recorded=False), end=End("finished", 0, 2, lines={"b": [7]}))
    (trace,) = reader.read(tmp_path)
    first, second = trace.steps
    assert (first.step, first.recorded, first.seconds, second.step) == (1, True, 1.5, 2)
    assert [event.kind for event in first.events] == ["step", "update"]
    assert first.lines == {"a": [1, 3], "b": [2]}
    assert trace.lines == {"a": {1, 3}, "b": {2, 7}}


def test_what_is_no_trace_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(reader.TraceError, match="no such folder"):
        reader.read(tmp_path / "absent")
    with pytest.raises(reader.TraceError, match=r"holds no rank-N\.jsonl"):
        reader.read(tmp_path)
    file = tmp_path / "rank-0.jsonl"
    with pytest.raises(reader.TraceError, match="not a trace folder"):
        reader.read(write(tmp_path, StepRecord(1, recorded=False)))
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], "garbage", lines[1]]))
    with pytest.raises(reader.TraceError, match=r"rank-0.jsonl:2: not a trace record"):
        reader.read(tmp_path)
    file.write_text(lines[1] + "\n")
    with pytest.raises(reader.TraceError, match=r":1: a trace begins with its header"):
        reader.read(tmp_path)
    file.write_text(lines[0].replace(f'"schema":{VERSION}', '"schema":99') + "\n")
    with pytest.raises(reader.TraceError, match="version 99"):
        reader.read(tmp_path)
    # Written before rows said what they read: their counts have other places. Its header may hold anything else.
    old = '{"type":"header","schema":1,"amp_audit":"0.0.9","renamed":3}'
    step = '{"type":"step","step":1,"recorded":true,"ops":[[0,1,2,3,4]]}'
    for text in (old, f"{old}\n{step}\n{step}\n"):
        file.write_text(text)
        with pytest.raises(
            reader.TraceError, match=r"written by amp-audit 0.0.9 as trace version 1; .* record the run"
        ):
            reader.read(tmp_path)
    file.write_text(lines[0][:20])
    assert reader.read(tmp_path) == []


def test_ranks_are_read_in_order_and_never_overwritten(tmp_path: Path) -> None:
    names = [write(tmp_path, rank=rank).name for rank in (10, 2, 2)]
    assert names == ["rank-10.jsonl", "rank-2.jsonl", "rank-2.1.jsonl"]
    assert [trace.header.rank for trace in reader.read(tmp_path)] == [2, 2, 10]


def test_a_full_disk_is_said_once(tmp_path: Path) -> None:
    complaints: list[str] = []
    writer = Writer(tmp_path, complaints.append)
    writer.open(header())
    assert writer._file is not None
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._file)
    os.close(full)
    for number in range(3):
        writer.step(StepRecord(number, recorded=False))
    writer.end(End("finished", 0, 3))
    assert len(complaints) == 1 and "No space left" in complaints[0]
    (trace,) = reader.read(tmp_path)
    assert trace.steps == [] and trace.end is None


def test_a_trace_that_breaks_off_says_so_in_the_room_of_what_did_not_fit(tmp_path: Path) -> None:
    complaints: list[str] = []
    writer = Writer(tmp_path, complaints.append)
    writer.open(header())
    writer.step(StepRecord(1, recorded=False))
    real, room = os.write, 40

    def almost_full(file: int, data: bytes) -> int:
        """A short write, and then no room is left."""
        nonlocal room
        if room == 0 and len(data) > 150:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(file, bytes(data)[: room or None])
        room = 0
        return written

    with mock.patch("os.write", almost_full):
        writer.step(StepRecord(2, recorded=False, notes=["long" * 100]))
        writer.end(End("finished", 0, 2))
    assert len(complaints) == 1
    (trace,) = reader.read(tmp_path)
    assert [step.step for step in trace.steps] == [1] and not trace.torn
    assert trace.end == End("cut", None, 1, notes=["writing the trace failed: No space left on device"])


def test_a_folder_that_cannot_be_written_gives_way_to_a_temporary_one(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    complaints: list[str] = []
    writer = Writer(blocked / "trace", complaints.append)
    writer.open(header())
    writer.step(StepRecord(1, recorded=False))
    assert writer.path is not None and len(complaints) == 1 and str(writer.path.parent) in complaints[0]
    assert len(reader.read(writer.path.parent)[0].steps) == 1


def test_a_killed_writer_leaves_what_it_wrote(tmp_path: Path) -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.trace.test_trace import header
from amp_audit.trace.schema import StepRecord
from amp_audit.trace.writer import Writer
writer = Writer(Path({str(tmp_path)!r}), print)
writer.open(header())
for step in range(1, 4):
    writer.step(StepRecord(step, recorded=False))
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    (trace,) = reader.read(tmp_path)
    assert ([step.step for step in trace.steps], trace.end) == ([1, 2, 3], None)


def test_neither_torch_nor_libcst_is_imported() -> None:
    program = (
        "import sys; from amp_audit.trace import reader, ranks, writer; from amp_audit.runtime import launch;"
        "print(sorted({'torch', 'libcst', 'yaml', 'rich'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_all_ranks_of_a_run_agree_on_its_key_and_no_other_run_does() -> None:
    def environ(rank: int, **other: str) -> dict[str, str]:
        base = {"TORCHELASTIC_RUN_ID": "none", "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
        return {**base, **other}

    zero, one = ranks.member(environ(0), 7), ranks.member(environ(1), 7)
    assert zero is not None and one is not None
    assert (zero.rank, one.rank, zero.world, zero.key) == (0, 1, 2, one.key)
    others = [ranks.member(environ(0), 8), ranks.member(environ(0, TORCHELASTIC_RESTART_COUNT="1"), 7)]
    assert len({zero.key, *(other.key for other in others if other)}) == 3
    across = {"GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "node0"}
    first, second = ranks.member(environ(0, **across), 7), ranks.member(environ(1, **across), 8)
    assert first is not None and second is not None and first.key == second.key
    assert ranks.member({}) is None and ranks.member({"RANK": "0", "WORLD_SIZE": "1"}) is None


def test_the_last_rank_to_leave_reports_and_only_that_one(tmp_path: Path) -> None:
    members = [ranks.Member(rank, 4, "run") for rank in range(4)]
    for number in range(4):
        (tmp_path / f"left-earlier-{number}").touch()
    (tmp_path / "reported-earlier").touch()
    left: list[ranks.Departure] = []
    threads = [threading.Thread(target=lambda m=m: left.append(ranks.leave(tmp_path, m))) for m in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(departure.reports for departure in left) == [False, False, False, True]
    assert {departure.missing for departure in left} == {()}


def test_a_launcher_that_ends_all_ranks_is_not_kept_waiting(tmp_path: Path) -> None:
    hurry = threading.Event()
    threading.Timer(0.2, hurry.set).start()
    began = time.monotonic()
    left = ranks.leave(tmp_path, ranks.Member(0, 2, "run"), patience=60, hurry=hurry, haste=0.3)
    assert left == ranks.Departure(reports=True, missing=(1,))
    assert 0.4 < time.monotonic() - began < 20


def test_a_rank_that_never_leaves_is_named(tmp_path: Path) -> None:
    one, three = ranks.Member(1, 4, "run"), ranks.Member(3, 4, "run")
    left: list[ranks.Departure] = []
    thread = threading.Thread(target=lambda: left.append(ranks.leave(tmp_path, three, patience=10)))
    thread.start()
    first = ranks.leave(tmp_path, one, patience=0.3)
    thread.join(5)
    assert first == ranks.Departure(reports=True, missing=(0, 2))
    assert left == [ranks.Departure(reports=False)]
