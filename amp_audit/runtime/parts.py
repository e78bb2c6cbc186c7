"""What the parts of the runtime half ask of each other, so that none of them needs to know another.

``tracer`` sees operators, ``signals`` sees the training protocol, ``numerics`` and ``weights`` measure; ``Session``
brings them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from amp_audit.trace.schema import EventRow, Number, Place

T = TypeVar("T")


class CastKey(NamedTuple):
    """The key under which casts are counted: one ``CastRow``. ``site`` is resolved by ``Session.places.place``."""

    phase: str
    source: str
    target: str
    site: int


class CastCounts(NamedTuple):
    """Counts of elements, see ``CastRow``."""

    nonzero: int
    flushed: int
    subnormal: int
    zero: int
    overflowed: int


class Part(Protocol):
    """Something that measures on recorded steps."""

    def step_begin(self, *, deep: bool) -> None:
        """A recorded step begins; ``deep`` steps may cost a multiple of a plain one."""

    def step_end(self) -> None:
        """It ended: the device may be read now; results go to ``Session.number``."""


class Observer(Part, Protocol):
    """A part that is shown operators: casts on recorded steps, every computing operator on deep ones.

    ``func`` is the ``OpOverload``, ``phase`` one of ``schema.PHASES``. Nothing in here may wait for the device, and
    operators called in here are not traced. ``follows``: on the step that begins next all operators are shown, though
    it is not deep.
    """

    follows: bool

    @property
    def cast_targets(self) -> frozenset[Any]:
        """The dtypes to which casts are shown on steps that are not deep."""

    def before(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], phase: str, site: int) -> Any:
        """Called before the operator overwrites anything; what is returned is given to ``after``."""

    def after(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, phase: str, site: int, kept: Any
    ) -> None:
        """Called with the result. ``kept`` is None when ``before`` was not called: casts, unless the step is deep."""

    def cast_counts(self) -> Mapping[CastKey, CastCounts]:
        """After ``step_end``: the value counts of the casts seen in this step."""


class Names(Protocol):
    """What modules and parameters are called."""

    def parameter(self, parameter: Any) -> str | None:
        """The dotted name of a parameter, None when no module with it has run."""


class Places(Protocol):
    """Where things happen (``place.py``)."""

    @property
    def modules(self) -> Names:
        """What modules and parameters are called."""

    def place(self, site: int) -> Place:
        """The place of a site that the tracer handed out."""

    def here(self) -> Place:
        """The calling thread's innermost line outside torch and outside amp_audit; columns where Python gives them."""

    def entered_by_program(self) -> bool:
        """Whether what the calling thread is entering is entered by the program, not around it by a framework."""


class Probe(Protocol):
    """A part that looks at an optimizer around its step."""

    def gradients_ready(self, optimizer: Any) -> None:
        """Its gradients are complete and about to be used, also when the step is then left out for an inf in them."""

    def before_step(self, optimizer: Any, *, closure: bool) -> None:
        """It is about to step; with a ``closure`` its gradients are yet to be computed."""

    def after_step(self, optimizer: Any) -> None:
        """It has stepped, before the session hears of it."""


class Listener(Protocol):
    """Is told that a backward begins."""

    def __call__(self, roots: Sequence[Any], *, nested: bool) -> None:
        """``roots``: the tensors that it is of; ``nested``: it runs inside another one."""


class Scene(Protocol):
    """What ``Signals`` knows and the measuring parts need. They enter themselves in ``probes`` and ``before_backward``
    when they are built.
    """

    probes: list[Probe]
    before_backward: list[Listener]

    @property
    def parallel(self) -> bool:
        """Whether several threads train at once: what is not the calling thread's own may change at any moment."""

    def read(self, look: Callable[[], T]) -> T | None:
        """What ``look`` returns, which reads any gradients; None, uncalled, while another thread's backward runs."""

    @property
    def current_scale(self) -> Any:
        """The loss scale in force, a tensor; None when nothing was scaled yet."""

    def loss_scale(self, optimizer: Any) -> Any:
        """The scale, a tensor, that its gradients still carry; None where they carry none that is known."""

    def optimizers(self) -> list[Any]:
        """All optimizers that are alive."""

    def name(self, parameter: Any) -> str:
        """What a person would call a parameter."""

    def label(self, optimizer: Any) -> str:
        """What tells an optimizer that is about to step from the others."""


class Noting(Protocol):
    """To whom it is said what could not be seen."""

    def note(self, text: str) -> None:
        """Say it once."""


class Host(Protocol):
    """What ``signals``, ``numerics`` and ``weights`` ask of the session.

    Beside its ``Part`` calls, ``Signals.settle()`` is called at the end of *every* step, before the step is written:
    only then does it read what was queued on the device, completing events handed over earlier. ``Numerics(host,
    signals)`` is an ``Observer`` and ``Weights(host, signals)`` a ``Part``, both on recorded steps.
    """

    @property
    def places(self) -> Places:
        """Where things happen."""

    def event(self, row: EventRow) -> None:
        """Add a protocol event to the step in progress. Its ``skipped`` may still be filled in until ``settle``."""

    def number(self, number: Number) -> None:
        """Add a measured number to the step in progress."""

    def note(self, text: str) -> None:
        """Say once what could not be seen."""

    def unobserved(self, what: str, count: int = 1) -> None:
        """Count what was not measured (``End.unobserved``)."""

    def look_closely(self) -> None:
        """Ask for a deep step, the next one, if the user left it to us which are."""

    def optimizer_step(self, optimizer: Any) -> None:
        """Tell the clock that an optimizer stepped or was skipped, before it changes anything in this step."""

    def optimizer_stepped(self, optimizer: Any, *, skipped: bool) -> None:
        """Tell the clock that it is over; here a step may end."""
