"""What the program does with scalers, optimizers, regions and gradients -> protocol events, on every step.

torch's own functions are wrapped while a run is audited. A wrapper computes what the function computes; what it adds
never waits for the device: scales and inf checks are queued and read in ``Signals.settle``.
"""

from __future__ import annotations

import functools
import linecache
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.amp.grad_scaler import OptState
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from amp_audit.events import Kind, Via
from amp_audit.runtime import roots
from amp_audit.runtime.contents import held_states
from amp_audit.runtime.gradients import Gradients
from amp_audit.runtime.owners import Owner
from amp_audit.runtime.parts import Host, Probe
from amp_audit.runtime.profilers import Unprofiled
from amp_audit.runtime.queue import capturing, finite, quiet_clone
from amp_audit.runtime.regions import Regions
from amp_audit.runtime.teller import Teller
from amp_audit.trace.schema import EventRow, Number, Place

GradScaler = torch.amp.GradScaler
Call = Callable[..., Any]

_ASSIGNED = re.compile(r"\s*(?:\w+\.)*(\w+)\s*(?::[^=]+)?=[^=]")


class Signals:
    """All wrappers. ``install`` before the program's own imports of torch's names; ``uninstall`` after."""

    def __init__(self, host: Host) -> None:
        self._teller = Teller(host)
        self._parts = (Regions(self._teller), Gradients(self._teller))
        self.probes: list[Probe] = []
        self.before_backward = self._teller.before_backward
        self._handles: list[Any] = []
        self._scaler_step: bool | None = None  # inside scaler.step: whether the optimizer itself stepped
        self._stepping: list[Any] = []
        self._skips: dict[int, list[EventRow]] = {}  # by scaler, since its last update
        self._scales: dict[int, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        self._carried: dict[int, torch.Tensor] = {}  # by optimizer, while a scaler steps it

    def install(self) -> None:
        """Wrap torch. Objects built earlier are taken note of when they are first used."""
        self._teller.active = True
        for part in self._parts:
            part.install()
        wrap = self._teller.patches.wrap
        wrap(GradScaler, "__init__", self._scaler_init)
        wrap(GradScaler, "load_state_dict", self._load_scaler)
        self._wrap_scaler(GradScaler)
        wrap(torch.optim.Optimizer, "__init__", self._optimizer_init)
        wrap(LRScheduler, "step", self._scheduler_step)
        wrap(torch.serialization, "save", self._save, torch)
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def uninstall(self) -> None:
        """Leave torch as it was found."""
        self._teller.active = False
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._teller.patches.undo()

    def forked(self) -> None:
        """In a forked child, where other threads are not."""
        self._teller.forked()

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Take note of an optimizer that was built before ``install``."""
        with self._teller.quiet("an optimizer"):
            self._teller.adopt(optimizer)

    def adopt_scaler(self, scaler: GradScaler) -> None:
        """Take note of a scaler that was built before ``install``."""
        with self._teller.quiet("a scaler"):
            self._scaler_new(scaler)

    def finish(self) -> None:
        """The recording is about to end: tell what only its end shows."""
        with self._teller.quiet("the end"):
            for part in self._parts:
                part.finish()

    @property
    def parallel(self) -> bool:
        """Whether several threads train at once."""
        return self._teller.parallel

    def read(self, look: Callable[[], Any]) -> Any:
        """What ``look`` returns, which reads any gradients; None, uncalled, while another thread's backward runs."""
        return self._teller.passes.read(look)

    @property
    def current_scale(self) -> torch.Tensor | None:
        """The live scale of the scaler that scaled last, float32 with one element."""
        return self._teller.current_scale

    def loss_scale(self, optimizer: Any) -> torch.Tensor | None:
        """The scale that an optimizer's gradients still carry; None after ``unscale_`` or without a scaler."""
        return self._carried.get(id(optimizer))

    def optimizers(self) -> list[Any]:
        """All optimizers that are alive."""
        return self._teller.owners.optimizers()

    def parameters(self) -> Iterator[torch.Tensor]:
        """The parameters of all optimizers that are alive."""
        for optimizer in self.optimizers():
            for group in optimizer.param_groups:
                yield from group["params"]

    def number(self, optimizer: Any) -> int:
        """The number of an optimizer that was taken note of; no other one ever has it, unlike its address."""
        return self._teller.owners.id(optimizer)[0]

    def name(self, parameter: torch.Tensor) -> str:
        """What a person would call a parameter."""
        return self._teller.owners.name(parameter, self._teller.host.places.modules)

    def label(self, optimizer: Any) -> str:
        """What tells an optimizer from the others: the module that it trains, or the variable that holds it."""
        return self._teller.owners.label(optimizer, self._teller.host.places.modules)

    def settle(self) -> None:
        """Read what was queued on the device. Called once at the end of each step, before the step is written."""
        with self._teller.quiet("settle"):
            self._teller.queue.read()

    def _wrap_scaler(self, cls: type) -> None:
        makers = {
            "scale": self._scaler_scale,
            "unscale_": self._scaler_unscale,
            "step": self._scaler_stepped,
            "update": self._scaler_update,
        }
        for name in makers:
            if name in vars(cls) and not self._teller.patches.wraps(cls, name):
                self._teller.patches.wrap(cls, name, makers[name])

    # Scalers

    def _scaler_init(self, original: Call) -> Call:
        def __init__(scaler: GradScaler, *args: Any, **kwargs: Any) -> None:
            original(scaler, *args, **kwargs)
            if self._teller.on():
                with self._teller.quiet("a scaler's constructor"):
                    self._scaler_new(scaler)

        return __init__

    def _scaler_new(self, scaler: GradScaler) -> None:
        # torch's own subclasses (ShardedGradScaler) replace methods without calling the ones they replace.
        for cls in type(scaler).__mro__:
            if cls.__module__.startswith("torch.") and issubclass(cls, GradScaler):
                self._wrap_scaler(cls)
        place = self._teller.host.places.here()
        site = f"{place.path}:{place.line}:{place.column or 0}"
        row = self._teller.emit(
            Kind.SCALER_NEW,
            scaler=scaler,
            place=place,
            enabled=bool(scaler._enabled),
            site=site,
            device=str(scaler._device),
        )
        row.names = (self._name_scaler(scaler, place),)

    def _name_scaler(self, scaler: GradScaler, place: Place) -> str:
        """The variable or attribute that the constructor's line assigns to; numbered when another one has that name."""
        line = linecache.getline(place.path, place.line) if place.path and place.line else ""
        assigned = _ASSIGNED.match(line)
        name = wanted = assigned[1] if assigned else "scaler"
        taken = set(self._names.values())
        count = 1
        while name in taken:
            count += 1
            name = f"{wanted} ({count})"
        self._names[self._teller.owners.id(scaler)[0]] = name
        return name

    def _load_scaler(self, original: Call) -> Call:
        def load_state_dict(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, *args, **kwargs)
            if self._teller.on() and scaler._enabled:
                with self._teller.quiet("scaler.load_state_dict"):
                    self._teller.emit(Kind.LOAD, scaler=scaler, contents=("scaler",))
            return result

        return load_state_dict

    def _scaler_scale(self, original: Call) -> Call:
        def scale(scaler: GradScaler, outputs: Any) -> Any:
            if not self._teller.on() or not scaler._enabled:
                return original(scaler, outputs)
            with self._teller.quiet("scaler.scale"):
                self._teller.trains()
                self._teller.emit(Kind.SCALE, scaler=scaler)
            result = original(scaler, outputs)
            with self._teller.quiet("scaler.scale"):
                roots.mark(result, self._teller.owners.id(scaler)[0])
                self._teller.current_scale = scaler._scale
            return result

        return scale

    def _scaler_unscale(self, original: Call) -> Call:
        def unscale_(scaler: GradScaler, optimizer: torch.optim.Optimizer) -> None:
            owners: tuple[Owner, ...] = ()
            if self._teller.on() and scaler._enabled and self._scaler_step is None:
                with self._teller.quiet("scaler.unscale_"):
                    self._teller.adopt(optimizer)
                    owners = self._teller.owners.link(optimizer)
                    self._teller.catch_up(owners)
                    self._teller.emit(Kind.UNSCALE, scaler=scaler, optimizer=optimizer, owners=owners)
            original(scaler, optimizer)
            for owner in owners:
                owner.scaled = False
                owner.look()

        return unscale_

    def _scaler_stepped(self, original: Call) -> Call:
        def step(scaler: GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            refused = "closure" in kwargs  # raises before it looks at anything
            if not self._teller.on() or not scaler._enabled or self._scaler_step is not None or refused:
                return original(scaler, optimizer, *args, **kwargs)
            row: EventRow | None = None
            with self._teller.quiet("scaler.step"):
                self._teller.trains()
                self._teller.adopt(optimizer)
                owners = self._teller.owners.link(optimizer)
                self._teller.catch_up(owners)
                row = self._teller.emit(
                    Kind.STEP, via=Via.SCALER.value, scaler=scaler, optimizer=optimizer, owners=owners
                )
            self._teller.host.optimizer_step(optimizer)
            self._gradients_ready(optimizer, scaler)
            self._scaler_step = False
            before = self._teller.backwards
            try:
                result = original(scaler, optimizer, *args, **kwargs)
                stepped = self._scaler_step
            finally:
                self._scaler_step = None
            with self._teller.quiet("scaler.step"):
                if row is not None:
                    self._note_skip(scaler, optimizer, row, stepped)
                if any(callable(argument) for argument in args):
                    inside = {"backwards": self._teller.backwards - before}
                    self._teller.host.number(Number("closure", place=self._teller.host.places.here(), values=inside))
            self._teller.host.optimizer_stepped(optimizer, skipped=row is not None and row.skipped)
            return result

        return step

    def _note_skip(self, scaler: GradScaler, optimizer: Any, row: EventRow, stepped: bool) -> None:
        """Whether the step was left out: known at once unless a fused kernel decides on the device."""
        self._skips.setdefault(self._teller.owners.id(scaler)[0], []).append(row)
        found = list(scaler._per_optimizer_states[id(optimizer)].get("found_inf_per_device", {}).values())
        if stepped and getattr(optimizer, "_step_supports_amp_scaling", False):
            for value in found:
                self._teller.queue.add(value, functools.partial(_skip_if, row))
        elif not stepped:
            # Not a torch optimizer's step, or skipped; the scaler has waited for these values itself.
            row.skipped = any(value.item() for value in found)
        self._stepped(optimizer)

    def _scaler_update(self, original: Call) -> Call:
        def update(scaler: GradScaler, new_scale: Any = None) -> None:
            if not self._teller.on() or not scaler._enabled:
                original(scaler, new_scale)
                return
            before: torch.Tensor | None = None
            with self._teller.quiet("scaler.update"):
                self._teller.emit(Kind.UPDATE, scaler=scaler, given=new_scale is not None)
                before = self._scale_now(scaler)
            original(scaler, new_scale)
            with self._teller.quiet("scaler.update"):
                if before is not None:
                    self._note_scale(scaler, before)

        return update

    def _scale_now(self, scaler: GradScaler) -> torch.Tensor | None:
        known = self._scales.get(self._teller.owners.id(scaler)[0])
        return known if known is not None or scaler._scale is None else quiet_clone(scaler._scale)

    def _note_scale(self, scaler: GradScaler, before: torch.Tensor) -> None:
        number = self._teller.owners.id(scaler)[0]
        after = quiet_clone(scaler._scale) if scaler._scale is not None else None
        if after is None:
            return
        self._scales[number] = after
        values: dict[str, float | int | None] = {}
        rows = self._skips.pop(number, [])

        def done(value: float) -> None:
            values["after"] = finite(value)
            values["skipped"] = int(any(row.skipped for row in rows))

        self._teller.queue.add(before, lambda value: values.__setitem__("before", finite(value)))
        self._teller.queue.add(after, done)
        self._teller.host.number(
            Number(
                "scale", place=self._teller.host.places.here(), subject=self._names.get(number, "scaler"), values=values
            )
        )

    # Optimizers

    def _optimizer_init(self, original: Call) -> Call:
        def __init__(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if self._teller.on():
                with self._teller.quiet("an optimizer's constructor"):
                    self._teller.adopt(optimizer)

        return __init__

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._teller.on():
            return
        if self._scaler_step is not None:
            self._scaler_step = True
            self._probe_before(optimizer, args, kwargs)
            return
        if self._stepping:  # one that raised never told that it was over
            outside = _stepping_now()[1:]
            self._stepping = [one for one in self._stepping if any(one is other for other in outside)]
        self._stepping.append(optimizer)
        if len(self._stepping) > 1:
            self._probe_before(optimizer, args, kwargs)
            return
        self._teller.trains()
        with self._teller.quiet("optimizer.step"):
            self._teller.adopt(optimizer)
            if not _closure(args, kwargs):
                self._plain_step(optimizer)
        self._teller.host.optimizer_step(optimizer)
        if not _closure(args, kwargs):
            self._gradients_ready(optimizer)
        self._probe_before(optimizer, args, kwargs)

    def _gradients_ready(self, optimizer: torch.optim.Optimizer, scaler: GradScaler | None = None) -> None:
        if scaler is not None and scaler._scale is not None and not _unscaled(scaler, optimizer):
            self._carried[id(optimizer)] = scaler._scale
        self._measure(lambda probe: probe.gradients_ready(optimizer))
        self._carried.clear()

    def _probe_before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._measure(lambda probe: probe.before_step(optimizer, closure=_closure(args, kwargs)))

    def _measure(self, call: Callable[[Probe], None]) -> None:
        """Let the probes measure: what they run is not differentiated, and no mode sees it, our own least of all."""
        if capturing():
            self._teller.host.unobserved("values inside CUDA graphs")
            return
        with torch.no_grad(), torch._C._DisableTorchDispatch(), Unprofiled():
            for probe in self.probes:
                with self._teller.quiet(type(probe).__name__.lower()):
                    call(probe)

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._teller.on():
            return
        self._measure(lambda probe: probe.after_step(optimizer))
        if self._scaler_step is not None or not self._stepping:
            return
        outermost = self._stepping.pop() is optimizer and not self._stepping
        if not outermost:
            return
        with self._teller.quiet("optimizer.step"):
            if _closure(args, kwargs):  # the closure's own events come first
                self._plain_step(optimizer)
                self._gradients_ready(optimizer)
            self._stepped(optimizer)
        self._teller.host.optimizer_stepped(optimizer, skipped=False)

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        for owner in self._teller.owners.link(optimizer):
            owner.used = True
            owner.look()
            owner.look_at_weights()

    def _plain_step(self, optimizer: torch.optim.Optimizer) -> None:
        owners = self._teller.owners.link(optimizer)
        self._teller.catch_up(owners, by_hand=True)
        self._teller.emit(Kind.STEP, via=Via.PLAIN.value, optimizer=optimizer, owners=owners)

    def _scheduler_step(self, original: Call) -> Call:
        def step(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            if self._teller.on() and sys._getframe(1).f_code.co_name != "_initial_step":
                with self._teller.quiet("scheduler.step"):
                    self._teller.emit(Kind.SCHEDULER_STEP, optimizer=scheduler.optimizer)
            original(scheduler, *args, **kwargs)

        return step

    def _save(self, original: Call) -> Call:
        def save(obj: Any, *args: Any, **kwargs: Any) -> None:
            if self._teller.on():
                with self._teller.quiet("torch.save"):
                    contents = held_states(obj)
                    if contents:
                        self._teller.emit(Kind.SAVE, contents=tuple(sorted(contents)))
            original(obj, *args, **kwargs)

        return save


def _unscaled(scaler: GradScaler, optimizer: Any) -> bool:
    stage = scaler._per_optimizer_states[id(optimizer)]["stage"]
    return stage is not OptState.READY


def _skip_if(row: EventRow, found_inf: float) -> None:
    row.skipped = row.skipped or found_inf > 0


def _closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return kwargs.get("closure") is not None or (len(args) > 1 and callable(args[1]))


def _stepping_now() -> list[Any]:
    """The optimizers whose steps are really on the stack, innermost first."""
    found: list[Any] = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename.endswith("optimizer.py"):
            found.extend((frame.f_locals.get("args") or ())[:1])
        frame = frame.f_back
    return found
