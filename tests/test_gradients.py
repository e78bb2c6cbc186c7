"""What becomes of gradients over the iterations of an accumulation."""

from __future__ import annotations

import pytest

from amp_audit import gradients
from amp_audit.events import Boundary, Event, Kind
from amp_audit.gradients import Gradients

END = Boundary("n", "i", -1, named=True)
START = Boundary("n", "i", 0, named=True)


def backward(held: Gradients, *divided: str) -> Gradients:
    return gradients.added(held, Event(Kind.BACKWARD, scaled=True, divided=frozenset(divided)), False)


def waits(held: Gradients, *tests: Boundary) -> Gradients:
    return gradients.carried_on(held, Event(Kind.ITERATION_END, boundaries=frozenset(tests)))


def clearing(*tests: Boundary, sometimes: bool = False) -> Event:
    return Event(Kind.ZERO_GRAD, boundaries=frozenset(tests), sometimes=sometimes)


def test_what_a_step_used_stays_until_it_is_cleared() -> None:
    used = gradients.spent(backward(Gradients()))
    assert not used.leftover
    assert backward(used).leftover
    assert not backward(gradients.cleared(used, clearing())).leftover


def test_several_micro_batches_are_summed_unless_something_divides_them() -> None:
    step = Event(Kind.STEP, boundaries=frozenset({END}))
    assert gradients.summed([backward(waits(backward(Gradients()), END))], step)
    assert not gradients.summed([backward(waits(backward(Gradients()), END), "n")], step)
    assert not gradients.summed([backward(Gradients())], step)
    assert not gradients.summed([], step)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (clearing(), "every"),
        (clearing(sometimes=True), "no"),
        (clearing(START), "no"),  # at the start of a window, before its first backward
        (clearing(END), "no"),
    ],
)
def test_what_was_carried_over_is_wasted_where_it_is_cleared_whatever_the_count(event: Event, expected: str) -> None:
    assert gradients.wasted([waits(backward(Gradients()), END)], event) == expected


def test_a_test_that_nothing_ties_to_accumulation_says_nothing() -> None:
    other = Boundary("n_critic", "i", 0)
    held = waits(backward(Gradients()), other)
    assert gradients.wasted([held], clearing()) == "no"
    assert gradients.wasted([waits(backward(Gradients(), "n_critic"), other)], clearing()) == "every"


def test_clearing_after_backward_at_another_count_wastes_what_is_there() -> None:
    held = backward(waits(backward(Gradients()), END))
    assert gradients.wasted([held], clearing(START)) == "between"
    assert gradients.wasted([held], clearing(END)) == "no"
    assert gradients.wasted([held], clearing(Boundary("n", "j", 0))) == "no"


def test_counts_are_the_same_modulo_a_known_number() -> None:
    held = backward(waits(backward(Gradients()), Boundary(4, "i", 3)))
    assert gradients.wasted([held], clearing(Boundary(4, "i", -1))) == "no"
    assert gradients.wasted([held], clearing(Boundary(4, "i", 0))) == "between"


def test_clearing_in_the_iteration_of_the_step_comes_too_late() -> None:
    step = Event(Kind.STEP, boundaries=frozenset({END}))
    held = backward(gradients.cleared(waits(backward(Gradients()), END), clearing(END)))
    assert gradients.wiped_late([held], step)
    assert not gradients.wiped_late([waits(held)], step)
    other = backward(gradients.cleared(waits(backward(Gradients()), END), clearing(START)))
    assert not gradients.wiped_late([other], step)


def test_where_the_first_count_is_the_last_one_too_each_step_has_one_micro_batch() -> None:
    """``i % n == 0`` and ``(i + 1) % n == 0`` at once: n is 1."""
    both = Event(Kind.STEP, boundaries=frozenset({START, END}))
    held = backward(gradients.cleared(waits(backward(Gradients()), START, END), clearing(START)))
    assert not gradients.wiped_late([held], both)
    assert not gradients.summed([backward(waits(backward(Gradients()), START, END))], both)
    other = Event(Kind.STEP, boundaries=frozenset({START, Boundary("n", "j", -1, named=True)}))
    assert gradients.wiped_late([held], other)


def test_clearing_in_another_loop_is_another_matter() -> None:
    inner = Boundary("n", "i", -1, named=True, loops=(1, 2))
    held = waits(backward(Gradients()), inner)
    assert gradients.wasted([held], Event(Kind.ZERO_GRAD, loops=(1,))) == "no"
    assert gradients.wasted([held], Event(Kind.ZERO_GRAD, loops=(1, 2))) == "every"


@pytest.mark.parametrize(("loops", "expected"), [((1,), "every"), ((1, 2), "every"), ((), "no")])
def test_a_test_that_was_missed_speaks_of_the_loop_in_which_it_stands(loops: tuple[int, ...], expected: str) -> None:
    test = Boundary("accumulate", "i", -1, named=True, loops=(1,))
    event = Event(Kind.ZERO_GRAD, missed=frozenset({test}), loops=loops)
    assert gradients.wasted([backward(Gradients())], event) == expected
