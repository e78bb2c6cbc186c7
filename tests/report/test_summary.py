from __future__ import annotations

from dataclasses import replace

import pytest

from amp_audit.report.summary import Live, Lost, Saved, Times, Work, summarize
from amp_audit.trace.schema import CastRow, End, Number, Place

from . import samples


def test_work_is_summed_by_dtype_over_steps_and_ranks() -> None:
    other = samples.trace(header=samples.header(rank=1, world_size=2))
    summary = summarize([samples.trace(), other])
    # 3 steps x 2 ranks x (750 in float16, 250 in float32)
    assert summary.work == (Work("float16", 4500, 6), Work("float32", 1500, 6))
    assert summary.ranks == (0, 1)


def test_ops_without_work_take_no_part_in_the_precision_map() -> None:
    assert sum(item.calls for item in summarize([samples.trace()]).work) == 6


def test_casts_are_summed_by_pair_of_dtypes() -> None:
    trace = samples.trace()
    trace.steps[0].casts.append(CastRow("backward", "float16", "float32", samples.place(5), 1, 10, 40))
    casts = {(cast.source, cast.target): (cast.calls, cast.elements, cast.bytes) for cast in summarize([trace]).casts}
    assert casts == {("float32", "float16"): (6, 192, 384), ("float16", "float32"): (1, 10, 40)}


def test_float32_ops_are_the_heaviest_first_and_only_of_the_hot_path() -> None:
    trace = samples.trace()
    trace.steps[0].ops += [
        samples.op("aten.mm", "float32", 9, flops=100_000),
        samples.op("aten._softmax", "float32", 11, flops=None, bytes=4_000, read=3_999),
        samples.op("aten.add.Tensor", "float32", 12, flops=None, bytes=4_000, read=4_001),
        samples.op("c10d.allreduce_", "float32", 12, flops=None, bytes=9_000),
        samples.op("aten.addcdiv_", "float32", 10, flops=None, phase="optimizer"),
    ]
    found = summarize([trace]).float32  # 12.5 FLOP in the time of a byte: 100,000 are worth 8,000 bytes
    assert [op.op for op in found] == ["aten.add.Tensor", "aten.mm", "aten._softmax", "aten.addmm"]
    assert [(op.computes, op.moved) for op in found[:3]] == [(False, 8_001), (True, 600), (False, 7_999)]
    assert (found[3].flops, found[3].moved, found[3].calls) == (3 * 250, 3 * 600, 3)


def test_scale_timeline_keeps_steps_and_skips() -> None:
    (points,) = (summarize([samples.trace()]).scales or {}).values()
    assert [(p.step, p.before, p.after, p.skipped) for p in points] == [
        (1, 65536.0, 32768.0, True),
        (2, 32768.0, 32768.0, False),
        (3, 32768.0, 32768.0, False),
    ]


def test_underflow_is_a_share_of_nonzero_elements_not_of_all() -> None:
    first, second = summarize([samples.trace()]).underflow
    assert (first.parameter, first.share) == ("fc1.weight", 3 / 1000)
    assert (second.parameter, second.share) == ("fc2.weight", 0.0)


def test_what_got_no_gradient_comes_first_with_what_lost_it() -> None:
    trace = samples.trace()
    place = Place("/work/train.py", 7)
    trace.steps[0].numbers.append(Number("starved", place, "aux.bias", "aten.mm.default", "backward", "float16"))
    first, *others = summarize([trace]).underflow
    assert (first.parameter, first.upstream) == ("aux.bias", Lost("mm", place, 1))
    assert others and all(one.upstream is None for one in others)


def test_underflow_of_a_gradient_that_is_all_zero_is_nothing() -> None:
    trace = samples.trace()
    trace.steps[0].numbers = [samples.gradient("embedding", 0, 0)]
    assert summarize([trace]).underflow[0].share == 0.0


def test_a_gradient_measured_twice_in_a_step_was_measured_in_one_step() -> None:
    trace = samples.trace()
    trace.steps[0].numbers = [samples.gradient("critic", 100, 1), samples.gradient("critic", 100, 2)]
    (critic,) = (one for one in summarize([trace]).underflow if one.parameter == "critic")
    assert (critic.steps, critic.nonzero, critic.flushed) == (1, 200, 3)


def test_ranks_that_left_no_trace_are_named() -> None:
    one = samples.trace(header=samples.header(rank=1, world_size=4))
    assert summarize([one]).missing_ranks == (0, 2, 3)


def test_processes_that_never_trained_do_not_hide_the_one_that_did() -> None:
    agent = replace(samples.trace(), steps=[], end=End("finished", 0, 0))
    summary = summarize([agent, samples.trace()])
    assert (summary.steps, summary.silent_processes) == (3, 1)


def test_a_forked_child_does_not_say_how_the_run_ended() -> None:
    child = replace(samples.trace(end=None), header=samples.header(forked=True))
    ended = replace(samples.trace(), end=End("finished", None, 3))
    assert summarize([ended, child]).reason == summarize([child, ended]).reason == "finished"
    assert summarize([ended, replace(child, header=samples.header())]).reason == "killed"
    parent = replace(ended, steps=[], end=End("finished", None, 0))
    assert summarize([parent, child]).reason == "killed"  # it is the child that trained


def test_a_step_in_flight_is_none_of_the_steps() -> None:
    whole = samples.trace()
    flight = replace(samples.step(4, 32768.0, 32768.0), open=True, deep=True)
    failed = replace(whole, steps=[*whole.steps, flight], end=End("failed", 1, 3))
    for one in (failed, replace(failed, end=None)):
        summary = summarize([one])
        assert (summary.steps, summary.recorded, summary.deep) == (3, (1, 2, 3), (1,))


def test_a_trace_without_end_was_killed() -> None:
    summary = summarize([samples.trace(end=None)])
    assert (summary.reason, summary.steps) == ("killed", 3)


def test_cpu_run_names_the_ops_that_cuda_would_treat_otherwise() -> None:
    # CPU autocast leaves softmax in float16, CUDA's list has it in float32; addmm is lower precision on both.
    (difference,) = summarize([samples.trace()]).differences
    assert (difference.op, difference.calls, difference.here, difference.there) == ("softmax", 3, "float16", "float32")


def test_cuda_run_has_no_differences_from_cuda() -> None:
    assert summarize([samples.trace(header=samples.header(policy="cuda"))]).differences == ()


def test_numbers_without_values_are_passed_over() -> None:
    trace = samples.trace()
    trace.steps[0].numbers = [Number("scale", subject="scaler", values={}), Number("gradient", subject="w", values={})]
    summary = summarize([trace])
    assert summary.underflow == ()
    assert [p.step for p in (summary.scales or {})["scaler"]] == [2, 3]


def test_no_trace_is_an_error() -> None:
    with pytest.raises(ValueError, match="no trace"):
        summarize([])


def test_times_are_summed_by_the_dtype_an_op_computes_in_and_casts_are_apart() -> None:
    trace = samples.trace()
    trace.steps[0].ops += [
        samples.op("aten.mm", "float16", 9, flops=1, nanoseconds=300),
        samples.op("aten.add.Tensor", "float32", 9, nanoseconds=100),
        samples.op("aten.eq.Tensor", "int64", 9, nanoseconds=7),
    ]
    trace.steps[2].ops.append(samples.op("aten.mm", "float16", 9, flops=1, nanoseconds=200))
    trace.steps[2].casts.append(CastRow("backward", "float16", "float32", samples.place(5), 1, 10, 40, nanoseconds=50))
    summary = summarize([trace])
    assert summary.times == Times((("float16", 500), ("float32", 100), ("other", 7)), casts=50, steps=2)
    assert summary.times.total == 657
    assert {work.dtype: work.nanoseconds for work in summary.work} == {"float16": 500, "float32": 0}
    assert {(cast.source, cast.nanoseconds) for cast in summary.casts} == {("float32", 0), ("float16", 50)}


def test_of_what_was_kept_for_backward_the_largest_step_is_told() -> None:
    def kept(module: str, dtype: str, amount: int) -> Number:
        return Number("saved", subject=module, dtype=dtype, values={"bytes": amount, "tensors": 1})

    trace, other = samples.trace(), samples.trace(header=samples.header(rank=1, world_size=2))
    trace.steps[0].numbers += [kept("fc1", "float16", 100), kept("", "float32", 10), kept("fc2", "float16", 30)]
    trace.steps[1].numbers += [kept("fc1", "float16", 130)]
    other.steps[1].numbers += [kept("fc1", "float16", 120)]
    assert summarize([other, trace]).saved == Saved(
        140, 1, (("float16", 130), ("float32", 10)), (("fc1", 100), ("fc2", 30), ("", 10))
    )
    assert summarize([samples.trace()]).saved is None


def test_of_live_tensors_the_moment_with_most_is_told_for_each_device() -> None:
    def live(device: str, together: int, **dtypes: int) -> list[Number]:
        return [
            Number("live", subject=device, dtype=dtype, values={"bytes": amount, "together": together})
            for dtype, amount in dtypes.items()
        ]

    one, other = samples.trace(), samples.trace()
    one.steps[0].numbers += [*live("cpu", 70, float32=60, bfloat16=10), *live("cpu", 50, float32=20, bfloat16=30)]
    one.steps[1].numbers += [*live("cpu", 65, float32=5, bfloat16=60), *live("cuda:0", 9, float16=9)]
    other.steps[2].numbers += live("cuda:0", 12, float16=5, float32=7)
    assert summarize([one, other]).live == (
        Live("cpu", 70, 1, (("float32", 60), ("bfloat16", 10))),
        Live("cuda:0", 12, 3, (("float32", 7), ("float16", 5))),
    )


def test_a_dry_run_tells_no_values() -> None:
    """Losses and scales of a dry run were not computed; operators and casts are real."""
    trace = samples.trace(header=samples.header(dry=True))
    trace.steps[0].numbers.append(Number("loss", values={"value": 0.0}))
    summary = summarize([trace])
    assert not summary.scales and summary.health == ()
    assert summary.casts and summary.work
    real = samples.trace()
    real.steps[0].numbers.append(Number("loss", values={"value": 0.5}))
    assert summarize([real]).scales and [each.name for each in summarize([real]).health] == ["loss"]


def loss(line: int, value: float | None) -> Number:
    return Number("loss", Place("/work/train.py", line), values={"value": value})


def test_a_step_has_the_loss_of_all_its_backward_passes() -> None:
    trace = samples.trace()
    for record, values in zip(trace.steps, ([1.0, 2.0], [0.5, 0.25], [0.125, None])):
        record.numbers += [loss(7, value) for value in values]
    (one,) = (each for each in summarize([trace]).health if each.name.startswith("loss"))
    assert one.name == "loss, summed over the 2 backward passes of a step"
    assert (one.first, one.last, one.largest, one.nonfinite) == (3.0, 0.75, 3.0, (3,))


def test_losses_of_two_models_are_told_apart() -> None:
    trace = samples.trace()
    for record in trace.steps:
        record.numbers += [loss(7, 1.0), loss(9, 20.0)]
    found = {each.name: each.last for each in summarize([trace]).health}
    assert found == {"loss of line 7": 1.0, "loss of line 9": 20.0}


def test_norms_before_and_after_clipping_have_names_of_their_own() -> None:
    trace = samples.trace()
    trace.steps[0].numbers += [
        Number("clip", values={"norm": 640.0, "scale": 64.0, "unscaled": 10.0}),
        Number("grad_norm", subject="SGD", values={"norm": 1.0, "scale": 1.0}),
    ]
    found = {each.name: each.first for each in summarize([trace]).health}
    assert found == {"gradient norm before clipping": 10.0, "gradient norm at the step": 1.0}


def test_gradient_norms_of_several_optimizers_are_told_apart() -> None:
    """In a GAN each network has its own; what neither is would be a mixture of both."""
    trace = samples.trace()
    for at, record in enumerate(trace.steps):
        record.numbers += [
            Number("grad_norm", subject="netD", values={"norm": 8.0 - at, "scale": 1.0}),
            Number("clip", subject="netG", values={"norm": 2.0, "unscaled": 2.0}),
            Number("grad_norm", subject="netG", values={"norm": 1.0 + at, "scale": 1.0}),
        ]
    found = {each.name: (each.first, each.last) for each in summarize([trace]).health}
    assert found == {
        "gradient norm before clipping of netG": (2.0, 2.0),
        "gradient norm at the step of netD": (8.0, 6.0),
        "gradient norm at the step of netG": (1.0, 3.0),
    }
