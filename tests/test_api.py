"""The Python API, and that importing it costs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import amp_audit
from amp_audit.model import Severity
from amp_audit.target import TargetError

from .test_cli import program
from .test_packaging import BAD


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_import_brings_neither_torch_nor_libcst_nor_rich() -> None:
    code = "import sys, amp_audit, amp_audit.cli; print(sorted({'torch', 'libcst', 'rich', 'yaml'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_trace_is_a_function_and_a_package() -> None:
    from amp_audit.trace import reader
    from amp_audit.trace.schema import Trace

    assert callable(amp_audit.trace)
    assert reader.Trace is Trace


def test_check_takes_paths() -> None:
    Path("train.py").write_text(BAD)
    (finding,) = [f for f in amp_audit.check("train.py").findings if f.severity >= Severity.ERROR]
    assert finding.rule == "AMP202" and finding.location is not None and finding.location.line == 11


def test_check_of_nothing_raises() -> None:
    with pytest.raises(TargetError, match="no Python file"):
        amp_audit.check()


def test_audit_reads_and_runs() -> None:
    Path("train.py").write_text(program(6, bad=True))
    report = amp_audit.audit("train.py", steps=3)
    assert report is not None and report.summary is not None and report.summary.steps == 3
    assert {(f.rule, f.verdict.value) for f in report.findings if f.severity is Severity.ERROR} == {
        ("AMP202", "confirmed")
    }


def test_trace_records_this_process_and_leaves_it_as_it_was() -> None:
    torch = pytest.importorskip("torch")
    before = (torch.optim.Optimizer.__init__, torch.amp.GradScaler.scale, torch.autocast.__enter__)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with amp_audit.trace(model, optimizer, sample="all") as traced:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
        with pytest.raises(RuntimeError, match="recorded already"), amp_audit.trace():
            pass
    assert (torch.optim.Optimizer.__init__, torch.amp.GradScaler.scale, torch.autocast.__enter__) == before
    (trace,) = amp_audit.load_trace(traced.folder)
    assert [step.step for step in trace.steps] == [1, 2, 3]
    assert all(any(row.autocast == "bfloat16" for row in step.ops) for step in trace.steps)


def test_trace_passes_an_exception_on_and_says_how_it_ended() -> None:
    pytest.importorskip("torch")
    with pytest.raises(KeyError), amp_audit.trace() as traced:
        raise KeyError("mine")
    (trace,) = amp_audit.load_trace(traced.folder)
    assert trace.end is not None and trace.end.reason == "failed"


def test_a_recording_tells_its_findings_and_reports(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with amp_audit.trace(model, optimizer, scaler, deep="all") as recording:
        for step in range(3):
            if step == 2:
                open_findings = recording.findings
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.ones(3, 4)).float().square().mean()
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    for findings in (open_findings, recording.findings):
        assert [one.rule for one in findings] == ["AMP202"]
    assert all(step.deep for trace in recording.traces for step in trace.steps)
    report = recording.report()
    assert report.summary is not None and report.summary.steps == 3
    assert "AMP202" in capsys.readouterr().out
    with pytest.raises(ValueError, match="unknown format"):
        recording.report(form="xml")


def test_a_recording_of_nothing_has_no_findings() -> None:
    pytest.importorskip("torch")
    with amp_audit.trace() as recording:
        pass
    assert recording.findings == ()
