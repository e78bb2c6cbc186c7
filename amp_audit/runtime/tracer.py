"""The dispatch mode: each operator that runs, counted by what it is, where it is and in which dtypes it really ran.

The hot path touches no tensor data and never waits for a device. Which forward operator a backward operator belongs to
is known from autograd's sequence numbers: the node of an operator is made before the operator is dispatched, so the
number before the next one is its own.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amp_audit.runtime import tracebacks
from amp_audit.runtime.dtypes import short
from amp_audit.runtime.frames import is_thrown_in, passing
from amp_audit.runtime.parts import CastCounts, CastKey, Observer
from amp_audit.runtime.place import ENGINE, NOWHERE, OPTIMIZER, USER, Places
from amp_audit.runtime.plans import INTO_FIRST, Plan, first, size
from amp_audit.runtime.profilers import Unprofiled
from amp_audit.runtime.queue import capturing
from amp_audit.runtime.stopwatch import Stopwatch
from amp_audit.trace.schema import PHASES, CastRow, Number, OpRow
from amp_audit.trace.writer import Writer

FORWARD, RECOMPUTE, BACKWARD, OPTIMIZING, OTHER = range(5)  # indices of PHASES
OFF = "off"
"""What a region within a live one has, where that one turns autocast off."""

ACCUMULATE = 2**64 - 1
"""The sequence number of the nodes that add to ``.grad``."""

GENERATIONS = 8
"""For so many parts of steps the sites of autograd nodes are kept: a graph may be older than the step it is used in."""

_peek = torch._C._autograd._get_sequence_nr
_graph_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_get_ident = threading.get_ident
_getframe = sys._getframe
_Tensor = torch.Tensor
_Parameter = torch.nn.Parameter

_MANY_ERRORS = 100
"""So many different errors of operators are kept in one part of a step: a program may live by catching them."""

LONG_ERROR = 200

_BEFORE_TIME = 5 + len(CastCounts._fields)
"""So many things stand before the time in the counts of a cast."""

_ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})
_INNER_TYPES = frozenset({"FakeTensor", "FunctionalTensor"})
"""Tensors of compilers: nothing is computed on them."""


@dataclass(slots=True)
class Lane:
    """What one thread's operators have to be told apart by: autograd counts its nodes per thread.

    ``sequence``: the number the next node had when we last looked; ``nodes``: the site of each node;
    ``previous`` and ``mutated``: the site of the operator before, and whether that wrote into a tensor.
    """

    stack: list[int]
    sequence: int = 0
    nodes: dict[int, int] = field(default_factory=dict)
    older: list[dict[int, int]] = field(default_factory=list)
    previous: int = NOWHERE
    mutated: bool = False

    def find(self, number: int) -> int | None:
        for nodes in (self.nodes, *self.older):
            if number in nodes:
                return nodes[number]
        return None

    def turn(self) -> None:
        """A part of a step is over: forget the oldest nodes."""
        self.older = [self.nodes, *self.older][: GENERATIONS - 1]
        self.nodes = {}


class Row:
    """The counts of one row of the trace in the step in progress. Of casts ``read`` counts elements cast again."""

    __slots__ = (
        *("bytes", "calls", "elements", "flops", "itemsize", "nanoseconds", "number"),
        *("read", "second", "sizes", "works"),
    )

    def __init__(self, itemsize: int, works: bool) -> None:
        self.calls = self.elements = self.bytes = self.read = self.second = self.flops = self.nanoseconds = 0
        self.sizes = (1, 1)  # bytes that each of what ``read`` and ``second`` count takes
        self.itemsize = itemsize
        self.works = works  # whether ``flops`` are known for the operator
        self.number: int | None = None


class Book:
    """The rows of a process, shared by the tracers of its threads."""

    def __init__(self, places: Places, broken: Callable[[str, Exception], None]) -> None:
        self.places = places
        self.plans: dict[int, Plan] = {}
        self.ops: dict[tuple[Any, ...], Row] = {}
        self.casts: dict[tuple[Any, ...], Row] = {}
        self.regions: list[dict[str, str]] = [{}]
        self.region = 0
        self.observer: Observer | None = None
        self.made: Callable[[Any], None] | None = None  # to be told of all results, on deep steps
        self.deep = False
        self.stopwatch: Stopwatch | None = None  # on deep steps
        self.cast: set[tuple[Any, ...]] = set()  # parameters cast in this region: id, version and dtype
        self.unobserved: Counter[str] = Counter()
        self.tracers: list[Tracer] = []
        self.showing = threading.RLock()  # an observer is shown one operator at a time
        self._broken = broken
        self._raised: dict[tuple[str, int, int, str], tuple[str, ...]] = {}
        self._forward_regions: dict[int, int] = {}  # by site
        self._about: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def broken(self, error: Exception) -> None:
        """Our own bookkeeping failed: the program goes on without it."""
        self._broken("tracer", error)

    def observer_broken(self, error: Exception) -> None:
        self.observer = None
        self._broken("numerics", error)

    def raised(
        self, plan: Plan, site: int, phase: int, args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException
    ) -> None:
        """An operator raised: often the whole proof of a hazard, and the last thing a program does."""
        if not isinstance(error, Exception) or len(self._raised) >= _MANY_ERRORS or is_thrown_in(error):
            return
        try:
            key = (plan.name, site, phase, str(error).partition("\n")[0][:LONG_ERROR])
            self._raised.setdefault(key, tuple(map(short, plan.read(args, kwargs))))
        except Exception as own:
            if is_thrown_in(own):
                raise
            self.broken(own)

    def errors(self) -> list[Number]:
        """What operators raised since this was asked last."""
        raised, self._raised = self._raised, {}
        return [
            Number("raised", self.places.place(site), text, name, PHASES[phase], inputs[0] if inputs else None)
            for (name, site, phase, text), inputs in raised.items()
        ]

    def plan(self, func: Any) -> Plan:
        plan = self.plans.get(id(func))
        if plan is None:
            plan = self.plans[id(func)] = Plan(func)  # holds func, so that its id stays its own
        return plan

    def region_number(self, dtypes: dict[str, str]) -> int:
        """A number for the state of autocast: low-precision dtype by device type, or ``OFF``."""
        if dtypes not in self.regions:
            self.regions.append(dtypes)
        return self.regions.index(dtypes)

    def new_op(self, key: tuple[Any, ...], plan: Plan, inputs: tuple[Any, ...], out: Any, itemsize: int) -> Row:
        """``key``: plan, site, phase, region, dtypes. ``itemsize``: bytes an element, 0 if they are counted apart."""
        result = first(out)
        row = self.ops[key] = Row(itemsize, plan.flops is not None)
        about = (None, None) if result is None else (result.dtype, result.device.type)
        self._about[key] = (inputs, *about)
        if key[2] == FORWARD:
            self._forward_regions[key[1]] = key[3]
        return row

    def new_cast(self, key: tuple[Any, ...]) -> Row:
        """``key``: phase, site, source and target dtype."""
        row = self.casts[key] = Row(0, False)
        return row

    def collect(self, writer: Writer, counts: dict[CastKey, CastCounts]) -> tuple[list[list[int | None]], ...]:
        """The counts of the step that ends, as ``Writer.step`` takes them; all start from zero again."""
        if self.stopwatch is not None:
            self.stopwatch.read()
        ops = [self._collect_op(key, row, writer) for key, row in list(self.ops.items()) if row.calls]
        casts = [self._collect_cast(key, row, writer, counts) for key, row in list(self.casts.items()) if row.calls]
        return ops, casts

    def _collect_op(self, key: tuple[Any, ...], row: Row, writer: Writer) -> list[int | None]:
        if row.number is None:
            plan, site, phase, region = key[:4]
            forward = self._forward_regions.get(site, region)
            if phase == RECOMPUTE:  # checkpoint enters the regions of the forward again, unheard
                region = forward
            inputs, output, device = self._about[key]
            autocast = self.regions[region].get(device)
            asked = forward if phase == BACKWARD else region
            row.number = writer.define_op(
                OpRow(
                    PHASES[phase],
                    plan.name,
                    tuple(map(short, inputs)),
                    output and short(output),
                    self.places.place(site),
                    None if autocast == OFF else autocast,
                    off=self.regions[asked].get(device) == OFF,
                )
            )
        written = row.bytes + row.elements * row.itemsize
        read = row.read * row.sizes[0] + row.second * row.sizes[1]
        counts: list[int | None] = [row.number, row.calls, row.elements, written, read]
        if row.works or row.nanoseconds:
            counts.append(row.flops if row.works else None)
        if row.nanoseconds:
            counts.append(row.nanoseconds)
        row.calls = row.elements = row.bytes = row.read = row.second = row.flops = row.nanoseconds = 0
        return counts

    def _collect_cast(
        self, key: tuple[Any, ...], row: Row, writer: Writer, counts: dict[CastKey, CastCounts]
    ) -> list[int | None]:
        phase, site, source, target = key
        about = CastKey(PHASES[phase], short(source), short(target), site)
        if row.number is None:
            row.number = writer.define_cast(CastRow(about.phase, about.source, about.target, self.places.place(site)))
        written = row.elements * target.itemsize
        counted: list[int | None] = [row.number, row.calls, row.elements, written, row.read, *counts.get(about, ())]
        if row.nanoseconds:
            counted += [*([None] * (_BEFORE_TIME - len(counted))), row.nanoseconds]
        row.calls = row.elements = row.read = row.nanoseconds = 0
        return counted


def admit_higher_order_operators() -> None:
    """Let higher-order operators run under a ``Tracer`` of a torch without ``supports_higher_order_operators``."""
    if hasattr(TorchDispatchMode, "supports_higher_order_operators"):
        return
    for operator in getattr(torch._ops, "_higher_order_ops", {}).values():
        if Tracer not in operator.python_key_table:
            operator.python_key_table[Tracer] = functools.partial(_higher_order, operator)


def _higher_order(operator: Any, mode: Tracer, *args: Any, **kwargs: Any) -> Any:
    return mode.__torch_dispatch__(operator, (), args, kwargs)


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches the operators of one thread, and those that autograd's threads run for its backward.

    The class settings keep ``torch.compile`` alive: without them Dynamo would never again compile what it met under
    this mode, and higher-order operators would raise.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, book: Book) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.book = book
        self.places = book.places
        self.thread = _get_ident()
        self.lane = Lane(book.places.modules.stack(self.thread))
        self.others: dict[int, Lane] = {}
        self.off = False
        self._plans = book.plans
        self._kinds = book.places.kinds
        self._ops = book.ops
        self._casts = book.casts
        self._sites = book.places.numbers

    def begin(self) -> None:
        """Operators count from now on."""
        self.lane.sequence = _peek()
        self.lane.previous, self.lane.mutated = NOWHERE, False
        self.off = False

    def turn(self) -> None:
        for lane in (self.lane, *self.others.values()):
            lane.turn()

    @passing("func", "call")
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if kwargs is None:
            kwargs = {}
        if self.off or (types and not _ORDINARY.issuperset(types)):
            return self._step_aside(func, types, args, kwargs)
        book = self.book
        try:
            plan = self._plans.get(id(func)) or book.plan(func)
            lane = self.lane if _get_ident() == self.thread else self._other_lane()
            now = _peek()
            silent = plan.silent
            if silent and now == lane.sequence:
                site, phase = NOWHERE, OTHER
            else:
                site, phase = self._where(lane, now, plan, _getframe().f_back)
        except Exception as error:
            if is_thrown_in(error):
                raise
            self._give_up(error)
            return func(*args, **kwargs)
        try:
            if silent:
                return plan.call(*args, **kwargs)
            if book.deep:
                return self._observed(plan, site, phase, args, kwargs)
            out = plan.call(*args, **kwargs)
        except BaseException as error:
            book.raised(plan, site, phase, args, kwargs, error)
            tracebacks.clean(error)
            raise
        try:
            cast = self._count_cast(plan, site, phase, args, out) if plan.cast else None
            if cast is None:
                self._count(plan, site, phase, args, kwargs, out)
            elif book.observer is not None and cast[1] in book.observer.cast_targets:
                self._show(plan, site, phase, args, kwargs, out, None)
        except Exception as error:
            if is_thrown_in(error):
                raise
            self._give_up(error)
        return out

    @passing("func")
    def _step_aside(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Tensor subclasses that dispatch themselves: what they do inside comes by again as plain operators."""
        if self.off or any(one.__name__ in _INNER_TYPES for one in types):
            return func(*args, **kwargs)
        return NotImplemented

    def _give_up(self, error: Exception) -> None:
        self.off = True
        self.book.broken(error)

    def _other_lane(self) -> Lane:
        thread = _get_ident()
        lane = self.others.get(thread)
        if lane is None:
            lane = Lane(self.places.modules.stack(thread), max(0, _peek() - 1))
            self.others[thread] = lane
        return lane

    def _where(self, lane: Lane, now: int, plan: Plan, frame: FrameType | None) -> tuple[int, int]:
        """Site and phase of the operator about to run; remembers the site for the autograd node made for it."""
        kinds = self._kinds
        through = 0
        while frame is not None:
            code = frame.f_code
            kind = kinds.get(id(code))
            if kind is None:
                kind = self.places.kind(code)
            if kind == USER:
                break
            if kind == ENGINE:
                return self._backward(lane, lane, now), BACKWARD
            if kind == OPTIMIZER:
                through = 1
            frame = frame.f_back
        task = _graph_task()
        if frame is None:
            if task != -1:
                return self._backward(lane, self.lane, now), BACKWARD
            site = self.places.module_site(lane.stack[-1])
        else:
            module = lane.stack[-1]
            known = self._sites.get((id(frame.f_code), frame.f_lasti, module, through))
            site = known or self.places.site(frame, module, through)
        if through:
            phase = OPTIMIZING
        elif task != -1:
            phase = RECOMPUTE if self.places.recomputes(site, frame) else BACKWARD
        elif now != lane.sequence or lane.stack[-1] or self.places.compiled(site, _getframe().f_back):
            phase = FORWARD
        else:
            phase = OPTIMIZING if self.places.sites[site].in_optimizer else OTHER
        if now != lane.sequence:
            self._claim(lane, now, site)
        lane.previous = site
        lane.mutated = plan.mutates
        return site, phase

    def _claim(self, lane: Lane, now: int, site: int) -> None:
        """The last autograd node is this operator's. Those made since the operator before are its own, too, except
        that writing into a view makes a node only afterwards."""
        nodes = lane.nodes
        before = lane.previous if lane.mutated else site
        for number in range(lane.sequence, now - 1):
            nodes[number] = before
        nodes[now - 1] = site
        lane.sequence = now

    def _backward(self, lane: Lane, owner: Lane, now: int) -> int:
        """The site of the forward operator whose backward runs. ``owner``: the lane in which the forward ran."""
        node: Any = _node()
        if node is None:  # what is done when a backward is over: DDP's reductions
            return self.places.module_site(lane.stack[-1])
        number = node._sequence_nr()
        known = owner.nodes.get(number)
        if known is not None:
            site = known
        elif number == ACCUMULATE:
            site = self.places.owner_site(node.variable)
        else:
            site = self._distant(owner, number)
        if now != lane.sequence:  # a graph of the backward itself, or a write into a view just before
            made_by = lane.previous if lane.mutated else site
            for made in range(lane.sequence, now):
                lane.nodes[made] = made_by
            lane.sequence = now
        lane.mutated = False
        return site

    def site_of(self, node: Any) -> int | None:
        """The site of the operator that a node of autograd was made for; None when it was not seen."""
        return self._find(self.lane, node._sequence_nr())

    def _find(self, owner: Lane, number: int) -> int | None:
        for lane in (owner, self.lane, *(tracer.lane for tracer in self.book.tracers if tracer is not self)):
            site = lane.find(number)
            if site is not None:
                return site
        return None

    def _distant(self, owner: Lane, number: int) -> int:
        """A node of an older part of the run, or of a forward on another thread."""
        site = self._find(owner, number)
        if site is not None:
            return site
        self.book.unobserved["backward operators whose forward was not seen"] += 1
        return NOWHERE

    def _count(self, plan: Plan, site: int, phase: int, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Row:
        arity = plan.arity if args and isinstance(args[0], _Tensor) else 0  # 1 // x comes by with its number
        if arity == 1:
            one, two = args[0], None
            key: tuple[Any, ...] = (plan, site, phase, self.book.region, one.dtype, out.dtype)
        elif arity == 2 and len(args) > 1:
            one, two = args[0], args[1]
            if isinstance(two, _Tensor):
                dtype = two.dtype
            else:
                two = dtype = None
            key = (plan, site, phase, self.book.region, one.dtype, dtype, out.dtype)
        else:
            return self._count_any(plan, site, phase, args, kwargs, out)
        row = self._ops.get(key)
        if row is None:
            row = self.book.new_op(key, plan, tuple(filter(None, key[4:-1])), out, out.dtype.itemsize)
            row.sizes = (one.dtype.itemsize, 1 if two is None else two.dtype.itemsize)
        row.calls += 1
        row.elements += out.numel()
        row.read += one.numel()
        if two is not None:
            row.second += two.numel()
        if plan.flops is not None:
            row.flops += plan.flops(args, out)
        return row

    def _count_any(
        self, plan: Plan, site: int, phase: int, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> Row:
        """The same for any arguments. Operators without a result have written into their first argument."""
        written = args[0] if out is None and args else out
        inputs: list[torch.dtype] = []
        read = 0
        for value in plan.given(args, kwargs):
            if isinstance(value, _Tensor):
                dtype = value.dtype
                inputs.append(dtype)
                read += value.numel() * dtype.itemsize
            elif value.__class__ is list or value.__class__ is tuple:
                item = first(value)
                if item is not None:
                    inputs.append(item.dtype)
                    read += size(value)[1]
        if isinstance(written, _Tensor):
            result: torch.dtype | None = written.dtype
            elements = written.numel()
            amount = elements * written.dtype.itemsize
        else:
            item = first(written)
            result = None if item is None else item.dtype
            elements, amount = size(written)
        key = (plan, site, phase, self.book.region, tuple(inputs), result)
        row = self._ops.get(key) or self.book.new_op(key, plan, key[4], written, 0)
        row.calls += 1
        row.elements += elements
        row.bytes += amount
        row.read += read
        if plan.flops is not None:
            row.flops += plan.flops(args, out)
        return row

    @passing("call")
    def _observed(self, plan: Plan, site: int, phase: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator of a deep step, which others want to see, too."""
        book = self.book
        kept = None
        inside = capturing()
        if book.observer is not None and not inside:
            try:
                with book.showing, Unprofiled():
                    kept = book.observer.before(plan.func, args, kwargs, PHASES[phase], site)
            except Exception as error:
                if is_thrown_in(error):
                    raise
                book.observer_broken(error)
        stopwatch, spent = book.stopwatch, None
        if stopwatch is None or inside:
            out = plan.call(*args, **kwargs)
        else:
            out, spent = stopwatch.run(plan.call, args, kwargs, _on_gpu(args))
        try:
            cast = self._count_cast(plan, site, phase, args, out) if plan.cast else None
            row = self._count(plan, site, phase, args, kwargs, out) if cast is None else cast[0]
            if stopwatch is not None and spent is not None:
                stopwatch.book(row, spent)
        except Exception as error:
            if is_thrown_in(error):
                raise
            self._give_up(error)
            return out
        if book.made is not None:
            try:
                with Unprofiled():
                    book.made(out)
            except Exception as error:
                if is_thrown_in(error):
                    raise
                book.made = None
                book.broken(error)
        self._show(plan, site, phase, args, kwargs, out, kept)
        return out

    def _show(
        self, plan: Plan, site: int, phase: int, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, kept: Any
    ) -> None:
        observer = self.book.observer
        if capturing():
            self.book.unobserved["values inside CUDA graphs"] += 1
        elif observer is not None:
            try:
                with self.book.showing, Unprofiled():
                    observer.after(plan.func, args, kwargs, out, PHASES[phase], site, kept)
            except Exception as error:
                if is_thrown_in(error):
                    raise
                self.book.observer_broken(error)

    def _count_cast(
        self, plan: Plan, site: int, phase: int, args: tuple[Any, ...], out: Any
    ) -> tuple[Row, torch.dtype] | None:
        """Count a change between floating-point types, to the one returned; None when it only moved or copied."""
        read, written = (args[1], args[0]) if plan.cast == INTO_FIRST else (args[0], out)
        if isinstance(read, _Tensor) and isinstance(written, _Tensor):
            one, source, target, elements = read, read.dtype, written.dtype, written.numel()
        else:
            found, other = first(read), first(written)
            if found is None or other is None:
                return None
            one, source, target, elements = found, found.dtype, other.dtype, size(written)[0]
        if source is target:
            return None
        key = (phase, site, source, target)
        row = self._casts.get(key)
        if row is None:
            if not (source.is_floating_point and target.is_floating_point):
                return None
            row = self.book.new_cast(key)
        row.calls += 1
        row.elements += elements
        if phase == FORWARD and type(one) is _Parameter:
            seen = (id(one), one._version, target)
            if seen in self.book.cast:
                row.read += elements
            self.book.cast.add(seen)
        return row, target


def _on_gpu(args: tuple[Any, ...]) -> bool:
    tensor = args[0] if args else None
    if not isinstance(tensor, _Tensor):
        tensor = first([item for value in args for item in (value if value.__class__ is list else (value,))])
    return tensor is not None and tensor.is_cuda
