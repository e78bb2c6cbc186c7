"""SARIF and workflow commands: what gates read. SARIF is held against what its schema requires."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from amp_audit import rulebook
from amp_audit.model import Coverage, Edit, Fix, Location, Severity, Subject
from amp_audit.report import Report, render
from amp_audit.report.sarif import uri

from .samples import clip

BOOK = rulebook.load()
NOTEBOOK = clip("train.ipynb", location=Location("train.ipynb", 2, 1, 2, 41, 3), related=(), evidence=())
LOST = clip("train.py", location=None, subject=Subject("parameter", "fc.weight"), related=(), evidence=())
FIX = Fix(True, "unscale first", (Edit("train.py", 2, 1, 2, 1, "scaler.unscale_(optimizer)\n"),))


def report(*findings: Any, **changes: Any) -> Report:
    made = Report("check", ".", findings, Coverage(files_checked=1), BOOK, Path("/project"), Severity.WARNING)
    return replace(made, **changes)


def shown(form: str, made: Report) -> str:
    stream = io.StringIO()
    render(made, form, stream)
    return stream.getvalue()


def sarif(made: Report) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(shown("sarif", made))
    assert data["version"] == "2.1.0" and data["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = data["runs"]
    return dict(run)


def objects(data: Any, key: str) -> Iterator[Any]:
    if isinstance(data, dict):
        if key in data:
            yield data[key]
        for value in data.values():
            yield from objects(value, key)
    elif isinstance(data, list):
        for value in data:
            yield from objects(value, key)


def test_sarif_has_the_members_that_the_schema_requires() -> None:
    run = sarif(report(clip(fix=FIX), NOTEBOOK, LOST))
    rules = run["tool"]["driver"]["rules"]
    assert run["tool"]["driver"]["name"] == "amp-audit"
    assert all(rule["id"] and rule["shortDescription"]["text"] and rule["help"]["text"] for rule in rules)
    assert isinstance(run["invocations"][0]["executionSuccessful"], bool)
    for result in run["results"]:
        assert result["message"]["text"] and result["level"] in ("error", "warning", "note")
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["partialFingerprints"]["ampAudit/v1"] == "f" * 64
    for location in objects(run, "artifactLocation"):
        assert not location["uri"].startswith("/") and " " not in location["uri"]
    for region in objects(run, "region"):
        assert all(isinstance(value, int) and value >= 1 for value in region.values())
    for flow in objects(run, "threadFlows"):
        assert all(thread["locations"] for thread in flow)
    for fix in objects(run, "fixes"):
        assert all(change["replacements"][0]["deletedRegion"] for change in fix[0]["artifactChanges"])


def test_sarif_tells_the_place_the_path_and_what_gave_way() -> None:
    (result,) = sarif(report(clip()))["results"]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 2, "startColumn": 1, "endLine": 2, "endColumn": 41}
    (flow,) = result["codeFlows"]
    steps = [step["location"] for step in flow["threadFlows"][0]["locations"]]
    assert [(s["physicalLocation"]["region"]["startLine"], s["message"]["text"]) for s in steps] == [
        (1, "backward of the scaled loss"),
        (2, "gradients are clipped"),
    ]
    (related,) = result["relatedLocations"]
    assert related["message"]["text"].startswith("AMP210 gave way") and related["id"] == 1
    assert "gradient norm 3.9e+04" in result["message"]["text"]


def test_lines_of_a_cell_are_not_given_as_lines_of_the_file() -> None:
    (result,) = sarif(report(NOTEBOOK))["results"]
    (location,) = result["locations"]
    assert location["physicalLocation"] == {"artifactLocation": {"uri": "train.ipynb"}}
    assert location["logicalLocations"] == [{"name": "cell 3"}] and "(cell 3, line 2)" in result["message"]["text"]
    assert shown("github", report(NOTEBOOK)).startswith("::error file=train.ipynb,title=AMP202 clip-before-unscale::")


def test_a_finding_without_a_place_names_its_subject() -> None:
    (result,) = sarif(report(LOST))["results"]
    assert result["locations"] == [{"logicalLocations": [{"kind": "parameter", "fullyQualifiedName": "fc.weight"}]}]
    assert shown("github", report(LOST)).startswith("::error title=AMP202 clip-before-unscale::")


def test_a_job_that_could_not_be_done_was_not_successful() -> None:
    (invocation,) = sarif(report(problem="no Python file in ."))["invocations"]
    assert invocation["executionSuccessful"] is False and invocation["exitCode"] == 2
    assert invocation["toolExecutionNotifications"][0]["message"]["text"] == "no Python file in ."
    assert "::error title=amp-audit::no Python file in .\n" in shown("github", report(problem="no Python file in ."))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a b/ü#?.py", "a%20b/%C3%BC%23%3F.py"),
        ("/project/a.py", "a.py"),
        ("/else where/a.py", "file:///else%20where/a.py"),
    ],
)
def test_paths_become_uris(path: str, expected: str) -> None:
    assert uri(path, Path("/project")) == expected


def test_a_workflow_command_holds_place_and_path_and_nothing_breaks_it() -> None:
    odd = clip("a,b:c%.py", message="100% of\r\nit: yes, all", evidence=clip("a.py").evidence[:1], related=())
    line, counts = shown("github", report(odd)).splitlines()
    assert line == (
        "::error file=a%2Cb%3Ac%25.py,line=2,endLine=2,col=1,endColumn=41,title=AMP202 clip-before-unscale"
        "::100%25 of%0D%0Ait: yes, all%0Aa.py:1: backward of the scaled loss"
    )
    assert counts == "amp-audit: 1 error, 0 warnings, 0 infos; 1 file read"


@pytest.mark.parametrize(("severity", "word"), [(Severity.WARNING, "warning"), (Severity.INFO, "notice")])
def test_each_severity_has_its_command(severity: Severity, word: str) -> None:
    assert shown("github", report(clip(severity=severity))).startswith(f"::{word} ")
