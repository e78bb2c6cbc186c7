from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from amp_audit import merge, rulebook
from amp_audit.events import Kind
from amp_audit.merge import Run, observe
from amp_audit.model import Confidence, Evidence, Finding, Location, Related, Severity, Subject, Verdict
from amp_audit.rulebook import Rule, Rulebook, parse_rule
from amp_audit.trace.schema import EventRow, OpRow, Place, StepRecord, Trace

from .report import samples

HERE = "/project/train.py"


def rule(name: str, severity: str = "error", **keys: object) -> Rule:
    return parse_rule(
        {"id": name, "name": name.lower(), "severity": severity, "summary": "s", "why": "w", "fix": "f", **keys}
    )


BOOK = Rulebook(
    {
        made.id: made
        for made in (
            rule(
                "AMP202",
                refutable=True,
                static={"event": "clip", "when": {"gradients": "scaled"}},
                runtime={"event": "clip", "when": {"gradients": "scaled"}},
            ),
            rule("AMP302", "warning", refutable=True, static={"event": "region_exit"},
                 runtime={"event": "region_exit"}),
            rule("AMP402", "warning", static={"call": "half"}, confirmed_by=["AMP514"],
                 confirmed_severity="error"),
            rule("AMP501", refutable=True, static={"op": "add", "inputs": "float16"}, runtime={"op": "add"}),
            rule("AMP504", "warning", static={"op": "sum", "inputs": "float16"}, confirmed_by=["AMP512"]),
            rule("AMP505", "warning", refutable=True, static={"op": "sum", "inputs": "float16"},
                 confirmed_by=["AMP512"]),
            rule("AMP512", runtime={"measure": "nonfinite"}),
            rule("AMP514", runtime={"measure": "lost"}),
            rule("AMP303", "warning", yields_to=["AMP302"], runtime={"event": "step"}),
            rule("AMP315", refutable=True, runtime={"raised": "unsafe"},
                 static={"op": "binary_cross_entropy", "region": {"policy": "banned"}}),
            rule("AMP104", static={"call": "autocast"}, runtime={"raised": "must be"}),
            rule("AMP803", static={"call": "backward"}, confirmed_by=["AMP202"]),
            rule("AMP701", "warning", static={"event": "save"}),
            rule("AMP606", "info", static={"op": "synchronise"}),
            rule("AMP210", "error", yields_to=["AMP804"], runtime={"event": "clip"}),
            rule("AMP804", "warning", static={"call": "clip"}),
        )
    }
)  # fmt: skip


def found(
    name: str, line: int | None = 5, column: int = 1, end: tuple[int, int] | None = None, **changes: object
) -> Finding:
    end_line, end_column = end or (line, None)
    place = Location(HERE, line, column, end_line, end_column) if line is not None else None
    base = Finding(name, name.lower(), BOOK[name].severity, Confidence.MEDIUM, f"{name} here", place)
    return replace(base, **changes)  # type: ignore[arg-type]


def run(*lines: int, scaler: bool = True, regions: tuple[str, ...] = ("float16",), watched: bool = True,
        ops: Mapping[int, OpRow] | None = None, policy: str = "cuda") -> Run:  # fmt: skip
    return Run(
        steps=20,
        lines=frozenset((HERE, line) for line in lines),
        ops={(HERE, line): [row] for line, row in (ops or {}).items()},
        watched=watched,
        scaler=scaler,
        regions=frozenset(regions),
        policy=policy,
        release="2.13.0",
    )


def merged(read: list[Finding], seen: list[Finding], happened: Run | None) -> list[Finding]:
    return merge.merge(read, seen, happened, BOOK)


def one(read: Finding, happened: Run) -> Finding:
    (result,) = merged([read], [], happened)
    return result


def test_without_a_run_what_was_read_stays_as_it_is() -> None:
    assert merged([found("AMP202")], [], None) == [found("AMP202")]


def test_the_same_rule_at_the_same_place_is_one_confirmed_finding_with_both_evidences() -> None:
    step = Evidence("static", "step", "clipped", HERE, 5)
    norm = Evidence("runtime", "number", "norm 3.9e+04", value=3.9e4, steps=(1, 2))
    (result,) = merged([found("AMP202", evidence=(step,))], [found("AMP202", evidence=(norm,))], run(5))
    assert (result.verdict, result.confidence) == (Verdict.CONFIRMED, Confidence.HIGH)
    assert result.evidence == (step, norm)


def test_a_run_without_numbers_still_leaves_its_evidence() -> None:
    (result,) = merged([found("AMP202")], [found("AMP202", message="clipped at scale 65536")], run(5))
    assert [item.text for item in result.evidence if item.source == "runtime"] == ["clipped at scale 65536"]


def test_a_call_over_several_lines_is_one_place() -> None:
    read = found("AMP202", 5, end=(9, 2))
    assert [f.verdict for f in merged([read], [found("AMP202", 7)], run(5))] == [Verdict.CONFIRMED]
    assert {f.verdict for f in merged([read], [found("AMP202", 10)], run(5))} == {
        Verdict.NOT_REPRODUCED,
        Verdict.RUNTIME,
    }


def test_two_calls_on_one_line_are_told_apart_by_their_columns() -> None:
    left, right = found("AMP202", 5, 1, (5, 10)), found("AMP202", 5, 12, (5, 22))
    seen = found("AMP202", 5, 12, (5, 22))
    results = {f.location.column: f.verdict for f in merged([left, right], [seen], run(5)) if f.location}
    assert results == {1: Verdict.NOT_REPRODUCED, 12: Verdict.CONFIRMED}


def test_where_python_gives_no_column_the_line_decides() -> None:
    (result,) = merged([found("AMP202", 5, 9, (5, 20))], [found("AMP202", 5)], run(5))
    assert result.verdict is Verdict.CONFIRMED


def test_another_file_or_rule_is_another_hazard() -> None:
    elsewhere = found("AMP202", location=Location("/project/other.py", 5))
    assert len(merged([found("AMP202")], [elsewhere], run(5))) == 2
    assert len(merged([found("AMP202")], [found("AMP303")], run(5))) == 2


def test_what_only_ran_is_runtime() -> None:
    (result,) = merged([], [found("AMP514", None, subject=Subject("parameter", "w"))], run())
    assert result.verdict is Verdict.RUNTIME


def test_a_line_that_never_ran_is_not_reached() -> None:
    result = one(found("AMP202"), run(4, 6))
    assert (result.verdict, result.severity) == (Verdict.NOT_REACHED, Severity.ERROR)
    assert result.note == "line 5 never ran in the 20 steps of this run"


def test_reach_is_unknown_where_nothing_would_have_told() -> None:
    assert one(found("AMP202"), run(4, watched=False)).verdict is Verdict.STATIC
    assert one(found("AMP202"), run(5, watched=False)).verdict is Verdict.NOT_REPRODUCED


def test_a_run_without_scaling_acquits_nobody() -> None:
    result = one(found("AMP202"), run(5, scaler=False))
    assert (result.verdict, result.severity) == (Verdict.NOT_EXERCISED, Severity.ERROR)
    assert "no enabled GradScaler" in result.note


def test_a_run_without_regions_acquits_no_regional_hazard() -> None:
    result = one(found("AMP302"), run(5, regions=()))
    assert result.verdict is Verdict.NOT_EXERCISED and "autocast region" in result.note


def test_a_refutable_hazard_that_did_not_happen_is_one_severity_lower() -> None:
    result = one(found("AMP202"), run(5))
    assert (result.verdict, result.severity) == (Verdict.NOT_REPRODUCED, Severity.WARNING)
    assert result.note


def test_what_a_measure_would_have_shown_did_not_happen_where_its_op_ran() -> None:
    ran = one(found("AMP505"), run(ops={5: op("aten.sum.default", "float16")}))
    assert (ran.verdict, ran.severity) == (Verdict.NOT_REPRODUCED, Severity.INFO)
    assert one(found("AMP505"), run(5)).verdict is Verdict.STATIC  # the line ran, and what ran there is not known
    assert one(found("AMP504"), run(ops={5: op("aten.sum.default", "float16")})).verdict is Verdict.STATIC


def test_a_hazard_that_no_run_can_refute_stays_static() -> None:
    assert one(found("AMP701"), run(5)).verdict is Verdict.STATIC


def op(name: str, dtype: str, policy_region: str | None = "float16") -> OpRow:
    return OpRow("forward", name, (dtype,), dtype, Place(HERE, 5), policy_region, 1)


def test_a_line_in_float32_does_not_exercise_a_half_precision_hazard() -> None:
    result = one(found("AMP501"), run(ops={5: op("aten.add", "float32", None)}))
    assert result.verdict is Verdict.NOT_EXERCISED and "low precision" in result.note
    assert one(found("AMP501"), run(ops={5: op("aten.add", "float16")})).verdict is Verdict.NOT_REPRODUCED


def test_another_devices_lists_acquit_nobody_of_ops_that_they_treat_otherwise() -> None:
    softmax = run(ops={5: op("aten._softmax", "float16")}, policy="cpu")
    result = one(found("AMP501"), softmax)
    assert result.verdict is Verdict.NOT_EXERCISED and "softmax" in result.note
    assert one(found("AMP501"), run(ops={5: op("aten.add", "float16")}, policy="cpu")).verdict is Verdict.NOT_REPRODUCED


def test_the_op_that_a_rule_speaks_of_decides_not_its_neighbours_in_the_line() -> None:
    add, log = low_op("aten.add.Tensor"), low_op("aten.log.default")
    happened = replace(run(5, policy="cpu"), ops={(HERE, 5): [add, log]})
    assert one(found("AMP501"), happened).verdict is Verdict.NOT_REPRODUCED
    happened = replace(run(5, policy="cpu"), ops={(HERE, 5): [log]})
    assert one(found("AMP501"), happened).verdict is Verdict.NOT_EXERCISED


def test_what_only_another_device_bans_is_not_acquitted_here() -> None:
    loss = run(ops={5: op("aten.binary_cross_entropy", "float32")}, policy="cpu")
    result = one(found("AMP315"), loss)
    assert result.verdict is Verdict.NOT_EXERCISED and "CUDA's treat binary_cross_entropy" in result.note


def test_a_region_that_was_off_acquits_nobody() -> None:
    happened = replace(run(5), off=frozenset({(HERE, 5)}))
    for rule in ("AMP104", "AMP315"):
        result = one(found(rule), happened)
        assert result.verdict is Verdict.NOT_EXERCISED and "was off" in result.note
    assert one(found("AMP104"), run(5)).verdict is Verdict.STATIC


def test_a_backward_that_bypasses_accelerate_is_confirmed_by_what_it_leaves() -> None:
    (result,) = merged([found("AMP803", 5)], [found("AMP202", 5)], run(5))
    assert (result.rule, result.verdict) == ("AMP803", Verdict.CONFIRMED)


def low_op(name: str) -> OpRow:
    return OpRow("forward", name, ("float16",), "float16", Place(HERE, 5), "float16", calls=1)


def test_another_rules_finding_becomes_evidence_and_is_not_shown_apart() -> None:
    lost = [found("AMP514", None, subject=Subject("parameter", name), message=f"{name} lost 99%") for name in "ab"]
    (result,) = merged([found("AMP402")], lost, run(5))
    assert (result.rule, result.verdict, result.severity) == ("AMP402", Verdict.CONFIRMED, Severity.ERROR)
    assert [item.text for item in result.evidence] == ["a lost 99%", "b lost 99%"]


def test_proof_at_a_step_of_the_path_counts() -> None:
    read = found("AMP504", 9, related=(Related(Location(HERE, 5), "the sum"),))
    (result,) = merged([read], [found("AMP512", 5)], run(5, 9))
    # The proof is an error by its own rule; that does not make this one an error.
    assert (result.verdict, result.severity) == (Verdict.CONFIRMED, Severity.WARNING)


def test_proof_elsewhere_is_its_own_finding() -> None:
    assert {f.rule for f in merged([found("AMP504", 9)], [found("AMP512", 5)], run(5, 9))} == {"AMP504", "AMP512"}


def test_proof_without_a_place_is_not_guessed_among_several() -> None:
    lost = found("AMP514", None, subject=Subject("parameter", "w"))
    results = merged([found("AMP402", 5), found("AMP402", 8)], [lost], run(5, 8))
    assert sorted(f.rule for f in results) == ["AMP402", "AMP402", "AMP514"]


def test_proof_of_a_hazard_that_only_ran_is_not_shown_apart_either() -> None:
    lost = found("AMP514", None, subject=Subject("parameter", "w"))
    (result,) = merged([], [found("AMP402"), lost], run(5))
    assert (result.rule, result.verdict) == ("AMP402", Verdict.RUNTIME)


def test_what_one_half_names_worse_gives_way_to_the_other() -> None:
    step = Evidence("static", "step", "the optimizer steps", HERE, 7)
    (result,) = merged([found("AMP302", 5, evidence=(step,))], [found("AMP303", 7)], run(5, 7))
    assert result.rule == "AMP302" and [item.message[:6] for item in result.related] == ["AMP303"]


def traced(*events: EventRow, ops: tuple[OpRow, ...] = (), flags: Mapping[str, object] | None = None) -> Trace:
    step = StepRecord(1, True, ops=list(ops), events=list(events), lines={HERE: [11]})
    return Trace(samples.header(flags=flags or {}), [step])


def event(kind: Kind, line: int, **facts: object) -> EventRow:
    return EventRow(kind.value, Place(HERE, line), **facts)  # type: ignore[arg-type]


def test_observe_reads_lines_conditions_and_policy() -> None:
    seen = observe(
        [
            traced(
                event(Kind.REGION_ENTER, 3, enabled=True, dtype="float16"),
                event(Kind.REGION_ENTER, 4, enabled=False, dtype="bfloat16"),
                event(Kind.BACKWARD, 5, scaled=True),
                ops=(op("aten.add", "float16"),),
                flags={"watch": True},
            )
        ]
    )
    assert seen is not None
    assert {line for _, line in seen.lines} == {3, 4, 5, 11}
    assert (seen.scaler, seen.regions, seen.policy, seen.watched) == (True, {"float16"}, "cpu", True)
    assert {line for _, line in seen.off} == {4}
    assert seen.ran(Location(HERE, 5)) is True and seen.ran(Location(HERE, 6)) is False


@pytest.mark.parametrize("scaled", [False, None])
def test_a_backward_that_is_not_known_to_be_scaled_is_no_live_scaler(scaled: bool | None) -> None:
    seen = observe([traced(event(Kind.BACKWARD, 5, scaled=scaled))])
    assert seen is not None and not seen.scaler


def test_a_run_that_never_trained_is_no_run() -> None:
    assert observe([replace(samples.trace(), steps=[])]) is None
    assert observe([]) is None


def test_what_a_run_saw_and_gives_way_confirms_what_was_read() -> None:
    seen = found("AMP210", evidence=(Evidence("runtime", "number", "norm 7e+04"),))
    (told,) = merge.merge([found("AMP804")], [seen], run(5), BOOK)
    assert (told.rule, told.verdict, told.severity) == ("AMP804", Verdict.CONFIRMED, Severity.ERROR)
    assert [item.text for item in told.evidence] == ["norm 7e+04"]
    assert [item.message for item in told.related] == ["AMP210 amp210: AMP210 here"]


def test_a_wait_for_the_device_needs_no_low_precision() -> None:
    row = OpRow("forward", "aten::div", ("float32",), "float32", Place(HERE, 5), None, 1)
    (told,) = merge.merge([found("AMP606")], [], run(5, ops={5: row}), BOOK)
    assert told.verdict is Verdict.STATIC and not told.note


def test_what_an_error_of_the_run_proves_is_an_error() -> None:
    # The run alone would have failed the build: what is known besides may not let it pass.
    book = rulebook.load()
    weaker = {
        (known.id, proof)
        for known in book.rules.values()
        for proof in known.confirmed_by
        if (known.confirmed_severity or known.severity) < book[proof].severity
    }
    assert weaker == set()
