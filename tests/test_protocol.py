"""The state machine held against torch itself: the same calls must fail, or go wrong, where the machine says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_audit.events import Boundary, Event, Kind, Via
from amp_audit.protocol import ANYONE, advance
from amp_audit.state import State, forget, get, join

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

SCALE = 1024.0


class Raised(Exception):
    """torch refused the call."""


@dataclass
class Program:
    """Two parameters with an optimizer each and one scaler: every call goes to torch and to the machine.

    The true gradient of every backward is 1, so a gradient's value tells how often and under which scale it was
    added. ``tainted`` parameters hold gradients whose true value is no longer a plain count.
    """

    state: State = field(default_factory=State)
    count: dict[str, int] = field(default_factory=lambda: {"A": 0, "B": 0})
    tainted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.parameters = {name: torch.nn.Parameter(torch.zeros(())) for name in "AB"}
        self.optimizers = {name: torch.optim.SGD([p], lr=0.0) for name, p in self.parameters.items()}
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=1)
        for name in "AB":
            self.tell(Event(Kind.OPTIMIZER_NEW, optimizer=f"opt{name}", owners=(name,)))
        self.tell(Event(Kind.SCALER_NEW, scaler="scaler"))

    def tell(self, event: Event) -> dict[str, object]:
        self.state, facts = advance(self.state, event)
        return dict(facts)

    def scaled(self) -> bool:
        return "scale" in self.state.ever

    def backward(self, names: str, scaled: bool) -> None:
        loss = sum(self.parameters[name] * 1.0 for name in names)
        if scaled:
            self.tell(Event(Kind.SCALE, scaler="scaler"))
            loss = self.scaler.scale(loss)
        loss.backward()
        self.tell(Event(Kind.BACKWARD, owners=tuple(names), scaled=scaled))
        for name in names:
            self.count[name] += 1

    def refuses(self, event: Event, facts: dict[str, object]) -> bool:
        """Whether the machine says that torch raises."""
        if not self.scaled():
            return True
        if event.kind is Kind.UPDATE:
            return facts["round"] == "open" and not facts["given"]
        if event.kind is Kind.UNSCALE:
            return facts["phase"] != "ready"
        return facts["phase"] == "stepped" or (facts["phase"] == "ready" and facts["gradients"] == "none")

    def event(self, op: str, name: str) -> Event:
        return {
            "unscale": Event(Kind.UNSCALE, scaler="scaler", optimizer=f"opt{name}"),
            "step": Event(Kind.STEP, scaler="scaler", optimizer=f"opt{name}", via=Via.SCALER),
            "plain_step": Event(Kind.STEP, optimizer=f"opt{name}", via=Via.PLAIN),
            "update": Event(Kind.UPDATE, scaler="scaler"),
            "update_given": Event(Kind.UPDATE, scaler="scaler", given=True),
            "zero_grad": Event(Kind.ZERO_GRAD, optimizer=f"opt{name}"),
        }[op]

    def would_refuse(self, op: str, name: str) -> bool:
        event = self.event(op, name)
        asked = op in ("unscale", "step", "update", "update_given")
        return asked and self.refuses(event, dict(advance(self.state, event)[1]))

    def call(self, op: str, name: str) -> None:
        """One call to the scaler or the optimizer. Raises Raised where torch does."""
        optimizer, parameter = self.optimizers[name], self.parameters[name]
        event = self.event(op, name)
        known = self.scaled()
        before = self.state
        facts = self.tell(event)
        self.compare(name, facts)
        try:
            {
                "unscale": lambda: self.scaler.unscale_(optimizer),
                "step": lambda: self.scaler.step(optimizer),
                "plain_step": optimizer.step,
                "update": self.scaler.update,
                "update_given": lambda: self.scaler.update(SCALE),
                "zero_grad": optimizer.zero_grad,
            }[op]()
        except (RuntimeError, AssertionError) as error:
            assert not known or self.refuses(event, facts), f"torch refused {op}, the machine did not: {error}"
            raise Raised from error
        if op in ("unscale", "step", "update", "update_given"):
            assert known, f"torch took {op} before any scale"
            assert not self.refuses(event, facts), f"the machine refused {op}, torch did not: {facts} {before}"
        self.settle(op, name, facts)
        assert parameter.grad is None or torch.isfinite(parameter.grad)

    def compare(self, name: str, facts: dict[str, object]) -> None:
        """The machine's word for a gradient against the gradient."""
        if name in self.tainted or "gradients" not in facts or facts["consumed"]:
            return
        grad, count = self.parameters[name].grad, self.count[name]
        value, scale = facts["gradients"], self.scaler.get_scale()
        if grad is None:
            assert value == "none"
        elif value in ("plain", "unscaled"):
            assert grad.item() == count
        elif value == "scaled":
            assert (grad.item() == count * scale) is (not facts["rescaled"])
        else:
            assert value == "mixed"
            assert grad.item() not in (count, count * scale)

    def settle(self, op: str, name: str, facts: dict[str, object]) -> None:
        if op == "zero_grad":
            self.count[name] = 0
            self.tainted.discard(name)
        if op in ("step", "plain_step") or (
            op == "unscale" and (facts["gradients"] not in ("scaled", "none") or facts["rescaled"])
        ):
            self.tainted.add(name)
        if op == "update_given":
            self.tainted |= {n for n in "AB" if self.count[n]}  # the scale may be the same as before


FRAGMENTS = [
    *(
        "backward+A",
        "backward-A",
        "backward+B",
        "backward+AB",
        "backward+A unscale:A",
        "backward+A unscale:A backward-A",
    ),
    *("unscale:A", "step:A", "step:B", "plain_step:A", "zero_grad:A", "zero_grad:B", "update:A", "update_given:A"),
    *("step:A update:A", "unscale:A backward+A", "unscale:A update:A", "update:A unscale:A"),
]


@settings(max_examples=600, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.sampled_from([False, False, False, True])), max_size=10))
def test_any_sequence_fails_in_torch_exactly_where_the_machine_says(fragments: list[tuple[str, bool]]) -> None:
    """A call that the machine says torch refuses is dared one time in four; afterwards nothing has changed, unless
    nothing was scaled yet or an optimizer without gradients was refused in the middle of its step.
    """
    program = Program()
    for call, dare in [(call, dare) for fragment, dare in fragments for call in fragment.split()]:
        if call.startswith("backward"):
            program.backward(call[9:], scaled=call[8] == "+")
            continue
        op, _, name = call.partition(":")
        if op == "unscale" and program.parameters[name].grad is None:
            continue  # torch then holds an unscaled optimizer without checks, which the machine does not tell apart
        if program.would_refuse(op, name) and not dare:
            continue
        try:
            program.call(op, name)
        except Raised:
            if program.parameters[name].grad is None or op == "update" or not program.scaled():
                return


ITERATION = ["backward+", "unscale", "step", "update", "zero_grad"]


@pytest.mark.parametrize(
    ("calls", "fails"),
    [
        (ITERATION * 2, None),
        (["backward+", "step", "update"] * 3, None),
        (["backward+", "unscale", "unscale"], 2),
        (["backward+", "step", "unscale"], 2),
        (["backward+", "step", "backward+", "step"], 3),
        (["backward+", "update"], 1),
        (["backward+", "step", "update", "update"], 3),
        (["step"], 0),
        (["unscale"], 0),
        (["update"], 0),
        (["backward+", "update_given"], None),
        (["backward+", "zero_grad", "step"], 2),
        (["backward+", "unscale", "zero_grad", "step", "update"], None),
        (["backward+", "zero_grad", "unscale", "update"], 3),
    ],
)
def test_known_sequences(calls: list[str], fails: int | None) -> None:
    program = Program()
    for number, op in enumerate(calls):
        if op.startswith("backward"):
            program.backward("A", op.endswith("+"))
            continue
        if number == fails:
            with pytest.raises(Raised):
                program.call(op, "A")
            return
        program.call(op, "A")
    assert fails is None


# Regions and their cached weights, held against autocast on the CPU


class Layer:
    """One weight under bfloat16 autocast; ``forward`` says whether an old copy of the weight was used."""

    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(4, 4))
        self.state = State()
        self.open: list[torch.autocast] = []

    def tell(self, event: Event) -> dict[str, object]:
        self.state, facts = advance(self.state, event)
        return dict(facts)

    def enter(self, enabled: bool, cache: bool) -> None:
        region = torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled, cache_enabled=cache)
        region.__enter__()
        self.open.append(region)
        self.tell(Event(Kind.REGION_ENTER, region=len(self.open), dtype="bfloat16", enabled=enabled, cache=cache))

    def exit(self) -> None:
        if self.open:
            self.open.pop().__exit__(None, None, None)
            self.tell(Event(Kind.REGION_EXIT))

    def write(self) -> None:
        with torch.no_grad():
            self.weight.add_(1.0)
        self.tell(Event(Kind.WEIGHT_WRITE, owners=("W",)))

    def step(self) -> None:
        with torch.no_grad():
            self.weight.add_(2.0)  # only upwards, so that an old copy is never right by chance
        self.tell(Event(Kind.STEP, owners=("W",), via=Via.PLAIN))

    def clear(self) -> None:
        torch.clear_autocast_cache()
        self.tell(Event(Kind.CACHE_CLEAR))

    def forward(self) -> None:
        out = torch.nn.functional.linear(torch.ones(1, 4), self.weight)
        facts = self.tell(Event(Kind.FORWARD, owners=("W",)))
        really = not torch.equal(out.detach().float(), self.weight.detach().sum(1)[None])
        assert bool(facts.get("stale")) is really


REGION_CALLS = st.one_of(
    st.sampled_from([("exit",), ("write",), ("step",), ("clear",), ("forward",), ("forward",)]),
    st.tuples(st.just("enter"), st.booleans(), st.booleans()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(REGION_CALLS, max_size=14))
def test_stale_weights_are_where_the_machine_says(calls: list[tuple[object, ...]]) -> None:
    layer = Layer()
    try:
        for name, *arguments in calls:
            getattr(layer, str(name))(*arguments)
    finally:
        while layer.open:
            layer.exit()


@pytest.mark.parametrize(
    "calls",
    [
        "enter forward step forward",
        "enter forward clear step forward",
        "enter forward step clear forward step forward",
        "enter forward exit step enter forward",
        "enter enter forward exit step forward",
        "enter clear forward write forward",
    ],
)
def test_known_regions(calls: str) -> None:
    layer = Layer()
    try:
        for name in calls.split():
            getattr(layer, name)(*((True, True) if name == "enter" else ()))
    finally:
        while layer.open:
            layer.exit()


def test_one_loop_inside_one_region_trains_on_old_weights() -> None:
    layer = Layer()
    layer.enter(True, True)
    layer.forward()
    layer.write()
    out = torch.nn.functional.linear(torch.ones(1, 4), layer.weight)
    facts = layer.tell(Event(Kind.FORWARD, owners=("W",)))
    layer.exit()
    assert facts["stale"] == "write"
    assert not torch.equal(out.detach().float(), layer.weight.detach().sum(1)[None])


def test_each_model_has_a_cache_of_its_own_in_a_region() -> None:
    enter = Event(Kind.REGION_ENTER, region=1, dtype="bfloat16", enabled=True)
    one, two = Event(Kind.FORWARD, owners=("m",)), Event(Kind.FORWARD, owners=("n",))
    step = Event(Kind.STEP, owners=("m",), via=Via.PLAIN)
    assert run([enter, one, two, step, one])[-1]["stale"] == "step"
    assert run([enter, two, step, one])[-1].get("stale") is None
    assert run([enter, one, two, step, two])[-1].get("stale") is None


# Facts that torch keeps silent about


def run(events: Iterable[Event]) -> list[dict[str, object]]:
    state, seen = State(), []
    for event in events:
        state, facts = advance(state, event)
        seen.append(dict(facts))
    return seen


def scaler_new(name: str = "s", site: str = "here") -> Event:
    return Event(Kind.SCALER_NEW, scaler=name, site=site)


def optimizer_new(name: str = "o", owner: str = "m") -> Event:
    return Event(Kind.OPTIMIZER_NEW, optimizer=name, owners=(owner,))


def backward(scaled: bool | None, *owners: str, dtype: str | None = None) -> Event:
    return Event(Kind.BACKWARD, scaled=scaled, owners=owners, dtype=dtype)


def test_an_update_between_two_optimizers_of_one_backward_rescales_the_second() -> None:
    step = Event(Kind.STEP, scaler="s", optimizer="o2", via=Via.SCALER)
    facts = run(
        [
            scaler_new(),
            optimizer_new("o1", "m1"),
            optimizer_new("o2", "m2"),
            backward(True, "m1", "m2"),
            Event(Kind.STEP, scaler="s", optimizer="o1", via=Via.SCALER),
            Event(Kind.UPDATE, scaler="s"),
            step,
        ]
    )
    assert facts[5]["pending"] is True
    assert facts[6]["rescaled"] is True


def test_accumulating_over_an_update_keeps_the_old_scale_in_the_sum() -> None:
    facts = run(
        [
            scaler_new(),
            optimizer_new(),
            backward(True, "m"),
            Event(Kind.UPDATE, scaler="s", given=True),
            backward(True, "m"),
            Event(Kind.UNSCALE, scaler="s", optimizer="o"),
        ]
    )
    assert facts[-1]["rescaled"] is True


def test_a_new_scaler_from_the_same_line_is_a_replacement_and_from_another_line_is_not() -> None:
    def steps(site: str) -> object:
        last = Event(Kind.STEP, scaler="s2", optimizer="o", via=Via.SCALER)
        first = Event(Kind.STEP, scaler="s", optimizer="o", via=Via.SCALER)
        return run([scaler_new(), optimizer_new(), first, scaler_new("s2", site), last])[-1]["scaler_replaced"]

    assert steps("here") is True
    assert steps("there") is False


def test_gradients_written_by_hand_are_unknown_unless_they_needed_nothing() -> None:
    write, clip = Event(Kind.GRAD_WRITE, owners=("m",)), Event(Kind.CLIP, owners=("m",))
    assert run([optimizer_new(), backward(True, "m"), write, clip])[-1]["gradients"] == "unknown"
    assert run([optimizer_new(), backward(False, "m"), write, clip])[-1]["gradients"] == "plain"
    assert run([optimizer_new(), write, clip])[-1]["gradients"] == "unknown"


def test_nested_dtypes_conflict_on_one_device_only() -> None:
    def nested(outer: str, inner: str, device: str, cache: bool = True) -> object:
        return run(
            [
                Event(Kind.REGION_ENTER, region=1, device="cuda", dtype=outer, enabled=True),
                Event(Kind.REGION_ENTER, region=2, device=device, dtype=inner, enabled=True, cache=cache),
            ]
        )[-1]["dtype_conflict"]

    assert nested("float16", "bfloat16", "cuda") is True
    assert nested("float16", "bfloat16", "cpu") is False
    assert nested("float16", "float16", "cuda") is False
    assert nested("float16", "bfloat16", "cuda", cache=False) is False


def test_clearing_between_backward_and_step_is_remembered_for_one_iteration() -> None:
    clear, step = Event(Kind.ZERO_GRAD, optimizer="o"), Event(Kind.STEP, optimizer="o", via=Via.PLAIN)
    start = [optimizer_new(), backward(False, "m"), clear]
    assert run([*start, step])[-1]["cleared"] is True
    assert run([*start, Event(Kind.ITERATION_END), step])[-1]["cleared"] is False
    assert run([*start, backward(False, "m"), step])[-1]["cleared"] is False


def test_unresolved_owners_mean_the_only_live_one_else_unknown() -> None:
    clip = Event(Kind.CLIP, owners=None)
    one = run([optimizer_new("a", "m1"), optimizer_new("b", "m2"), backward(True, "m1"), clip])[-1]
    two = run([optimizer_new("a", "m1"), optimizer_new("b", "m2"), backward(True, "m1"), backward(False, "m2"), clip])[
        -1
    ]
    assert (one["gradients"], one["assumed"]) == ("scaled", True)
    assert two["gradients"] == "unknown"


def test_without_any_optimizer_gradients_belong_to_anyone() -> None:
    state, _ = advance(State(), backward(True))
    held = get(state.owners, ANYONE)
    assert held is not None
    assert held.value == "scaled"


def test_the_dtype_of_a_loss_survives_until_the_step() -> None:
    step = Event(Kind.STEP, scaler="s", optimizer="o", via=Via.SCALER)
    start = [scaler_new(), optimizer_new()]
    assert run([*start, backward(True, "m", dtype="bfloat16"), step])[-1]["forward_dtype"] == "bfloat16"
    mixed = [backward(True, "m", dtype="bfloat16"), backward(True, "m", dtype="float16")]
    assert run([*start, *mixed, step])[-1]["forward_dtype"] is None


def test_what_came_before_is_not_known_to_be_nothing() -> None:
    unscale = Event(Kind.UNSCALE, scaler="s", optimizer="o")
    step = Event(Kind.STEP, scaler="s", optimizer="o", via=Via.SCALER)
    start, _ = advance(State(), scaler_new())
    assert advance(start, unscale)[1]["raises"]
    later, facts = advance(forget(start), unscale)
    assert not facts["raises"]
    assert not advance(later, step)[1]["raises"]


def test_a_schedule_follows_the_step_of_its_own_iteration() -> None:
    step = Event(Kind.STEP, scaler="s", optimizer="o", via=Via.SCALER, loops=(1, 2))
    inner, outer = Event(Kind.SCHEDULER_STEP, loops=(1, 2)), Event(Kind.SCHEDULER_STEP, loops=(1,))
    start = [scaler_new(), optimizer_new(), backward(True, "m"), step]
    assert run([*start, inner])[-1]["after"] == "step"
    assert run([*start, Event(Kind.SCHEDULER_STEP, loops=(1, 2, 3))])[-1]["after"] == "step"
    assert run([*start, outer])[-1]["after"] == "none"
    assert run([*start, Event(Kind.ITERATION_END), inner])[-1]["after"] == "none"


EVENTS = st.builds(
    Event,
    kind=st.sampled_from(list(Kind)),
    scaler=st.sampled_from(["s", "t", None]),
    optimizer=st.sampled_from(["o", "p", None]),
    owners=st.sampled_from([(), ("m",), ("m", "n"), None]),
    via=st.sampled_from([*Via, None]),
    scaled=st.sampled_from([True, False, None]),
    region=st.sampled_from([1, 2, None]),
    device=st.sampled_from(["cpu", "cuda", None]),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", None]),
    enabled=st.sampled_from([True, False, None]),
    cache=st.booleans(),
    ran=st.sampled_from(["inside", "outside", None]),
    boundaries=st.sampled_from([frozenset(), frozenset({Boundary("n", "i", 0)}), frozenset({Boundary(2, "i", 1)})]),
    loops=st.sampled_from([(), (1,), (1, 2)]),
    read=st.sampled_from(["here", None]),
)


def after(events: list[Event]) -> State:
    state = State()
    for event in events:
        state, _ = advance(state, event)
    return state


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=10), st.lists(EVENTS, max_size=10), EVENTS)
def test_the_machine_takes_anything_and_joins_are_sound(one: list[Event], two: list[Event], then: Event) -> None:
    left, right = after(one), after(two)
    assert hash(left) == hash(after(one))
    assert left == after(one)
    assert join(left, left) == left
    assert join(left, right) == join(right, left)
    known = {"none", "plain", "scaled", "mixed", "unscaled"}
    _, joined = advance(join(left, right), then)
    _, first = advance(left, then)
    _, second = advance(right, then)
    if then.owners and joined.get("gradients") in known and not joined.get("assumed"):
        assert joined["gradients"] in (first.get("gradients"), second.get("gradients"))


@pytest.mark.parametrize(("linked", "expected"), [(True, "open"), (False, "unknown")])
def test_what_a_scaler_finds_of_an_unknown_optimizer_is_unknown(linked: bool, expected: str) -> None:
    """Of two models neither has gradients: an optimizer of one leaves no check behind, one whose parameters are not
    known may have those of a third."""
    state = State()
    for name in "AB":
        state, _ = advance(state, Event(Kind.OPTIMIZER_NEW, optimizer=f"opt{name}", owners=(name,)))
    state, _ = advance(state, Event(Kind.SCALE, scaler="scaler"))
    state, _ = advance(state, Event(Kind.UPDATE, scaler="scaler"))
    state, facts = advance(state, Event(Kind.UNSCALE, scaler="scaler", optimizer="optA" if linked else "another"))
    assert facts["gradients"] == "none"
    _, facts = advance(state, Event(Kind.UPDATE, scaler="scaler"))
    assert facts["round"] == expected


def test_a_region_without_a_cache_casts_what_runs_again() -> None:
    """Only there, only the same weights, and as long as they are the same."""

    def run(cache: bool, *events: Event) -> list[object]:
        state, told = State(), list[object]()
        region = Event(Kind.REGION_ENTER, region="r", device="cuda", dtype="float16", enabled=True, cache=cache)
        for event in (Event(Kind.OPTIMIZER_NEW, optimizer="o", owners=("A",)), region, *events):
            state, facts = advance(state, event)
            told += [facts["recast"]] if "recast" in facts else []
        return told

    one, other = Event(Kind.FORWARD, owners=("A",)), Event(Kind.FORWARD, owners=("B",))
    assert run(False, one, other, one, other) == [False, False, True, True]
    assert run(True, one, one) == []
    assert run(False, one, Event(Kind.STEP, optimizer="o", via=Via.PLAIN), one) == [False, False]
    inner = Event(Kind.REGION_ENTER, region="i", device="cuda", dtype="float16", enabled=True, cache=False)
    assert run(False, one, inner, one, Event(Kind.REGION_EXIT), one) == [False, False, True]
