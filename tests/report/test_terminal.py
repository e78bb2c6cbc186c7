from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from amp_audit import __version__
from amp_audit.model import Confidence, Coverage, Evidence, Location, Severity, Subject, Verdict
from amp_audit.report import render
from amp_audit.report.content import Program, Report
from amp_audit.report.summary import summarize
from amp_audit.trace.schema import End, Number, Place

from . import samples


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(samples.CODE, encoding="utf-8")
    return tmp_path


def shown(
    report: Report, monkeypatch: pytest.MonkeyPatch, width: int = 80, *, verbose: bool = False, quiet: bool = False
) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = io.StringIO()
    render(report, "terminal", stream, verbose=verbose, quiet=quiet)
    return stream.getvalue()


def test_a_finding_shows_line_numbers_path_why_and_fix(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(samples.report(samples.clip(), root=project), monkeypatch)
    title, head, rest = text.lstrip("\n").replace("\n\n", "\n", 1).split("\n", 2)
    assert title == f"amp-audit {__version__}: train.py --lr 0.1"
    assert head == "error AMP202 clip-before-unscale  (confirmed by the run)"
    assert "  --> train.py:2:1\n    2 | clip_grad_norm_(model.parameters(), 1.0)\n      | " + "^" * 40 + "\n" in rest
    assert "seen  gradient norm 3.9e+04, max_norm 1.0 (steps 1-3)" in rest
    assert "path  line 1  backward of the scaled loss" in rest
    assert "also  line 3  AMP210 gave way" in rest
    assert "fix   scaler.scale(loss).backward()" in rest


def test_worst_first_and_notes_in_one_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = samples.clip(rule="AMP003", name="not-observed", severity=Severity.INFO, location=None)
    warning = samples.clip(rule="AMP302", name="backward-inside-autocast", severity=Severity.WARNING)
    report = samples.report(note, warning, samples.clip(), root=project)
    text = shown(report, monkeypatch, 120)
    assert text.index("AMP202 clip") < text.index("AMP302 backward")
    assert "1 note not shown (--verbose): AMP003 not-observed" in text
    assert "\n1 error, 1 warning, 1 note; 3 confirmed by the run\n" in text
    assert (
        text.splitlines()[-1]
        == "amp-audit explain AMP202 tells more of a rule; the trace is kept in /project/.amp-audit/x"
    )
    assert "info AMP003" in shown(report, monkeypatch, verbose=True)


def test_why_and_fix_of_a_rule_are_told_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = samples.report(samples.clip(), samples.clip(location=Location("train.py", 3)), root=project)
    text = shown(twice, monkeypatch)
    assert text.count("error AMP202") == 2
    assert text.count("  why ") == text.count("  fix ") == 1


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize(
    "line", ["x" * 500, "宽" * 300, "\tf(\x1b[31m, '\x07')  # " + "長" * 50, "a = 'é' ; " + "g" * 90]
)
def test_nothing_is_wider_than_the_terminal_nor_drives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, line: str
) -> None:
    (tmp_path / "train.py").write_text(f"\n{line}\n", encoding="utf-8")
    place = Location("train.py", 2, max(1, len(line) - 5), 2, len(line) + 1)
    text = shown(samples.report(samples.clip(location=place), root=tmp_path), monkeypatch, width)
    assert max(cell_len(row) for row in text.splitlines()) <= width
    assert "\x1b" not in text and "\x07" not in text
    code, carets = next((a, b) for a, b in zip(text.splitlines(), text.splitlines()[1:]) if set(b.strip(" |")) == {"^"})
    assert code.startswith("    2 | ")
    assert cell_len(carets) <= width


def test_carets_stand_under_wide_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("s = '宽宽'; f(x)\n", encoding="utf-8")
    text = shown(samples.report(samples.clip(location=Location("train.py", 1, 11, 1, 15)), root=tmp_path), monkeypatch)
    code, carets = next((a, b) for a, b in zip(text.splitlines(), text.splitlines()[1:]) if "^" in b)
    start = carets.index("^")
    assert cell_len(code[: code.index("f(x)")]) == start
    assert carets.count("^") == 4


def test_carets_of_a_line_alone_stand_under_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("        f(x)\n", encoding="utf-8")
    text = shown(samples.report(samples.clip(location=Location("train.py", 1)), root=tmp_path), monkeypatch)
    code, carets = next((a, b) for a, b in zip(text.splitlines(), text.splitlines()[1:]) if "^" in b)
    assert carets.index("^") == code.index("f(x)") and carets.count("^") == 4


def test_a_notebook_cell_shows_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "n.ipynb").write_text(
        '{"cells": [{"cell_type": "markdown", "source": "# t"}, '
        '{"cell_type": "code", "source": ["a = 1\\n", "b = 2"]}]}'
    )
    text = shown(
        samples.report(samples.clip(location=Location("n.ipynb", 2, 1, 2, 2, cell=1)), root=tmp_path), monkeypatch
    )
    assert "--> n.ipynb:cell 1:2:1" in text and "    2 | b = 2" in text


def test_a_file_that_is_gone_has_no_code_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(samples.report(samples.clip("gone.py"), root=tmp_path), monkeypatch)
    assert "--> gone.py:2:1" in text and " | " not in text


def test_a_finding_about_a_parameter_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = samples.clip(rule="AMP514", location=None, subject=Subject("parameter", "fc1.weight"))
    assert "--> parameter fc1.weight" in shown(samples.report(lost), monkeypatch)


def test_verdict_and_its_reason(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = samples.clip(
        verdict=Verdict.NOT_EXERCISED,
        confidence=Confidence.MEDIUM,
        note="the line ran, but no enabled GradScaler scaled a loss in this run",
    )
    text = shown(samples.report(finding, root=project), monkeypatch)
    assert "(not exercised by the run, medium confidence)" in text
    assert "run   the line ran, but no enabled GradScaler scaled a loss in this run" in text


def test_many_numbers_are_counted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = tuple(Evidence("runtime", "number", f"norm {n}") for n in range(12))
    report = samples.report(samples.clip(evidence=many), root=project)
    text = shown(report, monkeypatch)
    assert "norm 4" in text and "norm 5" not in text and "and 7 more (--verbose)" in text
    assert "norm 11" in shown(report, monkeypatch, verbose=True)


def test_the_run_in_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(samples.report(), monkeypatch)
    assert "train.py --lr 0.1: stopped by amp-audit after 3 steps" in text
    assert "float16  ##################......  75.0%  3 calls" in text
    assert "float32 -> float16  6 calls  384 B" in text
    assert "65536 at step 1, 32768 after step 1" in text
    assert "1 of 3 steps skipped (inf or NaN in the gradients): 1" in text
    assert "fc1.weight  0.3%" in text
    assert "softmax (float16 here, float32 there)" in " ".join(text.split())


def test_a_clean_verdict_says_what_it_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    run = samples.report(trace_folder=None)
    check = samples.report(command="check", summary=None, program=None, trace_folder=None)
    rules = len(run.book)
    assert (
        shown(run, monkeypatch).splitlines()[-1]
        == f"No errors or warnings: 2 files read, 1 skipped, 3 steps watched, {rules} rules."
    )
    last = shown(check, monkeypatch).splitlines()[-1]
    assert last == f"No errors or warnings: 2 files read, 1 skipped, nothing run, {rules} rules."


@pytest.mark.parametrize("compiled", [False, True])
def test_of_compiled_code_not_every_op_is_said_to_be_recorded(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"operators inside compiled code (inductor)": 1} if compiled else {}
    run = summarize([samples.trace(end=End("finished", 0, 3, unobserved=missing))])
    text = " ".join(shown(samples.report(summary=run), monkeypatch).split())
    assert ("all ops that were seen recorded" in text) is compiled
    assert ("every op of each recorded" in text) is not compiled
    assert ("not observed: operators inside compiled code (inductor) (1)" in text) is compiled


def test_coverage_names_what_was_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = samples.trace(header=samples.header(rank=1, world_size=3), end=None)
    trace.steps[1].recorded = False
    report = replace(
        samples.report(),
        summary=summarize([trace]),
        coverage=Coverage(2, 1, 1, notes=("pkg/lazy.py is imported by a name that is not known",)),
        hidden=2,
        program=Program(None, 9),
    )
    text = " ".join(shown(report, monkeypatch).split())
    for words in (
        "1 could not be read or parsed",
        "ops recorded on 2 of them (1, 3)",
        "ranks 0, 2 of 3 left no trace",
        "the program was killed by signal 9",
        "the step in flight is lost",
        "pkg/lazy.py is imported by a name that is not known",
        "2 findings below the confidence asked for",
    ):
        assert words in text


def test_a_program_that_never_trained_is_not_called_clean_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = summarize([replace(samples.trace(), steps=[], end=End("finished", 0, 0))])
    text = shown(samples.report(summary=empty, program=Program(0)), monkeypatch)
    assert "no optimizer step was seen" in text
    assert "watched" not in text.splitlines()[-1]


def test_a_program_that_ran_on_is_not_said_to_have_had_so_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def story(asked: int | None) -> str:
        trace = samples.trace(header=samples.header(steps=asked), end=End("finished", None, 3))
        return shown(samples.report(summary=summarize([trace]), program=Program(0)), monkeypatch)

    assert "ran to its end, watched for the 3 steps asked for\n" in story(3)
    assert "ran to its end, 3 steps\n" in story(20) and "ran to its end, 3 steps\n" in story(None)


def test_the_last_line_tells_that_the_program_failed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for ended, words in ((Program(3), "ended with exit code 3"), (Program(None, 15), "was killed by signal 15")):
        for findings in ((), (samples.clip(),)):
            report = samples.report(*findings, root=project, program=ended, trace_folder=None)
            for quiet in (True, False):
                lines = " ".join(shown(report, monkeypatch, 200, quiet=quiet).splitlines()[-2:])
                assert f"; the program {words}" in lines


def test_a_program_that_left_no_trace_still_ended_somehow(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(samples.report(summary=None, program=Program(1)), monkeypatch)
    assert "The run\n  train.py --lr 0.1: ended with exit code 1\n" in text


def test_what_was_confirmed_before_a_step_ended_counts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = summarize([replace(samples.trace(), steps=[], end=End("failed", 1, 0))])
    report = samples.report(samples.clip(), root=project, summary=empty, program=Program(1))
    assert "1 error; 1 confirmed by the run; the program ended" in shown(report, monkeypatch)


def test_a_program_that_left_by_itself_was_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = summarize([samples.trace(end=None)])
    assert "was killed" not in shown(samples.report(summary=cut, program=Program(5)), monkeypatch)
    assert "was killed after" in shown(samples.report(summary=cut, program=Program(None, 9)), monkeypatch)


def test_files_passed_over_were_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    report = samples.report(command="check", summary=None, program=None, trace_folder=None, coverage=Coverage(0, 2, 0))
    last = shown(report, monkeypatch, 200).splitlines()[-1]
    assert last.startswith("No errors or warnings: 0 files read, 2 skipped, nothing run")


def test_quiet_is_one_line_a_finding(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(samples.report(samples.clip(), root=project), monkeypatch, 40, quiet=True)
    assert text.splitlines() == [
        f"train.py:2:1: error AMP202 {samples.clip().message} [confirmed]",
        "1 error; 1 confirmed by the run",
    ]


def test_no_colour_unless_on_a_terminal_that_wants_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def coloured(color: bool = True) -> bool:
        stream = Terminal()
        render(samples.report(samples.clip(), root=project), "terminal", stream, color=color)
        return "\x1b[1;31m" in stream.getvalue()

    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert coloured() and not coloured(color=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured()


def test_of_many_gradient_norms_the_first_are_shown(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = samples.trace()
    trace.steps[0].numbers += [
        Number("grad_norm", subject=f"fold{at}", values={"norm": 1.0 + at, "scale": 1.0}) for at in range(7)
    ]
    report = replace(samples.report(root=project), summary=summarize([trace]))
    text = shown(report, monkeypatch)
    assert "\n  gradient norm of fold4: 5 at first, 5 at last\n  gradient norm: 2 more (--verbose)\n" in text
    assert "gradient norm of fold6: 7 at first" in shown(report, monkeypatch, verbose=True)


def test_the_story_tells_what_ended_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Number("raised", Place("/project/net.py", 7), "ValueError: boom")
    failed = samples.trace(end=End("failed", 1, 3))
    failed.steps[-1].numbers.append(error)
    text = shown(samples.report(summary=summarize([failed]), program=Program(1)), monkeypatch, 120)
    assert "failed after 3 steps: ValueError: boom (net.py:7)\n" in text
    cut = samples.trace(end=End("cut", None, 3, notes=["writing the trace failed: No space left on device"]))
    text = shown(samples.report(summary=summarize([cut]), program=Program(0)), monkeypatch, 120)
    assert "recorded for 3 steps, then the trace could not be written any further\n" in text
    assert "- writing the trace failed: No space left on device" in text


def test_several_processes_of_one_rank_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(samples.report(summary=summarize([samples.trace(), samples.trace()])), monkeypatch, 120)
    assert "2 processes trained: operators, casts and times are sums over all\n" in text
    ranks = [samples.trace(header=samples.header(rank=rank, world_size=2)) for rank in range(2)]
    assert "trained:" not in shown(samples.report(summary=summarize(ranks)), monkeypatch, 120)


def test_without_a_deep_step_it_is_said_that_no_other_scale_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = samples.trace()
    words = "which loss scales would fit the gradients is known of deep steps only: there was none\n"
    assert words not in shown(samples.report(summary=summarize([trace])), monkeypatch, 120)
    trace = replace(trace, steps=[replace(step, deep=False) for step in trace.steps])
    assert words in shown(samples.report(summary=summarize([trace])), monkeypatch, 120)
