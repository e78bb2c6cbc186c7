"""How much memory the tensors of a deep step take when they take most, by dtype, on any device.

A weak reference to the memory of a tensor tells when it goes: Python's object for it lives as long as the memory does,
whoever holds it. What a kernel allocates for itself, and tensors that came from elsewhere and that no operator wrote,
are not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from amp_audit.runtime.dtypes import short
from amp_audit.runtime.parts import Host, Scene
from amp_audit.runtime.saved import plain
from amp_audit.trace.schema import Number


class Live:
    """A ``Part``: on deep steps Numbers ``live``. ``made`` is to be told of what operators return.

    ``owned``: the parameters and buffers of all modules.
    """

    def __init__(self, host: Host, scene: Scene, owned: Callable[[], Iterable[torch.Tensor]]) -> None:
        self._host = host
        self._scene = scene
        self._owned = owned
        self._deep = False
        self._memory: _Memory | None = None

    def step_begin(self, *, deep: bool) -> None:
        """A recorded step begins."""
        self._deep = deep
        self._memory = None
        if deep and self._scene.parallel:
            self._give_up()

    def step_end(self) -> None:
        """Tell what was there when it was most."""
        if self._memory is not None and self._scene.parallel:
            self._give_up()
        memory, self._memory, self._deep = self._memory, None, False
        if memory is None:
            return
        for device, peak in memory.close().items():
            together = sum(peak.values())
            for dtype, amount in peak.items():
                if amount:
                    values: dict[str, float | int | None] = {"bytes": amount, "together": together}
                    self._host.number(Number("live", subject=str(device), dtype=short(dtype), values=values))

    def made(self, out: Any) -> None:
        """An operator of the step has returned."""
        if not self._deep or self._scene.parallel:
            return
        memory = self._memory
        if memory is None:
            memory = self._memory = self._scene.read(self._begin)
            if memory is None:
                self._give_up()
                return
        if out.__class__ is torch.Tensor and out.layout is torch.strided:
            memory.add(out)
        else:
            for tensor in plain(out):
                memory.add(tensor)

    def _begin(self) -> _Memory:
        memory = _Memory()
        for tensor in self._standing():
            memory.add(tensor)
        return memory

    def _give_up(self) -> None:
        """Nothing is said of this step: while another thread goes backward nobody can look at what there is."""
        self._deep, self._memory = False, None
        self._host.unobserved("memory in use on deep steps beside another thread's training")

    def _standing(self) -> Iterator[torch.Tensor]:
        for tensor in self._owned():
            yield from plain(tensor)
            yield from plain(tensor.grad if tensor.is_leaf else None)
        for optimizer in self._scene.optimizers():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield from plain([parameter, parameter.grad])
            for state in list(optimizer.state.values()):  # its own thread may add to it
                yield from plain(list(state.values()) if isinstance(state, dict) else None)


class _Memory:
    """What is there now, and what was there when it was most. Keeps nothing alive."""

    def __init__(self) -> None:
        self._devices: dict[torch.device, _Device] = {}
        self._there: dict[int, _Followed] = {}
        self._gone: list[_Followed] = []
        self._torn = False  # an exception from elsewhere came between two stores that belong together

    def close(self) -> dict[torch.device, dict[torch.dtype, int]]:
        """What was there when it was most, in bytes; nothing is followed any more."""
        self._there.clear()
        return {device: held.peak for device, held in self._devices.items()}

    def add(self, tensor: torch.Tensor) -> None:
        """A tensor is there. Its memory counts once, in the dtype that it was met in first."""
        try:
            if self._torn:
                self._recount()
            if self._gone:
                self._sweep()
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self._there:
                self._follow(key, storage, tensor)
        except BaseException:
            self._torn = True
            raise

    def _follow(self, key: int, storage: torch.UntypedStorage, tensor: torch.Tensor) -> None:
        held = self._devices.get(tensor.device)
        if held is None:
            held = self._devices[tensor.device] = _Device()
        # A callback in Python would be where what another thread throws in is lost.
        followed = _Followed(storage, self._gone.append)
        followed.key, followed.dtype, followed.amount, followed.device = key, tensor.dtype, storage.nbytes(), held
        self._there[key] = followed
        held.add(followed.dtype, followed.amount)

    def _sweep(self) -> None:
        with suppress(IndexError):  # another thread was faster
            while True:
                followed = self._gone.pop()
                if self._there.get(followed.key) is followed:
                    del self._there[followed.key]
                    followed.device.add(followed.dtype, -followed.amount)

    def _recount(self) -> None:
        """What is there tells exactly what there is."""
        alive = {key: followed for key, followed in list(self._there.items()) if followed() is not None}
        for held in self._devices.values():
            held.total, held.now = 0, {}
        for followed in alive.values():
            followed.device.add(followed.dtype, followed.amount)
        self._there, self._torn = alive, False


class _Followed(weakref.ref[torch.UntypedStorage]):
    """The memory of a tensor: where, how much of it, and on which device."""

    __slots__ = ("amount", "device", "dtype", "key")
    amount: int
    device: _Device
    dtype: torch.dtype
    key: int


@dataclass(slots=True)
class _Device:
    """Bytes on one device: ``now`` and at the ``peak``, by dtype and together."""

    total: int = 0
    most: int = 0
    now: dict[torch.dtype, int] = field(default_factory=dict)
    peak: dict[torch.dtype, int] = field(default_factory=dict)

    def add(self, dtype: torch.dtype, amount: int) -> None:
        """So much more is there."""
        self.now[dtype] = self.now.get(dtype, 0) + amount
        self.total += amount
        if self.total > self.most:
            self.most, self.peak = self.total, self.now.copy()
