"""Walk the code along its paths: statements fork and merge worlds, loops run twice, regions end on every way out.

What calls on scalers, optimizers, models and torch's own functions do is in ``effects.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator

from amp_audit import events
from amp_audit.hazards import Watch
from amp_audit.records import replace
from amp_audit.static.binding import project
from amp_audit.static.source import ir
from amp_audit.static.source.names import is_settings
from amp_audit.static.source.traverse import statements
from amp_audit.static.walking.algebra import comparison, equality
from amp_audit.static.walking.evaluate import Results
from amp_audit.static.walking.flow import Flow
from amp_audit.static.walking.hot import Heat
from amp_audit.static.walking.lineage import written
from amp_audit.static.walking.liveness import Liveness, Lives
from amp_audit.static.walking.raising import taken
from amp_audit.static.walking.repeater import Repeater
from amp_audit.static.walking.rounds import losses
from amp_audit.static.walking.values import (
    NONE,
    Condition,
    Func,
    Instance,
    Items,
    Literal,
    Method,
    Symbol,
    Tensor,
    Value,
    key_of,
    short,
    tag,
)
from amp_audit.static.walking.world import Place, World, merge, settle_volatile, split

_DEAD = "builtins.exit"


class Walker(Repeater):
    """Walks one entry of a project."""

    def __init__(
        self,
        code: project.Project,
        watch: Watch[Place],
        heat: Heat,
        path: str,
        visits: Counter[tuple[str, int]],
        liveness: Liveness,
    ) -> None:
        super().__init__(code, watch, heat, path, visits)
        self._liveness = liveness
        self._begun: dict[Hashable, frozenset[tuple[str, bool]]] = {}
        self._losses: dict[int, list[ir.Name]] = {}

    # Statements

    def block(self, body: Iterable[ir.Stmt], worlds: list[World]) -> Flow:
        flow = Flow(fall=worlds)
        lives = self._lives(worlds)
        for statement in body:
            if not flow.fall:
                break
            step, live = Flow(), lives.before.get(id(statement))
            for world in flow.fall:
                self.burn()
                world.frame.live = live
            together, alone = _COMPOUND.get(type(statement)), _SIMPLE.get(type(statement))
            if together is not None:
                together(self, statement, flow.fall, step)
            elif alone is not None:
                for world in flow.fall:
                    alone(self, statement, world, step)
            else:
                step.fall += flow.fall
            flow.leave(step)
            alive = [world for world in step.fall if not world.dead]
            for world in alive:
                world.frame.live = lives.after.get(id(statement))
            flow.fall = merge(alive) if len(alive) > 1 else alive
        return flow

    def _lives(self, worlds: list[World]) -> Lives:
        """Which names of the code that runs may still be read, by its statements."""
        if not worlds:
            return Lives()
        frame = worlds[0].frame
        return self._liveness.of(frame.module if frame.function is None else frame.function)

    def _evaluate(self, statement: ir.Evaluate, world: World, flow: Flow) -> None:
        for value, after in self.eval(statement.value, world):
            if not (isinstance(value, project.External) and value.dotted == _DEAD):
                self.effects.discard(statement.value, value, after)
                flow.fall.append(after)

    def _assign(self, statement: ir.Assign, world: World, flow: Flow) -> None:
        updated = _settings_updated(statement)
        for value, after in self.eval(statement.value, world):
            before = [(name, self.lookup(name, after)) for name in updated]
            for target in statement.targets:
                self.bind(target, value, after)
            for name, settings in before:
                if isinstance(self.lookup(name, after), Symbol):  # code out of sight gives back what it was handed
                    self._set_name(name, settings, after)
            flow.fall.append(after)

    def _augment(self, statement: ir.Augment, world: World, flow: Flow) -> None:
        binary = ir.Binary(statement.at, statement.op, statement.target, statement.value)
        for value, after in self.eval(binary, world):
            target = statement.target
            named = isinstance(target, (ir.Attr, ir.Name))
            if named and self.effects.changed(target, statement.op, value, after):
                flow.fall.append(after)
                continue
            if isinstance(target, ir.Name):
                written([self.lookup(target.id, after)], after)
            self.bind(target, value, after)
            flow.fall.append(after)

    def _return(self, statement: ir.Return, world: World, flow: Flow) -> None:
        self.effects.returned_early(self._tests[-1] if self._tests else None, statement.at, world)
        world.left = ((world.frame.module.path, statement.at), world.trail)
        results: Results = [(NONE, world)] if statement.value is None else self.eval(statement.value, world)
        flow.returned += results

    def _continue(self, statement: ir.Continue, world: World, flow: Flow) -> None:
        self.effects.left_out(self._tests[-1] if self._tests else None, statement.at, world)
        world.left = ((world.frame.module.path, statement.at), world.trail)
        flow.continued.append(world)

    def _break(self, statement: ir.Break, world: World, flow: Flow) -> None:
        flow.broken.append(world)

    def _raise(self, statement: ir.Raise, world: World, flow: Flow) -> None:
        """The path ends: a program that died shows no finding. Caught between unscale_ and update, it goes on."""
        if self._catching and _midway(world):
            flow.raised.append((statement, world))

    def _assert(self, statement: ir.Assert, world: World, flow: Flow) -> None:
        flow.fall += [after for true, after in self.decide(statement.test, world) if true]

    def _scope(self, statement: ir.Scope, world: World, flow: Flow) -> None:
        world.frame.shared.update(dict.fromkeys(statement.names, statement.kind))
        flow.fall.append(world)

    def _import(self, statement: ir.Import, world: World, flow: Flow) -> None:
        if world.frame.function is not None:
            for name, target in statement.bindings:
                if name != "*":
                    world.env[name] = self.bound(self.project.imported(world.frame.module, target), world)
        flow.fall.append(world)

    def _define(self, statement: ir.Function, world: World, flow: Flow) -> None:
        frame = world.frame
        if frame.function is not None:
            world.env[statement.name] = Func(frame.module, statement, None, frame.env, frame.cls)
        flow.fall.append(world)

    def _class(self, statement: ir.Class, world: World, flow: Flow) -> None:
        if world.frame.function is not None:
            world.env[statement.name] = project.ClassRef(world.frame.module, statement)
        flow.fall.append(world)

    def _delete(self, statement: ir.Delete, world: World, flow: Flow) -> None:
        for target in statement.targets:
            if isinstance(target, ir.Name):
                world.env.pop(target.id, None)
        flow.fall.append(world)

    def _if(self, statement: ir.If, worlds: list[World], flow: Flow) -> None:
        here = worlds[0]
        calm = self.heat.is_quiet(here.frame.function) and not self.heat.tells(statement)
        cold = calm or not (self.heat.forks((*statement.body, *statement.orelse)) or here.deciding.chosen_by(statement))
        cold = cold and not here.deciding.settles(statement)
        if cold and not _refuses(statement):
            for world in worlds:
                self._cold_if(statement, world, flow)
            return
        ways: dict[bool, list[tuple[bool, World]]] = {}
        for world in worlds:
            self.unsteady = False
            decided = self.decide(statement.test, world)
            ways.setdefault(self.unsteady, []).extend(decided)
        for unsteady, decided in ways.items():
            self._guards[-1] += unsteady
            self._tests.append(statement.test)
            for true, sides in _sides(decided):
                arm = self.block(statement.body if true else statement.orelse, sides)
                flow.leave(arm)
                flow.fall += arm.fall
            self._tests.pop()
            self._guards[-1] -= unsteady

    def _cold_if(self, statement: ir.If, world: World, flow: Flow) -> None:
        """An ``if`` that matters only for the names it assigns: no new paths, the names hold either value.

        Where one path stands for several, nothing may be concluded from what was decided on it.
        """
        before = world.decided()
        decided = self.decide(statement.test, world)
        self._tests.append(statement.test)
        arms = [self.block(statement.body if true else statement.orelse, ways).fall for true, ways in _sides(decided)]
        self._tests.pop()
        for arm in arms:
            if len(arm) > 1:
                arm[0].retain(before)
        ends = [after for arm in arms for after in arm[:1]]
        if not ends:
            return
        first, alone = ends[0], True
        for other in ends[1:]:
            if first.state != other.state:
                flow.fall.append(other)
                continue
            first.absorb(other)
            alone = False
        if not alone:
            first.retain(before)
        flow.fall.append(first)

    def _for(self, statement: ir.For, worlds: list[World], flow: Flow) -> None:
        matters = self.heat.matters(statement.body)
        alike: dict[tuple[Value, bool], list[World]] = {}
        for iterable, after in (each for world in worlds for each in self.eval(statement.iterable, world)):
            kept = all(region.cache for region in after.state.regions)
            inside = bool(after.state.regions) and self.heat.loads(statement.body)
            again = not kept or inside or matters  # something is left over for a second round
            alike.setdefault((iterable, again), []).append(after)
        for (iterable, again), starts in alike.items():
            known = self.known_items(iterable)
            rounds = range((2 if again else 1) if known is None else len(known))
            begins = [self._binder(statement, iterable, known, number) for number in rounds]
            counted = iterable.base if isinstance(iterable, Method) and iterable.name == "range" else None
            self.boundaries.window(statement, counted, (*self._loops, statement.at))
            self._loop(statement, starts, begins, flow, open_ended=known is None)

    def _binder(
        self, statement: ir.For, iterable: Value, known: list[Value] | None, number: int
    ) -> Callable[[World], list[World]]:
        def begin(world: World) -> list[World]:
            item = self.element(iterable, number, world) if known is None else known[number]
            self.bind(statement.target, item, world)
            if known is None and number:
                self._count_on(statement, world)
            return [world]

        return begin

    def _while(self, statement: ir.While, worlds: list[World], flow: Flow) -> None:
        def begin(inner: World) -> list[World]:
            return [after for true, after in self.decide(statement.test, inner) if true]

        def later(inner: World) -> list[World]:
            self._count_on(statement, inner)
            return begin(inner)

        self._loop(statement, worlds, [begin, later], flow, open_ended=True)

    def _count_on(self, loop: ir.For | ir.While, world: World) -> None:
        """The second round stands for all later ones: what the loop counts by hand is any number by then."""
        counts = [each for each in statements(loop.body) if isinstance(each, ir.Augment) and each.op in ("+", "-")]
        for target in (each.target for each in counts):
            value = self.lookup(target.id, world) if isinstance(target, ir.Name) else NONE
            if isinstance(target, ir.Name) and isinstance(value, Literal) and value.kind in ("int", "float"):
                key = f"{tag(world.frame.module.path)}:{target.id} counted {loop.at}"
                self.bind(target, Symbol(key, target.id, volatile=True), world)

    def _loop(
        self,
        statement: ir.For | ir.While,
        worlds: list[World],
        rounds: list[Callable[[World], list[World]]],
        flow: Flow,
        open_ended: bool,
    ) -> None:
        """Walk the body once for every round; what is left over from one iteration meets the next. ``open_ended``: the
        second round stands for all later ones.
        """
        outer, depth, current, done = worlds[0].stamp, len(worlds[0].rounds), worlds, list[World]()
        repeated = list[World]()
        lives = self._lives(current)
        decided = frozenset[str]().union(*(world.flags for world in worlds))
        for number, begin in enumerate(rounds):
            starts = []
            if number and open_ended and outer:
                current, known = self._not_yet_begun(statement, current)
                repeated += known
            for each in current:
                each.stamp, each.rounds = (*outer, number), (*each.rounds[:depth], each.trail)
                if number:
                    self._outlive(statement, each)
                starts += begin(each)
            self._guards.append(0)
            self._outside.append(len(self._tests))
            self._loops.append(statement.at)
            body = self.block(statement.body, starts)
            self._loops.pop()
            self._guards.pop()
            self._outside.pop()
            flow.returned += body.returned
            flow.raised += body.raised
            done += body.broken
            current = [*body.fall, *body.continued]
            for each in current:
                self._iteration_end(statement, each)
                each.frame.live = lives.round.get(id(statement))
            current = merge(current)
        current = [each for each in current if self.boundaries.may_end(statement, each)] or current
        current += repeated
        for each in current:
            each.stamp, each.rounds = outer, each.rounds[:depth]
        if statement.orelse and current:
            final = self.block(statement.orelse, current)
            flow.leave(final)
            current = final.fall
        for each in (*current, *done):
            each.stamp, each.rounds = outer, each.rounds[:depth]
            each.frame.live = lives.after.get(id(statement))
        left = settle_volatile([*current, *done], decided)
        for each in left:
            self.boundaries.waits(statement, True, each)
        flow.fall += merge(left)

    def _outlive(self, loop: ir.For | ir.While, world: World) -> None:
        """Of a loss that a round makes anew, nothing is known in a round that has not made it."""
        if id(loop) not in self._losses:
            self._losses[id(loop)] = losses(loop)
        for name in self._losses[id(loop)]:
            value = self.lookup(name.id, world)
            if isinstance(value, Tensor):
                self.bind(name, replace(value, doubt=True), world)
            elif isinstance(value, Symbol):
                self.bind(name, Tensor(doubt=True), world)

    def _not_yet_begun(self, loop: ir.For | ir.While, worlds: list[World]) -> tuple[list[World], list[World]]:
        """The worlds from which no later round of a loop was walked yet, and the others: what can tell them from those
        is nothing but conditions that were decided either way there.

        As a rule, what is left over from an iteration is the same in the second round of the loops around: without this
        the rounds of loops in loops would multiply.
        """
        fresh, known = list[World](), list[World]()
        for world in worlds:
            place = (world.frame.module.path, loop.at, world.frame.calls, world.outlook())
            settled = world.settled()
            begun = self._begun.get(place)
            (known if begun is not None and begun <= settled else fresh).append(world)
            self._begun[place] = settled if begun is None else begun & settled
        return fresh, known

    def _iteration_end(self, statement: ir.For | ir.While, world: World) -> None:
        """A loop's round is a training iteration when it trained and no loop inside it has ended one since."""
        if not _trained(world):
            return
        self.boundaries.waits(statement, False, world)
        self.end_iteration((world.frame.module.path, statement.at), world)

    def end_iteration(self, place: Place, world: World) -> None:
        """An iteration ends at ``place``, or where the path has left it."""
        missed, early = self.boundaries.missed(world), False
        if world.left is not None and world.left[1] is world.trail:
            place, early = world.left[0], True
        self.emit(world, events.Event(events.Kind.ITERATION_END, early=early, boundaries=missed), place[1], place[0])

    def _with(self, statement: ir.With, worlds: list[World], flow: Flow) -> None:
        self._enter(statement, 0, worlds, flow)

    def _enter(self, statement: ir.With, index: int, worlds: list[World], flow: Flow) -> None:
        """Enter the contexts from ``index`` on, then the body; leave them on every way out."""
        if index == len(statement.items):
            inner = self.block(statement.body, worlds)
            flow.leave(inner)
            flow.fall += inner.fall
            return
        context, target = statement.items[index]
        alike: dict[tuple[Value, int], list[World]] = {}
        for world in worlds:
            if self._manager(statement, index, world, flow):
                continue
            for value, begun in self.eval(context, world):
                depth = len(begun.state.regions)
                for entered, after in self._entered(value, statement.at, begun):
                    if target is not None:
                        self.bind(target, entered, after)
                    alike.setdefault((value, depth), []).append(after)
        for (value, depth), starts in alike.items():
            seen, inner = self._context_method(value, "__enter__") is not None, Flow()
            self._enter(statement, index + 1, starts, inner)
            done = self._left(value, statement.at, inner)
            for left in _all(done):
                self.effects.leave(NONE if seen else value, statement.at, left, depth)
            flow.leave(done)
            flow.fall += done.fall

    def _entered(self, value: Value, at: int, world: World) -> Results:
        """What ``as`` binds; ``__enter__`` of a class of the project runs."""
        own = self._context_method(value, "__enter__")
        if own is None:
            return [(self.effects.enter(value, at, world), world)]
        return self.follow(own, at, [], {}, world)

    def _left(self, value: Value, at: int, inner: Flow) -> Flow:
        """The ways out of a context, on each of which ``__exit__`` of a class of the project runs."""
        own = self._context_method(value, "__exit__")
        if own is None:
            return inner

        def left(world: World) -> list[World]:
            return [after for _, after in self.follow(own, at, [NONE] * 3, {}, world)]

        done = Flow()
        done.returned = [(found, after) for found, world in inner.returned for after in left(world)]
        for name in ("fall", "broken", "continued"):
            getattr(done, name).extend(after for world in getattr(inner, name) for after in left(world))
        return done

    def _context_method(self, value: Value, name: str) -> Func | None:
        """A method that a ``with`` runs and that can make an event."""
        if not isinstance(value, Instance) or value.cls is None:
            return None
        found = self.project.methods(value.cls).get(name)
        if found is None or not (
            self.heat.function(found[1]) or name in found[1].words
        ):  # it may hand on to another one
            return None
        return Func(found[0].module, found[1], value, {}, found[0])

    def _manager(self, statement: ir.With, index: int, world: World, flow: Flow) -> bool:
        """``with`` over a generator of the project: its body runs, ours where it yields."""
        context = statement.items[index][0]
        if not isinstance(context, ir.Call):
            return False
        found = [value for value, _ in self.eval(context.func, world.fork())]
        func = found[0] if len(found) == 1 else None
        if not isinstance(func, Func) or not func.function.is_generator or not self.heat.function(func.function):
            return False
        depth, inner = len(world.frames), Flow()
        outside = len(world.state.regions)

        def resume(at_yield: World) -> list[World]:
            mine = at_yield.frames[depth:]
            at_yield.frames = at_yield.frames[:depth]
            at_yield.own_frame()
            part = Flow()
            self._enter(statement, index + 1, [at_yield], part)
            for each in part.fall:
                each.frames = [*each.frames, *(frame.copy() for frame in mine)]
            inner.leave(part)
            return part.fall

        self._yielding.append(resume)
        args = self.arguments(context.args, world)
        ends = [after for values, named, w in args for _, after in self.follow(func, context.at, values, named, w)]
        self._yielding.pop()
        for early in _all(inner):  # who leaves the body leaves the generator's regions, too
            early.state = replace(early.state, regions=early.state.regions[:outside])
        flow.leave(inner)
        flow.fall += ends
        return True

    def _try(self, statement: ir.Try, worlds: list[World], flow: Flow) -> None:
        alike: dict[bool, list[World]] = {}
        for world in worlds:
            alike.setdefault(_midway(world), []).append(world)
        for leaving, some in alike.items():
            self._tried(statement, some, leaving, flow)

    def _tried(self, statement: ir.Try, worlds: list[World], leaving: bool, flow: Flow) -> None:
        # A handler that only leaves is of interest where leaving is: between unscale_ and update.
        asked = self.heat.forks if leaving else self.heat.matters
        handled = [handler for handler in statement.handlers if asked(handler.body)]
        before = [world.fork() for world in worlds] if handled else []
        stamp, depth = worlds[0].stamp, len(worlds[0].rounds)
        self._catching += bool(statement.handlers)
        tried, inner = self.block(statement.body, worlds), Flow()
        self._catching -= bool(statement.handlers)
        raised, tried.raised = tried.raised, []
        inner.leave(tried)
        for cause, each, handler in taken(statement.handlers, raised, self.project):
            each.stamp, each.rounds = stamp, each.rounds[:depth]
            if handler is not None:
                caught = self._handled(handler, [each])
                for end in caught.fall:
                    end.left = ((end.frame.module.path, cause.at), end.trail)
                inner.leave(caught)
                inner.fall += caught.fall
            elif not statement.final:
                inner.raised.append((cause, each))
        after = self.block(statement.orelse, tried.fall)
        inner.leave(after)
        inner.fall += after.fall
        for handler in handled:
            caught = self._handled(handler, [world.fork() for world in before])
            inner.leave(caught)
            inner.fall += caught.fall
        if statement.final:
            inner = self._finally(statement.final, inner)
        flow.leave(inner)
        lives = self._lives(inner.fall)
        for each in inner.fall:
            each.frame.live = lives.after.get(id(statement))
        flow.fall += merge(inner.fall)

    def _handled(self, handler: ir.Handler, worlds: list[World]) -> Flow:
        if handler.name:
            for world in worlds:
                world.env[handler.name] = Symbol(f"exception {handler.at}", volatile=True)
        self._handling += 1
        caught = self.block(handler.body, worlds)
        self._handling -= 1
        return caught

    def _finally(self, final: tuple[ir.Stmt, ...], inner: Flow) -> Flow:
        done = Flow()
        for name in ("fall", "broken", "continued"):
            end = self.block(final, getattr(inner, name))
            done.leave(end)
            getattr(done, name).extend(end.fall)
        for value, world in inner.returned:
            done.returned += [(value, each) for each in self.block(final, [world]).fall]
        return done

    def _match(self, statement: ir.Match, worlds: list[World], flow: Flow) -> None:
        alike: dict[Value, list[World]] = {}
        for subject, after in (each for world in worlds for each in self.eval(statement.subject, world)):
            alike.setdefault(subject, []).append(after)
        for subject, rest in alike.items():
            for case in statement.cases:
                taken, missed = list[World](), list[World]()
                for each in rest:
                    for true, side in split(each, self._fits(case, subject, each, statement.at)):
                        (taken if true else missed).append(side)
                for each in taken:
                    each.env.update(dict.fromkeys(case.names, subject))
                arm = self.block(case.body, taken)
                flow.leave(arm)
                flow.fall += arm.fall
                rest = missed
            flow.fall += rest

    def _fits(self, case: ir.Case, subject: Value, world: World, at: int) -> Value:
        """Whether a case is taken, as ``==`` and ``in`` would say of the values it asks for."""
        if case.guard is None:
            if case.values is None:
                return Literal.of(True)
            values = [value for each in case.values for value, _ in self.eval(each, world.fork())[:1]]
            if len(values) == 1:
                return equality(subject, values[0])
            if values and all(isinstance(value, Literal) for value in values):
                return comparison("in", subject, Items(tuple(values)))
        return Condition(short(f"case {key_of(subject)} {case.names!r} {case.values!r} {at}"), volatile=True)


_TRAINING = frozenset({events.Kind.BACKWARD, events.Kind.UNSCALE, events.Kind.STEP, events.Kind.UPDATE})


def _settings_updated(statement: ir.Assign) -> list[str]:
    """The settings that a call is handed and gives back: ``cfg, changed = schedule.update(cfg, epoch)``."""
    given = statement.value.args if isinstance(statement.value, ir.Call) else ()
    handed = {arg.value.id for arg in given if isinstance(arg.value, ir.Name) and is_settings(arg.value.id)}
    targets = (
        item
        for target in statement.targets
        for item in (target.items if isinstance(target, ir.Sequence) else (target,))
    )
    return [item.id for item in targets if isinstance(item, ir.Name) and item.id in handed] if handed else []


def _sides(decided: list[tuple[bool, World]]) -> Iterator[tuple[bool, list[World]]]:
    """The worlds that take either arm; those become one that have come to it in several ways (``a or b``)."""
    for side in (True, False):
        worlds = [world for true, world in decided if true is side]
        if worlds:
            yield side, merge(worlds) if len(worlds) > 1 else worlds


def _refuses(statement: ir.If) -> bool:
    """Whether it does nothing but end in an error, so that its condition does not hold in what follows."""
    return bool(statement.body) and isinstance(statement.body[-1], ir.Raise) and not statement.orelse


def _trained(world: World) -> bool:
    """Whether gradients were made or used since the innermost loop's round, or the last iteration, began."""
    step, start = world.trail, world.rounds[-1]
    while step is not None and step is not start and step.event.kind is not events.Kind.ITERATION_END:
        if step.event.kind in _TRAINING:
            return True
        step = step.previous
    return False


def _all(flow: Flow) -> Iterator[World]:
    yield from flow.fall
    yield from flow.broken
    yield from flow.continued
    yield from (world for _, world in flow.returned)
    yield from (world for _, world in flow.raised)


def _midway(world: World) -> bool:
    """Whether the gradients of some optimizer are unscaled or used, and the scale is not updated yet."""
    return any(phase in ("unscaled", "stepped") for _, phase in world.state.phases)


_SIMPLE: dict[type, Callable[..., None]] = {
    ir.Evaluate: Walker._evaluate,
    ir.Assign: Walker._assign,
    ir.Augment: Walker._augment,
    ir.Return: Walker._return,
    ir.Continue: Walker._continue,
    ir.Break: Walker._break,
    ir.Raise: Walker._raise,
    ir.Assert: Walker._assert,
    ir.Scope: Walker._scope,
    ir.Import: Walker._import,
    ir.Function: Walker._define,
    ir.Class: Walker._class,
    ir.Delete: Walker._delete,
}

_COMPOUND: dict[type, Callable[..., None]] = {
    ir.If: Walker._if,
    ir.For: Walker._for,
    ir.While: Walker._while,
    ir.With: Walker._with,
    ir.Try: Walker._try,
    ir.Match: Walker._match,
}
