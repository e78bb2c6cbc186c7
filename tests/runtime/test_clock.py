"""What a step is, which are recorded, when enough was seen."""

from __future__ import annotations

import pytest

from amp_audit.runtime.clock import DENSE_BUDGET, DENSE_STEPS, Clock, Plan, parse_deep, parse_sample


def run(clock: Clock, calls: str) -> list[int]:
    """Let optimizers step in the order of their letters; the step of each call."""
    clock.built = len(set(calls))
    return [clock.optimizer_stepped(ord(letter)) for letter in calls]


def test_one_optimizer_makes_a_step_a_call() -> None:
    assert run(Clock(), "aaa") == [1, 2, 3]


def test_two_optimizers_make_one_step_until_one_repeats() -> None:
    assert run(Clock(), "dgdgdg") == [1, 1, 2, 2, 3, 3]
    assert run(Clock(), "dddgdddg") == [1, 2, 3, 3, 4, 5, 6, 6]


def iterations(clock: Clock, calls: str) -> list[int]:
    """Let optimizers step; a capital letter is built there, a blank begins an iteration. The step of each call."""
    found = []
    for letter in calls:
        if letter == " ":
            clock.iteration_begins()
        elif letter.isupper():
            clock.optimizer_built()
        else:
            found.append(clock.optimizer_stepped(ord(letter)))
    return found


def test_optimizers_one_after_another_make_a_step_each() -> None:
    assert iterations(Clock(), "A a a a B b b b C c c c") == [1, 2, 3, 4, 5, 6, 7, 8, 9]  # folds
    assert iterations(Clock(), "ABC a a a b b b c c c") == [1, 2, 3, 4, 5, 6, 7, 8, 9]  # built beforehand
    assert iterations(Clock(), "A a B b C c") == [1, 2, 3]  # one step a fold
    assert iterations(Clock(2), "A a B b") == [1, 2]


def test_optimizers_that_take_turns_share_a_step_whether_or_not_each_has_a_backward_of_its_own() -> None:
    assert iterations(Clock(), "DG d g d g d g") == [1, 1, 2, 2, 3, 3]
    assert iterations(Clock(), "DG dg dg dg") == [1, 1, 2, 2, 3, 3]
    assert iterations(Clock(), "AB a a ab ab") == [1, 2, 3, 3, 4, 4]  # the second one joins later, without a backward


def test_a_fold_is_enough_as_soon_as_it_has_the_steps() -> None:
    clock = Clock(4)
    assert iterations(clock, "A a a a B b") == [1, 2, 3, 4]
    assert clock.enough()


@pytest.mark.parametrize(
    ("calls", "built", "complete"),
    [
        ("", 1, False),
        ("a", 1, True),  # the only optimizer there is
        ("d", 2, False),  # the other one may follow
        ("dg", 2, True),
        ("d", 0, True),  # built before we listened: nothing to wait for
        ("ddg", 2, True),
        ("dgd", 2, False),
        ("dgdg", 2, True),
    ],
)
def test_a_step_is_complete_when_it_has_what_the_one_before_had(calls: str, built: int, complete: bool) -> None:
    clock = Clock()
    run(clock, calls)
    clock.built = built
    assert clock.complete() is complete


def test_enough_is_known_as_early_as_it_can_be() -> None:
    def first(calls: str, steps: int, built: int) -> int | None:
        clock = Clock(steps)
        clock.built = built
        for number, letter in enumerate(calls, 1):
            clock.optimizer_stepped(ord(letter))
            if clock.enough():
                return number
        return None

    assert first("aaaa", 3, 1) == 3
    assert first("dgdgdg", 2, 2) == 4
    assert first("aaaa", 1, 2) == 2  # an optimizer that is never used delays the only step by one call
    assert first("aaaa", 3, 2) == 3
    assert first("aa", 3, 1) is None
    assert Clock(None).enough() is False


def plans(clock: Clock, steps: int, anomalies: tuple[int, ...] = ()) -> dict[int, Plan]:
    clock.built = 1
    found = {}
    for number in range(1, steps + 1):
        found[number] = clock.begin()
        clock.optimizer_stepped(0)
        if number in anomalies:
            clock.anomaly()
    return found


def recorded(found: dict[int, Plan]) -> list[int]:
    return [number for number, plan in found.items() if plan.recorded]


def test_short_runs_are_recorded_whole_and_long_ones_here_and_there() -> None:
    assert recorded(plans(Clock(20), 20)) == list(range(1, 21))
    assert recorded(plans(Clock(50), 50)) == list(range(1, 51))
    assert recorded(plans(Clock(51), 51)) == [1, 2, 3, 4, 5, 50]
    assert recorded(plans(Clock(None), 160)) == [1, 2, 3, 4, 5, 50, 100, 150]
    assert recorded(plans(Clock(None, "all"), 70)) == list(range(1, 71))
    assert recorded(plans(Clock(None, 3), 10)) == [1, 4, 7, 10]
    assert recorded(plans(Clock(4, "all"), 6)) == [1, 2, 3, 4]


def test_steps_after_an_anomaly_are_recorded_but_not_for_ever() -> None:
    assert recorded(plans(Clock(None), 60, (20, 21))) == [1, 2, 3, 4, 5, 21, 22, 23, 24, 50]
    always = recorded(plans(Clock(None), 400, tuple(range(1, 401))))
    assert always == [*range(1, 1 + DENSE_BUDGET + DENSE_STEPS), 100, 150, 200, 250, 300, 350, 400]


def test_few_steps_are_deep() -> None:
    deep = [number for number, plan in plans(Clock(None, "all"), 35).items() if plan.deep]
    assert deep == [2, 10, 20, 30]
    assert [plan.deep for plan in plans(Clock(1), 1).values()] == [True]
    sampled = [number for number, plan in plans(Clock(None), 400).items() if plan.deep]
    assert sampled == [2, 250]
    after = [number for number, plan in plans(Clock(20), 20, (6, 13)).items() if plan.deep]
    assert after == [2, 7, 10, 14, 20]


def test_as_many_steps_are_deep_as_the_user_says() -> None:
    def deep(word: str, sample: str = "all") -> list[int]:
        clock = Clock(None, parse_sample(sample), parse_deep(word))
        return [number for number, plan in plans(clock, 9, (4,)).items() if plan.deep]

    assert deep("all") == list(range(1, 10))
    assert deep("none") == []
    assert deep("4") == [1, 5, 9]
    assert deep("2", sample="3") == [1, 5, 7]  # of the steps 1, 4, 5 to 7 (after the anomaly)
    for text in ("0", "some", "-1", ""):
        with pytest.raises(ValueError, match="deep must be"):
            parse_deep(text)


def test_both_parts_of_a_step_are_treated_alike() -> None:
    clock = Clock(20)
    clock.built = 2
    found = []
    for letter in "dgdgdg":
        found.append(clock.begin())
        clock.optimizer_stepped(ord(letter))
    assert [plan.deep for plan in found] == [False, False, True, True, False, False]


def test_samples_are_parsed() -> None:
    assert [parse_sample(text) for text in ("default", "all", "1", "50")] == ["default", "all", 1, 50]
    for text in ("0", "-1", "some", "", "1.5", "²"):
        with pytest.raises(ValueError, match="sample must be"):
            parse_sample(text)


def test_only_the_first_recorded_step_is_followed() -> None:
    assert [number for number, plan in plans(Clock(20), 20).items() if plan.follow] == [1]
    assert [number for number, plan in plans(Clock(None, sample=7), 30).items() if plan.follow] == [1]
    for deep in ("none", "all", 1):
        assert not any(plan.follow for plan in plans(Clock(20, deep=deep), 20).values())
