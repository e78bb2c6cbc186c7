"""Hand-made findings, traces and reports for the tests of everything that shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from amp_audit import rulebook
from amp_audit.model import Confidence, Coverage, Evidence, Finding, Location, Related, Severity, Verdict
from amp_audit.report.content import Program, Report
from amp_audit.report.summary import summarize
from amp_audit.trace.schema import VERSION, CastRow, End, Header, Number, OpRow, Place, StepRecord, Trace

CODE = "scaler.scale(loss).backward()\nclip_grad_norm_(model.parameters(), 1.0)\nscaler.step(optimizer)\n"


def clip(path: str = "train.py", **changes: object) -> Finding:
    """An AMP202 at line 2 of ``CODE``."""
    found = Finding(
        rule="AMP202",
        name="clip-before-unscale",
        severity=Severity.ERROR,
        confidence=Confidence.HIGH,
        message="gradients are clipped while they are still multiplied by the loss scale",
        location=Location(path, 2, 1, 2, 41),
        verdict=Verdict.CONFIRMED,
        fingerprint="f" * 64,
        related=(Related(Location(path, 3), "AMP210 gave way: gradients are read while scaled"),),
        evidence=(
            Evidence("static", "step", "backward of the scaled loss", path, 1),
            Evidence("static", "step", "gradients are clipped", path, 2),
            Evidence(
                "runtime", "number", "gradient norm 3.9e+04, max_norm 1.0", path, 2, "norm", 3.9e4, steps=(1, 2, 3)
            ),
        ),
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def header(**changes: object) -> Header:
    base = Header(
        schema=VERSION,
        amp_audit="0.1.0",
        torch="2.13.0+cpu",
        python="3.11.9",
        device="cpu",
        policy="cpu",
        rank=0,
        world_size=1,
        argv=("train.py", "--lr", "0.1"),
        cwd="/project",
        sample="default",
        steps=20,
        started="2026-01-01T00:00:00",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def place(line: int, module: str = "fc1") -> Place:
    return Place("/project/train.py", line, 1, 10, "main", module, "/project/train.py", line)


def op(name: str, dtype: str, line: int, flops: int | None = None, **changes: object) -> OpRow:
    row = OpRow("forward", name, (dtype, dtype), dtype, place(line), "float16", 1, 100, 200, 400, flops)
    return replace(row, **changes)  # type: ignore[arg-type]


def step(number: int, before: float, after: float, skipped: int = 0) -> StepRecord:
    return StepRecord(
        number,
        recorded=True,
        deep=number == 1,
        ops=[
            op("aten.mm", "float16", 5, flops=750),
            op("aten.addmm", "float32", 6, flops=250),
            op("aten._softmax", "float16", 7),
        ],
        casts=[CastRow("forward", "float32", "float16", place(5), 2, 64, 128)],
        numbers=[
            Number("scale", subject="scaler", values={"before": before, "after": after, "skipped": skipped}),
            *([gradient("fc1.weight", 1000, 3), gradient("fc2.weight", 10, 0)] if number == 1 else []),
        ],
    )


def gradient(name: str, nonzero: int, flushed: int, scale: float = 65536.0) -> Number:
    values = {
        "elements": 2000, "nonzero": nonzero, "flushed": flushed, "subnormal": 0, "zero": 2000 - nonzero, "scale": scale
    }  # fmt: skip
    return Number("gradient", subject=name, values=values)


def trace(**changes: object) -> Trace:
    steps = [step(1, 65536.0, 32768.0, skipped=1), step(2, 32768.0, 32768.0), step(3, 32768.0, 32768.0)]
    end = End("stopped", 0, 3, unobserved={"random ops, never re-executed": 4})
    return replace(Trace(header(), steps, end), **changes)  # type: ignore[arg-type]


def report(*findings: Finding, root: Path = Path("/project"), **changes: object) -> Report:
    base = Report(
        command="audit",
        target="train.py --lr 0.1",
        findings=tuple(sorted(findings, key=lambda f: f.sort_key)),
        coverage=Coverage(files_checked=2, files_skipped=1),
        book=rulebook.load(),
        root=root,
        fail_on=Severity.ERROR,
        summary=summarize([trace()]),
        program=Program(0, stopped=True),
        trace_folder="/project/.amp-audit/x",
    )
    return replace(base, **changes)  # type: ignore[arg-type]
