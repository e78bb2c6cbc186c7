"""Calls that are walked once for all paths that make them alike."""

from __future__ import annotations

from collections import Counter

from amp_audit.events import Event
from amp_audit.hazards import Watch
from amp_audit.static.binding import project
from amp_audit.static.walking.calls import Caller
from amp_audit.static.walking.echoes import Call, Cost, Echoes, Start
from amp_audit.static.walking.evaluate import Results
from amp_audit.static.walking.fuel import EVENT, FUEL, NARROW, OutOfFuel
from amp_audit.static.walking.hot import Heat
from amp_audit.static.walking.values import Func, Value
from amp_audit.static.walking.world import Limits, Place, World


class Repeater(Caller):
    """Follows calls, or does what following them has done. ``fuel``: how many statements may still be walked, and
    ``spare`` how many beyond that as long as there are few paths; ``width`` says how many there are."""

    def __init__(
        self, code: project.Project, watch: Watch[Place], heat: Heat, path: str, visits: Counter[tuple[str, int]]
    ) -> None:
        """As for ``Caller``."""
        super().__init__(code, watch, heat, path, visits)
        self.fuel, self.spare = FUEL, 0
        self.width = Limits()
        self._echoes = Echoes()

    def burn(self) -> None:
        """Pay for a statement. Raises OutOfFuel."""
        self.fuel -= 1
        if self.fuel < 0:
            self._refuel()

    def _refuel(self) -> None:
        """Go on where there are few paths, for then it is the code that is long, unless nothing has happened so far:
        perhaps nothing ever does. Raises OutOfFuel.
        """
        if self.spare <= 0 or self.width.widest > NARROW or not self.happened.words():
            raise OutOfFuel
        more = min(FUEL, self.spare)
        self.fuel, self.spare = self.fuel + more, self.spare - more

    def emit(self, world: World, event: Event, at: int, path: str | None = None) -> None:
        """Tell of an event, which costs fuel as well."""
        super().emit(world, event, at, path)
        self.fuel -= EVENT

    def follow(self, func: Func, at: int, args: list[Value], named: dict[str, Value], world: World) -> Results:
        """Walk the body of a function, unless another path that came here alike has shown what it does."""
        if self._yielding or "<" in func.function.qualname:  # the code around has a part in it
            return super().follow(func, at, args, named, world)
        frame = world.frame
        around = (frame.module.path, id(frame.function), frame.calls, len(world.frames), tuple(self._guards))
        regions = (world.no_grad, world.inference, world.veiled)
        call = Call(func, tuple(args), named, (at, world.stamp, len(world.rounds), around, regions), regions)
        echo = self._echoes.find(call, world)
        if echo is None:
            return self._listened(call, at, world)
        self.burn()
        self._met(echo.cost, world.limits)
        return echo.results(call, world)

    def _listened(self, call: Call, at: int, world: World) -> Results:
        """Walk a call, and keep what it does and what that depends on."""
        limits, start = world.limits, Start.of(world)
        fuel, cut, outer = self.fuel, limits.cut, (self.entered, limits.asked, self.unsteady)
        self.entered, limits.asked, self.unsteady = Counter(), set(), False
        results = super().follow(call.func, at, list(call.args), dict(call.named), world)
        cost = Cost(fuel - self.fuel, limits.cut - cut, self.entered, limits.asked, self.unsteady)
        self.entered, limits.asked, self.unsteady = outer
        limits.cut = cut
        self._met(cost, limits)
        self._echoes.keep(call, start, cost, map(self.functions.__getitem__, cost.entered), results)
        return results

    def _met(self, cost: Cost, limits: Limits) -> None:
        """What a walk of a call has met, this time or before."""
        self.entered.update(cost.entered)
        limits.cut += cost.cut
        if limits.asked is not None:
            limits.asked |= cost.asked
        self.unsteady = self.unsteady or cost.unsteady
