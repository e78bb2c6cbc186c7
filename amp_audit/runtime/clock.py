"""What a training step is, which steps are recorded and how deeply, and when enough was seen. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

DENSE_STEPS = 3
"""Steps recorded after an anomaly, beside those that the sample names."""

DENSE_BUDGET = 60
"""After so many of them anomalies count no more: a loss scale that falls all the time must not make a run slow."""

FULL = 50
"""Runs of at most so many steps are recorded whole by default."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How the part of a step that begins now is watched. ``deep``: operators may be run again in float32; ``follow``:
    if not that, inf and NaN are followed from operator to operator.
    """

    recorded: bool
    deep: bool = False
    follow: bool = False


def parse_deep(text: str) -> str | int:
    """``"default"``, ``"all"``, ``"none"``, or N >= 1 for every Nth recorded step. Raises ``ValueError`` otherwise."""
    if text in ("default", "all", "none"):
        return text
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise ValueError(f"deep must be default, all, none or a number of recorded steps, not {text!r}")


def parse_sample(text: str) -> str | int:
    """``"default"``, ``"all"``, or N >= 1 for every Nth step. Raises ``ValueError`` for anything else."""
    if text in ("default", "all"):
        return text
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise ValueError(f"sample must be default, all or a number of steps, not {text!r}")


@dataclass(slots=True)
class Clock:
    """Counts steps from the calls of optimizers.

    A step ends when an optimizer that already stepped in it steps (or skips) again: one optimizer makes a step a call,
    a generator and a discriminator together make one. It also ends when a step that was complete is followed by a
    backward pass for an optimizer that never stepped before: the next fold's, the next stage's. ``steps`` is how many
    are wanted, None for all.

    Deep by default are the second recorded step (the first one also sets up what the later ones reuse) and every
    tenth, and the one after an anomaly; the first when only one step is wanted. What is inf or NaN is followed on the
    first one, too: where no scaler skips the step, nothing is finite after it.
    """

    steps: int | None = None
    sample: str | int = "default"
    deep: str | int = "default"
    step: int = 0
    built: int = 0
    _stepped: set[int] = field(default_factory=set)
    _known: set[int] = field(default_factory=set)
    _over: bool = False  # an iteration began after the step was complete
    _round: set[int] = field(default_factory=set)
    _chosen: int = 0
    _odd: int = -1  # the step of the latest anomaly
    _dense: int = 0
    _count: int = 0

    def optimizer_built(self) -> None:
        """An optimizer exists: until a first step is over, only this tells whose calls it will take.

        One that is built after the first call takes its turn later.
        """
        self.built += self.step == 0

    def iteration_begins(self) -> None:
        """What follows an optimizer's call begins: a forward or a backward pass."""
        self._over = self.step > 0 and self.complete()

    def upcoming(self) -> int:
        """The number of the step that a pass which begins now would belong to."""
        return self.step + 1 if self.step == 0 or self.complete() else self.step

    def repeats(self, optimizer: int) -> bool:
        """Whether a call of ``optimizer`` would belong to the next step."""
        return self.step == 0 or optimizer in self._stepped or self._follows(optimizer)

    def _follows(self, optimizer: int) -> bool:
        return self._over and optimizer not in self._known

    def optimizer_stepped(self, optimizer: int) -> int:
        """An optimizer stepped or skipped; the number of the step that this call belongs to."""
        if self.repeats(optimizer):
            self._round = {optimizer} if self._follows(optimizer) else self._stepped
            self._stepped = set()
            self.step += 1
        self._over = False
        self._stepped.add(optimizer)
        self._known.add(optimizer)
        return self.step

    def complete(self) -> bool:
        """Whether the step in progress has everything that the one before it had, so that it is over."""
        if self.step <= 1:
            return self.step == 1 and len(self._stepped) >= self.built
        return self._stepped >= self._round

    def enough(self) -> bool:
        """Whether the wanted number of steps is over."""
        if self.steps is None:
            return False
        return self.step > self.steps or (self.step == self.steps and self.complete())

    def anomaly(self) -> None:
        """Something happened that is worth recording the next steps for."""
        if self._dense < DENSE_BUDGET:
            self._odd = self.step

    def begin(self) -> Plan:
        """What to do with the part of a step that begins now."""
        number = self.upcoming()
        if self.steps is not None and number > self.steps:
            return Plan(recorded=False)
        if not self._wanted(number):
            return Plan(recorded=False)
        if number != self._chosen:
            self._chosen = number
            self._count += 1
            self._dense += self._after_anomaly(number)
        deep = self._is_deep(number)
        return Plan(recorded=True, deep=deep, follow=self._count == 1 and not deep and self.deep != "none")

    def _is_deep(self, number: int) -> bool:
        if self.deep in ("all", "none"):
            return self.deep == "all"
        if isinstance(self.deep, int):
            return (self._count - 1) % self.deep == 0
        return self._count == 2 or self._count % 10 == 0 or self.steps == 1 or number == self._odd + 1 > 0

    def _after_anomaly(self, number: int) -> bool:
        return 0 <= self._odd < number <= self._odd + DENSE_STEPS

    def _wanted(self, number: int) -> bool:
        if self.sample == "all" or self._after_anomaly(number):
            return True
        if isinstance(self.sample, int):
            return (number - 1) % self.sample == 0
        if self.steps is not None and self.steps <= FULL:
            return True
        return number <= 5 or number % FULL == 0
