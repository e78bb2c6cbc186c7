"""An abstract run of the program that keeps the dtypes of its tensors: statements, names, expressions, calls.

One environment goes through the code; where paths part it is copied, where they meet it is joined. Loops are run
twice. Calls of the project are followed with the values of their arguments, and remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any, get_args

from amp_audit.records import replace
from amp_audit.static.binding import project
from amp_audit.static.dtypes import surface
from amp_audit.static.dtypes.calls import Calls
from amp_audit.static.dtypes.evaluate import ARITHMETIC, has_decorator, region_of
from amp_audit.static.dtypes.frames import Frame
from amp_audit.static.dtypes.meanings import is_condition
from amp_audit.static.dtypes.ops import Entry, Loop
from amp_audit.static.dtypes.record import Cast
from amp_audit.static.dtypes.values import (
    FLOAT32,
    HALVES,
    NOTHING,
    Const,
    DType,
    Func,
    Items,
    Layer,
    Many,
    Object,
    Opaque,
    Params,
    Region,
    Tensor,
    Value,
    element,
    extended,
    join,
    options,
)
from amp_audit.static.source import ir
from amp_audit.static.source.conditions import NO_FACTS, Facts
from amp_audit.static.source.names import is_of_tests
from amp_audit.static.source.traverse import root_name, spelled_condition, statements, walk, words_in

_FUEL = 20_000
"""Statements per entry; a walk that needs more ends where it is."""
_TOTAL_FUEL = 600_000
"""Statements per project; entries after that are not run."""

_PRECISION_WORD = re.compile(
    r"(^|_)(fp16|fp32|half|amp|bf16|float16|bfloat16|float32|autocast|mixed|precision|dtype)", re.IGNORECASE
)
_SWITCH = re.compile(r"scaler|(^|_)(amp|autocast)", re.IGNORECASE)
"""What is None where a program does not train in low precision."""
_SUBJECT = re.compile(f"{_PRECISION_WORD.pattern}|{_SWITCH.pattern}", re.IGNORECASE)
"""What a program keeps its choice of precision in."""
_FULL = frozenset({"none", "no", "off", "full", "single", "float", "false", ""})
"""How programs name the choice of full precision, beside what has a 32 in it."""


def _set_to_zero(body: Sequence[ir.Stmt]) -> Iterator[str]:
    """The attributes, and the names of what has entries, that a body sets to 0 somewhere."""
    for node in statements(body):
        if isinstance(node, ir.Assign) and isinstance(node.value, ir.Const) and node.value.value == 0:
            yield from (target.name for target in node.targets if isinstance(target, ir.Attr))
            yield from (root_name(target) for target in node.targets if isinstance(target, ir.Subscript))


def _is_zero(value: Value) -> bool:
    return isinstance(value, Const) and value.number == 0


_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})

_HANDLERS = {kind: f"_on_{kind.__name__.lower()}" for kind in get_args(ir.Stmt)}

_PASSING = (
    "frames",
    "entries",
    "weights",
    "casts",
    "pending",
    "muted",
    "passed_by",
    "facts",
    "path",
    "active",
    "sites",
    "loops",
    "guards",
    "fitting",
    "fuel",
    "tested",
)
"""What belongs to one entry."""


class OutOfFuel(Exception):
    """The entry is too large to be walked to its end."""


class Walk(Calls):
    """Runs entries of a project. What it meets is in ``record``."""

    def __init__(self, code: project.Project) -> None:
        super().__init__(code)
        self.built: dict[str, dict[Hashable, frozenset[Cast]]] = {}
        self.fuel = _FUEL
        self.total = _TOTAL_FUEL
        self._runners: dict[type, Callable[[Any], bool | None]] = {
            kind: getattr(self, name) for kind, name in _HANDLERS.items() if hasattr(self, name)
        }
        self._arms: dict[int, str | None] = {}
        self._again: dict[tuple[str, int], frozenset[str]] = {}  # by loops

    def run_module(self, module: ir.Module) -> dict[str, Value]:
        """The names of a module after its own code ran."""
        found = self.modules.get(module.path)
        if found is None:
            found = self.modules[module.path] = {}
            with self._detached():
                self.casts, self.fuel, self.tested = {}, _FUEL, is_of_tests(module.path)
                self.in_frame(Frame(module, found), module.body)
                self.built[module.path] = self.casts
        return found

    def run_function(
        self, module: ir.Module, function: ir.Function, cls: project.ClassRef | None, live: Region | None
    ) -> None:
        """Run a function as an entry: its parameters are unknown, ``live`` is the region it is taken to run in."""
        if self.total < 0:
            return
        self.run_module(module)
        with self._detached():
            self.fuel, self.tested = _FUEL, is_of_tests(module.path)
            self.casts = dict(self.built.get(module.path, {}))
            bound: Value | None = None
            try:
                if cls is not None and not has_decorator(function, "staticmethod"):
                    bound = self.instance(cls, ("entry", module.path, cls.cls.at))
                if live is not None:
                    self.entries = [Entry(live)]
                self.follow(Func(module, function, bound, None, cls), [], {}, 0)
            except OutOfFuel:
                return

    @contextmanager
    def _detached(self) -> Iterator[None]:
        """Run something outside of what is going on, and come back."""
        kept = {name: getattr(self, name) for name in _PASSING}
        self.frames, self.entries, self.weights, self.pending, self.muted, self.passed_by = [], [], [], {}, 0, 0
        self.active, self.sites, self.loops, self.guards, self.fitting = [], [], [], 0, 0
        self.facts = NO_FACTS
        try:
            yield
        finally:
            for name, value in kept.items():
                setattr(self, name, value)

    def in_frame(self, frame: Frame, body: Sequence[ir.Stmt]) -> None:
        path, self.path = self.path, frame.module.path
        self.frames.append(frame)
        frame.body = body
        try:
            self.block(body)
        except OutOfFuel:
            if len(self.frames) > 1:
                raise
        finally:
            self.frames.pop()
            self.path = path

    def block(self, body: Sequence[ir.Stmt]) -> bool:
        """Run statements; whether they end the function or the round. What they tell of conditions holds until then."""
        facts = self.facts
        ended = self._statements(body)
        self.facts = facts
        return ended

    def _statements(self, body: Sequence[ir.Stmt]) -> bool:
        for statement in body:
            self.spend(1)
            handler = self._runners.get(type(statement))
            if handler is not None and handler(statement):
                return True
        return False

    def spend(self, statements: int) -> None:
        self.fuel -= statements
        self.total -= statements
        if self.fuel < 0:
            raise OutOfFuel

    def _on_evaluate(self, node: ir.Evaluate) -> None:
        self.eval(node.value)

    def _on_assign(self, node: ir.Assign) -> None:
        value = self.eval(node.value)
        fresh = [self._is_fresh(target) for target in node.targets] if is_condition(node.value) else []
        for target in node.targets:
            if isinstance(target, ir.Attr) and target.name == "grad":
                self._handed_gradient(target, node)
            if isinstance(target, ir.Attr) and target.name == "data":
                self._written(self.eval(target.base), value, node.at)
            self.bind(target, value, node.at)
        for target, alone in zip(node.targets, fresh):
            if alone:
                self.meanings.keep(self.frame, target, node.value)

    def _is_fresh(self, target: ir.Expr) -> bool:
        """Whether what a name gets here is what it has from here on, on all paths that it has a value on."""
        unseen = isinstance(target, ir.Name) and target.id not in self.frame.env
        return unseen or self.guards == self.frame.guards

    def _handed_gradient(self, target: ir.Attr, node: ir.Assign) -> None:
        """Note that a parameter gets the gradient of another one as its own: ``master.grad = p.grad``."""
        source = _moved(node.value)
        if not isinstance(source, ir.Attr) or source.name != "grad":
            return
        given, taker = self._as_parameter(self.eval(source.base)), self._as_parameter(self.eval(target.base))
        if given is not None and taker is not None:
            self._use("assign_grad", given, (), [given, taker], node.at)

    def _written(self, weights: Value, value: Value, at: int) -> None:
        """``p.data = value``: what is low stays so."""
        own, given = self.tensor_of(weights), self.tensor_of(value)
        if own is None or given is None or not given.low:
            return
        self.averaged("set_", (own, given), (), at)
        cast = given.origin == "cast" and given.of == own.of and self.guards == self.frame.guards
        for owner in sorted(own.of, key=repr) if cast else ():
            self._cast(Opaque(owner), DType(given.dtypes, given.assumed), at)

    def _as_parameter(self, value: Value) -> Tensor | None:
        """A parameter in the one dtype that is known of it: that of its models, which were cast or are as they were
        built; or of a copy.
        """
        if isinstance(value, Tensor):
            return value if len(value.dtypes) == 1 else None
        if not isinstance(value, Params) or value.of & self.record.unsettled:
            return None
        if all(self.is_as_built(owner) and not self.is_partly_low(owner) for owner in value.of):
            return Tensor(FLOAT32)
        found = self.tensor_of(value)
        return found if found is not None and found.dtypes <= HALVES and len(found.dtypes) == 1 else None

    def _on_augment(self, node: ir.Augment) -> None:
        before, value = self.eval(node.target), self.eval(node.value)
        if isinstance(before, (Items, Many)):
            self.bind(node.target, extended(before, value), node.at)
            return
        op = ARITHMETIC.get(node.op)
        if op == "add" and isinstance(node.target, ir.Name):
            self._accumulated(node.target.id, before, value, node.at)
        elif op == "add" and isinstance(node.target, ir.Attr):
            holder = self.eval(node.target.base)
            self._metered(holder, before, node.at)
            self._kept_on(holder, node.target.name, before, value, node.at)
        elif op == "add" and isinstance(node.target, ir.Subscript):
            self._entered(root_name(node.target), before, value, node.at)
        if isinstance(before, Tensor) and op is not None:
            self.apply(f"{op}_", [before, value], {}, node.at)
            return
        self.bind(node.target, self._combine(node.op, before, value, node.at), node.at)

    def _accumulated(self, name: str, before: Value, value: Value, at: int) -> None:
        """Note a sum over the rounds of a loop that runs a model, begun before it as zeros."""
        loop = self._summing()
        if loop is None or loop.depth != len(self.active) or name not in loop.start:
            return
        start, added = loop.start[name], self.tensor_of(value)
        grown = isinstance(start, Const) and start.number == 0 and before != start  # not set to 0 in this round
        if grown and added is not None and added.low:
            self.notice("accumulate", added, at)
        if isinstance(start, Tensor) and before is start and start.low and start.last in _ZEROS:
            self.notice("accumulate", start, at)

    def _metered(self, holder: Value, before: Value, at: int) -> None:
        """Note a sum that an object keeps over calls of a method, begun as zeros where it was made."""
        frame = self.frame
        own = isinstance(holder, Object) and holder == frame.bound and not frame.setup and not self.in_module()
        if own and isinstance(before, Tensor) and before.dtypes <= HALVES and before.last in _ZEROS:
            self.notice("accumulate", before, at)

    def _kept_on(self, holder: Value, name: str, before: Value, value: Value, at: int) -> None:
        """Note a sum that begins as 0 in an attribute, if no round of a loop that runs a model sets it to 0 again."""
        added = self._added(value)
        again = added is None or (holder, name) in self.loops[-1].emptied or name in self.loops[-1].again
        if added is not None and not again and any(map(_is_zero, options(before))):
            self.notice("accumulate", added, at)

    def _entered(self, name: str, before: Value, value: Value, at: int) -> None:
        """Note a sum in an entry that was 0 in one round of a loop that runs a model, and no more in a later one."""
        added, where = self._added(value), (name, len(self.frames))
        if added is None or name in self.loops[-1].again:
            return
        if _is_zero(before):
            self.loops[-1].begun.add((where, at))
        elif (where, at) in self.loops[-1].begun:
            self.notice("accumulate", added, at)

    def _added(self, value: Value) -> Tensor | None:
        """What low values are added to something in a loop that runs a model, outside of the model itself."""
        added = self.tensor_of(value) if self._summing() is not None and not self.in_module() else None
        return added if added is not None and added.low else None

    def _summing(self) -> Loop | None:
        """The innermost loop, if it runs a model in each step, and not several times for one."""
        loop, around = self.loops[-1] if self.loops else None, self.loops[-2:-1]
        within = any(loop is not None and not loop.steps and outer.depth == loop.depth for outer in around)
        return loop if loop is not None and loop.trains and not within else None

    def _on_return(self, node: ir.Return) -> bool:
        self.frame.returns.append(self.eval(node.value) if node.value is not None else Const.of(None))
        return True

    def _on_raise(self, node: ir.Raise) -> bool:
        return True

    def _on_break(self, node: ir.Break) -> bool:
        return True

    def _on_continue(self, node: ir.Continue) -> bool:
        return True

    def _on_assert(self, node: ir.Assert) -> None:
        self.eval(node.test)

    def _on_import(self, node: ir.Import) -> None:
        for name, target in node.bindings:
            if name != "*":
                self.frame.env[name] = self.of_binding(self.project.imported(self.frame.module, target), name)

    def _on_function(self, node: ir.Function) -> None:
        frame = self.frame
        around = None if frame.env is self.modules.get(frame.module.path) else frame.env
        frame.env[node.name] = Func(frame.module, node, None, around, frame.cls)

    def _on_class(self, node: ir.Class) -> None:
        self.frame.env[node.name] = project.ClassRef(self.frame.module, node)

    def _on_if(self, node: ir.If) -> bool:
        known = self.truth(node.test)
        if known is not None:
            return self.block(node.body if known else node.orelse)
        if self._is_on_device(self.eval(node.test), node.test):
            self.synchronised(NOTHING, node.test.at)
        low_arm = self._low_arm(node)
        asked = (node.body,) if _asks_for_dtype(node.test) else ()
        arms = [(node.body, low_arm in (None, "yes")), (node.orelse, low_arm in (None, "no"))]
        told = [self.facts_of(node.test, truth) for truth in (True, False)]
        return self._fork(arms, asked, self._arm_without_region(node), told)

    def _low_arm(self, node: ir.If) -> str | None:
        """``_precision_arm`` of a condition, which is found once."""
        key = id(node)
        if key not in self._arms:
            self._arms[key] = _precision_arm(node.test)
        return self._arms[key]

    def _arm_without_region(self, node: ir.If) -> Sequence[ir.Stmt] | None:
        """The arm that is taken where the regions that this function has entered were off, as the test tells."""
        asked, negated = spelled_condition(node.test)
        for arm, truth in ((node.body, not negated), (node.orelse, negated)):
            if asked and (asked, not truth) in self.frame.switches:
                return arm
        return None

    def _is_on_device(self, value: Value, test: ir.Expr) -> bool:
        """Whether a condition is a tensor computed from what a model gave, so that its truth has to be waited for."""
        if not isinstance(value, Tensor):
            return False
        held = (self.eval(part) for part in walk(test) if isinstance(part, ir.Name))
        return any(isinstance(one, Tensor) and (one.low or one.dtypes == FLOAT32) and one.last != "" for one in held)

    def _fork(
        self,
        arms: Sequence[tuple[Sequence[ir.Stmt], bool]],
        asked: Sequence[Sequence[ir.Stmt]] = (),
        off: Sequence[ir.Stmt] | None = None,
        told: Sequence[Facts] = (),
    ) -> bool:
        """Run each arm from here; go on with what those that do not end have in common. Arms that are run in another
        precision only are walked without being judged, and go on only where no other does. ``asked`` are those that run
        where something has a dtype that the test names, ``off`` the one that runs where the regions before were off,
        ``told`` what is known in each.
        """
        known = self.facts
        going: list[Facts] = []
        start, casts = dict(self.frame.env), dict(self.casts)
        ends: list[tuple[dict[str, Value], dict[Hashable, frozenset[Cast]], bool]] = []
        for number, (body, judged) in enumerate(arms):
            self.facts = known | told[number] if told else known
            inside = self.facts
            self.frame.env.clear()
            self.frame.env.update(start)
            if body is off:
                self.frame.env.update({name: _unlowered(value) for name, value in start.items()})
            self.casts = dict(casts)
            fits = any(body is one for one in asked)
            passed_by = not judged and any(other for _, other in arms)
            self.muted += not judged
            self.passed_by += passed_by
            self.guards += 1
            self.fitting += fits
            ended = self.block(body)
            self.fitting -= fits
            self.guards -= 1
            self.passed_by -= passed_by
            self.muted -= not judged
            if not ended:
                ends.append((dict(self.frame.env), self.casts, judged))
                going.append(inside)
        self.facts = going[0] if len(going) == 1 else known
        if not ends:
            self.casts = casts
            return True
        going_on = [end for end in ends if end[2]] or ends
        env = reduce(_joined, (end[0] for end in going_on))
        if len(going_on) < len(ends):
            _doubt_chosen(env, [end[0] for end in ends if not end[2]])
        self.frame.env.clear()
        self.frame.env.update({**ends[-1][0], **env})
        self.casts = reduce(_united, (end[1] for end in going_on))
        return False

    def _on_for(self, node: ir.For) -> None:
        iterated = self.eval(node.iterable)
        item = reduce(join, map(element, options(iterated)))
        surely = _runs(iterated, item)
        with self._looping(node):
            for number in range(2):
                self._once(lambda: self.bind(node.target, item, node.at), node.body, surely and number == 0)
        self.block(node.orelse)

    def _on_while(self, node: ir.While) -> None:
        with self._looping(node):
            for _ in range(2):
                self._once(lambda: self.eval(node.test), node.body)
        self.block(node.orelse)

    @contextmanager
    def _looping(self, node: ir.For | ir.While) -> Iterator[None]:
        emptied = self.emptied.setdefault((self.path, node.at), set())
        if (self.path, node.at) not in self._again:
            self._again[self.path, node.at] = frozenset(_set_to_zero(node.body))
        again = self._again[self.path, node.at]
        self.loops.append(Loop(dict(self.frame.env), len(self.active), self.guards, emptied=emptied, again=again))
        try:
            yield
        finally:
            self.loops.pop()

    def _once(self, prepare: Callable[[], object], body: Sequence[ir.Stmt], surely: bool = False) -> None:
        """One round of a loop, which may also not be run."""
        before, casts = dict(self.frame.env), dict(self.casts)
        prepare()
        if not self.block(body) and surely:
            return
        env = _joined(before, self.frame.env)
        self.frame.env.clear()
        self.frame.env.update(env)
        self.casts = _united(casts, self.casts)

    def _on_with(self, node: ir.With) -> bool:
        with ExitStack() as entered:
            for context, target in node.items:
                value = self.eval(context)
                if target is not None:
                    self.bind(target, value, node.at)
                region = region_of(value)
                if region is not None:
                    self.frame.switches |= _switches(context)
                if region is not None and region.live and self.loops and self.loops[-1].depth == len(self.active):
                    self._reentered(region, node.at)
                entered.enter_context(self.inside_of(region, node.at))
            return self.block(node.body)

    def _reentered(self, region: Region, at: int) -> None:
        """Note a region that a model enters in every round of a loop of its own."""
        if self.in_module():
            self.notice("region_in_loop", Tensor(region.dtypes, assumed=region.assumed), at)

    def _on_try(self, node: ir.Try) -> bool:
        before = dict(self.frame.env)
        ended = self.block(node.body) or self.block(node.orelse)
        after = dict(self.frame.env)
        if node.handlers:
            start = _joined(before, after)
            self.frame.env.clear()
            self.frame.env.update(start)
            arms = [(handler.body, True) for handler in node.handlers]
            handled = self._fork(arms)
            if ended:
                ended = handled
            elif handled:
                self.frame.env.clear()
                self.frame.env.update(after)
            else:
                env = _joined(after, self.frame.env)
                self.frame.env.clear()
                self.frame.env.update(env)
        return self.block(node.final) or ended

    def _on_match(self, node: ir.Match) -> bool:
        self.eval(node.subject)
        arms: list[tuple[Sequence[ir.Stmt], bool]] = [(case.body, True) for case in node.cases]
        return self._fork([*arms, ((), True)])


def _moved(node: ir.Expr) -> ir.Expr:
    """What an expression copies or moves, without changing its dtype."""
    while isinstance(node, ir.Call) and isinstance(node.func, ir.Attr) and node.func.name in surface.MOVES:
        node = node.func.base
    return node.base if isinstance(node, ir.Attr) and node.name == "data" else node


def _runs(iterated: Value, item: Value) -> bool:
    """Whether a loop is run at least once: over items that are there, or over the layers of a model."""
    if isinstance(iterated, Items):
        return bool(iterated.items)
    if isinstance(item, Items) and item.items:
        item = item.items[-1]
    return all(isinstance(option, (Layer, Object)) for option in options(item))


def _joined(one: dict[str, Value], two: dict[str, Value]) -> dict[str, Value]:
    found = {**one, **two}
    for name, value in found.items():
        before = one.get(name, value)
        if before is not value:
            found[name] = join(before, value)
    return found


def _united(
    one: dict[Hashable, frozenset[Cast]], two: dict[Hashable, frozenset[Cast]]
) -> dict[Hashable, frozenset[Cast]]:
    return {key: one.get(key, frozenset()) | two.get(key, frozenset()) for key in {**one, **two}}


def _doubt_chosen(env: dict[str, Value], others: Sequence[Mapping[str, Value]]) -> None:
    """The dtypes that are other ones, or none, in arms that are left out are those of this precision alone."""
    for name, value in env.items():
        if isinstance(value, DType) and any(other.get(name) != value for other in others):
            env[name] = replace(value, assumed=True)


def _switches(context: ir.Expr) -> set[tuple[str, bool]]:
    """The condition under which a region is on, as it is spelled, and which truth of it."""
    given = [arg.value for arg in context.args if arg.keyword == "enabled"] if isinstance(context, ir.Call) else []
    told = [spelled_condition(value) for value in given]
    return {(asked, not negated) for asked, negated in told if asked}


def _unlowered(value: Value) -> Value:
    """What a region that was off has made, in place of what it makes where it is on."""
    if isinstance(value, Tensor) and value.origin == "region" and value.low:
        return replace(value, dtypes=FLOAT32, by="", origin="", assumed=False)
    return Items(tuple(map(_unlowered, value.items))) if isinstance(value, Items) else value


def _asks_for_dtype(test: ir.Expr) -> bool:
    """``layer.weight.dtype == torch.bfloat16``."""
    if not isinstance(test, ir.Compare) or len(test.rest) != 1 or test.rest[0][0] not in ("==", "is"):
        return False
    return isinstance(test.left, ir.Attr) and test.left.name == "dtype"


def _precision_arm(test: ir.Expr) -> str | None:
    """Which arm of a condition that speaks of precision is the low-precision one: yes, no, ``neither`` can be told;
    None for a condition that does not.
    """
    if isinstance(test, ir.Unary) and test.op == "not":
        inner = _precision_arm(test.operand)
        return {"yes": "no", "no": "yes"}.get(inner or "", inner)
    words = set(words_in(test))
    if isinstance(test, ir.Compare) and len(test.rest) == 1 and any(_SUBJECT.search(word) for word in words):
        if _is_none(test.rest[0][1]) and not any(_SWITCH.search(word) for word in words):
            return None
        return _compared_arm(*test.rest[0])
    if isinstance(test, ir.Call) and words & {"is_enabled"} and any("scaler" in word for word in words):
        return "yes"
    if not any(_PRECISION_WORD.search(word) for word in words):
        return None
    if isinstance(test, (ir.Name, ir.Attr, ir.Call)) and not any("32" in word for word in words):
        return "yes"
    return "neither"


def _compared_arm(op: str, right: ir.Expr) -> str:
    """The low-precision arm of a comparison of something that sets the precision with ``right``."""
    words = set(words_in(right))
    full = _is_none(right) or any(word.lower() in _FULL or "32" in word for word in words)
    low = not full and any(_PRECISION_WORD.search(word) or "16" in word for word in words)
    if not (full or low) or op not in ("==", "!=", "is", "is not", "in", "not in"):
        return "neither"
    return "yes" if low is (op in ("==", "is", "in")) else "no"


def _is_none(node: ir.Expr) -> bool:
    return isinstance(node, ir.Const) and node.value is None
