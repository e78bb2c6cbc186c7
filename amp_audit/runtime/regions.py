"""Autocast regions, the forwards in them, and weights that change beneath their cached copies -> events."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from amp_audit.events import Kind
from amp_audit.runtime.dtypes import LOW, short
from amp_audit.runtime.owners import low_dtype
from amp_audit.runtime.teller import Teller
from amp_audit.trace.schema import Number, Place

Autocast = torch.amp.autocast_mode.autocast
Call = Callable[..., Any]


class Regions:
    """Wrappers of autocast and of what runs in it; the stack of regions of the training thread."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._stack: list[tuple[int, Autocast, bool]] = []  # the last: whether it was entered within a module
        self._entered = 0
        self._leaving = False
        self._in_forward = False
        self._unused: dict[tuple[str | None, int | None, int | None], tuple[Place, int]] = {}
        self._built: _Places = _Places()
        self._used: set[tuple[str | None, int | None, int | None]] = set()

    def install(self) -> None:
        self._teller.leave_regions = self._leave_all
        wrap = self._teller.patches.wrap
        wrap(Autocast, "__init__", self._region_new)
        wrap(Autocast, "__enter__", self._region_enter)
        wrap(Autocast, "__exit__", self._region_exit)
        wrap(torch, "clear_autocast_cache", self._clear_cache)
        wrap(torch.nn.Module, "__call__", self._module_call)
        wrap(torch.nn.Module, "load_state_dict", self._load_state_dict)

    def finish(self) -> None:
        """Tell of the places whose regions nothing entered."""
        for spot, (place, built) in self._unused.items():
            if spot not in self._used:
                self._teller.host.number(Number("region_unused", place=place, values={"built": built}))

    def _region_new(self, original: Call) -> Call:
        def __init__(region: Autocast, *args: Any, **kwargs: Any) -> None:
            original(region, *args, **kwargs)
            if self._teller.on():
                with self._teller.quiet("autocast's constructor"):
                    place = self._teller.host.places.here()
                    self._built.put(region, place)
                    built = self._unused.get(_spot(place), (place, 0))[1]
                    self._unused[_spot(place)] = (place, built + 1)
                    wanted = args[2] if len(args) > 2 else kwargs.get("enabled", True)
                    if wanted is True and not region._enabled and region.fast_dtype not in LOW and not built:
                        number = Number("dtype_refused", place=place, dtype=short(region.fast_dtype))
                        self._teller.host.number(number)

        return __init__

    def _region_enter(self, original: Call) -> Call:
        def __enter__(region: Autocast) -> Any:
            place = self._built.get(region)
            if place is not None:
                self._used.add(_spot(place))
            result = original(region)
            try:
                if self._teller.mine():
                    with self._teller.quiet("autocast"), self._teller.order:
                        if self._teller.mine():  # another thread may have come to train meanwhile
                            self._note_enter(region)
            except BaseException:  # thrown in by another thread: no one else would leave what ``with`` has not entered
                region.__exit__(None, None, None)
                raise
            return result

        return __enter__

    def _note_enter(self, region: Autocast) -> None:
        self._entered += 1
        self._stack.append((self._entered, region, self._in_forward))
        self._in_forward = False  # a module called from here is outermost in this region
        self._teller.emit(
            Kind.REGION_ENTER,
            region=self._entered,
            device=region.device,
            dtype=short(region.fast_dtype),
            enabled=bool(region._enabled),
            cache=bool(region._cache_enabled),
            foreign=not self._teller.host.places.entered_by_program(),
        )

    def _region_exit(self, original: Call) -> Call:
        def __exit__(region: Autocast, *error: Any) -> Any:
            self._leaving = True
            try:
                return original(region, *error)
            finally:  # cut in two by a signal handler, it is left all the same
                self._leaving = False
                if self._teller.mine() and any(entered is region for _, entered, _ in self._stack):
                    with self._teller.quiet("autocast"), self._teller.order:
                        self._leave(region)

        return __exit__

    def _leave(self, region: Autocast) -> None:
        if torch.is_grad_enabled() and _low(region):
            for owner in self._teller.owners.all():
                owner.region_dtype = short(region.fast_dtype)
        while self._stack:
            number, entered, self._in_forward = self._stack.pop()
            self._teller.emit(Kind.REGION_EXIT, region=number)
            if entered is region:
                return

    def _leave_all(self) -> bool:
        found = bool(self._stack)
        while self._stack:
            number, _, self._in_forward = self._stack.pop()
            self._teller.emit(Kind.REGION_EXIT, region=number)
        return found

    def _clear_cache(self, original: Call) -> Call:
        def clear_autocast_cache() -> None:
            original()
            if not self._leaving and self._teller.mine() and self._stack:
                with self._teller.quiet("torch.clear_autocast_cache"):
                    self._teller.emit(Kind.CACHE_CLEAR)

        return clear_autocast_cache

    def _module_call(self, original: Call) -> Call:
        def __call__(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._in_forward or not self._teller.mine():
                return original(module, *args, **kwargs)
            self._in_forward = True
            try:
                with self._teller.quiet("a forward pass"):
                    self._forward(module)
                return original(module, *args, **kwargs)
            finally:
                self._in_forward = False

        return __call__

    def _forward(self, module: torch.nn.Module) -> None:
        """An outermost module runs: remember in which dtype, and tell of it where weights get cached."""
        owners = self._teller.owners.of_module(module)
        region = self._stack[-1][1] if self._stack and _low(self._stack[-1][1]) else None
        if torch.is_grad_enabled():
            for owner in owners:
                owner.ran_in(short(region.fast_dtype) if region else low_dtype(owner.alive()) or "float32")
                owner.name = owner.name or type(module).__name__
        if region is None:
            return
        outermost = self._stack[0][0]
        cached = [owner for owner in owners if owner.has_float32_weights()]
        changed = [owner for owner in cached if owner.weights_changed(outermost)]
        if changed:
            self._teller.emit(Kind.WEIGHT_WRITE, owners=changed)
        if cached:
            self._teller.emit(Kind.FORWARD, owners=cached, enabled=torch.is_grad_enabled())
        for owner in cached:
            owner.look_at_weights(outermost)

    def _load_state_dict(self, original: Call) -> Call:
        def load_state_dict(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = original(module, *args, **kwargs)
            if self._teller.mine() and self._stack:
                with self._teller.quiet("load_state_dict"):
                    owners = self._teller.owners.of_module(module)
                    if owners:
                        self._teller.emit(Kind.WEIGHT_WRITE, owners=owners)
                    for owner in owners:
                        owner.look_at_weights()
            return result

        return load_state_dict


class _Places:
    """Where regions were built, for as long as they live.

    Not a WeakKeyDictionary: its callback is Python, in which what another thread throws in would be lost.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[_Reference, Place]] = {}
        self._gone: list[_Reference] = []

    def put(self, region: Autocast, place: Place) -> None:
        while self._gone:
            gone = self._gone.pop()
            if self._known.get(gone.key, (None,))[0] is gone:
                del self._known[gone.key]
        reference = _Reference(region, self._gone.append)
        reference.key = id(region)
        self._known[id(region)] = (reference, place)

    def get(self, region: Autocast) -> Place | None:
        known = self._known.get(id(region))
        return known[1] if known is not None and known[0]() is region else None


class _Reference(weakref.ref[Autocast]):
    __slots__ = ("key",)
    key: int


def _spot(place: Place) -> tuple[str | None, int | None, int | None]:
    return place.path, place.line, place.column


def _low(region: Autocast) -> bool:
    return region._enabled is True and region.fast_dtype in LOW
