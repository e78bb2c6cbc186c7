from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from amp_audit.model import Coverage, Edit, Evidence, Fix, Location, Severity, Subject, Verdict
from amp_audit.report import json as renderer
from amp_audit.report.content import Program, Report

from . import samples

FINDING_KEYS = {
    *("rule", "name", "severity", "confidence", "verdict", "path", "line", "column", "end_line", "end_column", "cell"),
    *("message", "fingerprint", "related", "evidence", "fix", "subject", "reason"),
}
EVIDENCE_KEYS = {"source", "kind", "path", "line", "text", "name", "value", "unit", "steps", "rank"}


def written(report: Report) -> dict[str, Any]:
    stream = io.StringIO()
    renderer.write(report, stream)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    data: dict[str, Any] = json.loads(stream.getvalue(), parse_constant=refuse)
    return data


def test_document_has_what_the_contract_names() -> None:
    data = written(samples.report(samples.clip()))
    assert data["version"] == 1
    assert data["files"] == {"checked": 2, "skipped": 1, "failed": 0}
    assert (data["trace"]["program_exit"], data["trace"]["steps"]) == (0, 3)
    (finding,) = data["findings"]
    assert set(finding) == FINDING_KEYS
    assert (finding["rule"], finding["severity"], finding["verdict"]) == ("AMP202", "error", "confirmed")
    assert all(set(item) == EVIDENCE_KEYS for item in finding["evidence"])
    assert {"path", "line", "message"} <= set(finding["related"][0])


def test_paths_are_relative_below_the_root_and_absolute_elsewhere(tmp_path: Path) -> None:
    inside, outside = samples.clip(str(tmp_path / "pkg" / "a.py")), samples.clip("/elsewhere/b.py")
    data = written(samples.report(inside, outside, root=tmp_path))
    assert {finding["path"] for finding in data["findings"]} == {"pkg/a.py", "/elsewhere/b.py"}


def test_a_finding_without_a_place_has_a_subject() -> None:
    lost = samples.clip(location=None, subject=Subject("parameter", "fc1.weight"))
    (finding,) = written(samples.report(lost))["findings"]
    assert finding["path"] is None and finding["line"] is None
    assert finding["subject"] == {"kind": "parameter", "name": "fc1.weight"}


def test_fix_carries_its_edits() -> None:
    fix = Fix(True, "call unscale_ first", (Edit("train.py", 2, 1, 2, 1, "scaler.unscale_(optimizer)\n"),))
    (finding,) = written(samples.report(samples.clip(fix=fix)))["findings"]
    assert finding["fix"]["edits"] == [
        {
            **{"path": "train.py", "line": 2, "column": 1, "end_line": 2, "end_column": 1},
            "text": "scaler.unscale_(optimizer)\n",
        }
    ]


def test_numbers_that_json_cannot_say_are_null() -> None:
    evidence = (
        Evidence("runtime", "number", "loss", value=float("nan")),
        Evidence("runtime", "number", "norm", value=float("inf")),
    )
    (finding,) = written(samples.report(samples.clip(evidence=evidence)))["findings"]
    assert [item["value"] for item in finding["evidence"]] == [None, None]


def test_text_beyond_ascii_survives_any_stream() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    renderer.write(samples.report(samples.clip("längs/\udcff.py", message="größer als 65504")), stream)
    stream.seek(0)
    assert json.load(stream)["findings"][0]["message"] == "größer als 65504"


def test_every_exit_code_has_a_complete_document() -> None:
    base = samples.report(samples.clip())
    reports = {
        0: samples.report(),
        1: base,
        2: replace(base, coverage=Coverage(files_failed=1)),
        3: replace(base, program=Program(None, 9), summary=None),
    }
    for code, report in reports.items():
        data = written(report)
        assert data["exit_code"] == code == report.exit_code
        assert {"findings", "files", "trace", "coverage"} <= set(data)


def test_a_check_has_no_trace() -> None:
    assert written(samples.report(command="check", summary=None, program=None))["trace"] is None


def test_exit_code_precedence() -> None:
    unreadable = samples.clip(
        rule="AMP001", severity=Severity.ERROR, location=Location("x.py", 1), verdict=Verdict.STATIC
    )
    failed = Program(1)
    assert samples.report(unreadable, program=failed).exit_code == 2
    assert samples.report(samples.clip(), program=failed).exit_code == 3
    assert samples.report(samples.clip(), program=Program(0)).exit_code == 1
    assert samples.report(samples.clip(severity=Severity.WARNING)).exit_code == 0
    assert samples.report(program=Program(None, 15, stopped=True)).exit_code == 0
