"""How training goes, step by step: the norm of the true gradients, without the loss scale in them."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from amp_audit.runtime.parts import Host, Scene
from amp_audit.runtime.queue import Queue, finite, widest
from amp_audit.trace.schema import Number


class Health:
    """A ``Part`` and a ``Probe``: on recorded steps one Number ``grad_norm`` for each optimizer that steps."""

    def __init__(self, host: Host, scene: Scene) -> None:
        self._host = host
        self._scene = scene
        self._recording = False
        self._queue = Queue()
        scene.probes.append(self)

    def step_begin(self, *, deep: bool) -> None:
        """A recorded step begins."""
        self._recording = True

    def step_end(self) -> None:
        """Read the norms of this step. Waits for the device once."""
        self._recording = False
        self._queue.read()

    def gradients_ready(self, optimizer: Any) -> None:
        """Measure the gradients that are about to be used."""
        if not self._recording:
            return
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                grad = parameter.grad
                if grad is None:
                    continue
                if type(grad) is not torch.Tensor or grad.layout is not torch.strided:
                    self._host.unobserved("the gradient norm of an optimizer with sharded or sparse gradients")
                    return
                by_device.setdefault(grad.device, []).append(grad)
        if not by_device:
            return
        squares: list[float] = []
        values: dict[str, float | int | None] = {}
        scale: list[float] = []
        live = self._scene.loss_scale(optimizer)
        if live is not None:
            self._queue.add(live.detach().clone(), scale.append)
        for grads in by_device.values():
            norms = torch._foreach_norm(grads, 2, dtype=torch.float32)  # type: ignore[no-untyped-call,unused-ignore]
            done = functools.partial(_total, squares, len(by_device), scale, values)
            self._queue.add(widest(torch.stack(norms)).square().sum(), done)
        self._host.number(Number("grad_norm", subject=self._scene.label(optimizer), values=values))

    def before_step(self, optimizer: Any, *, closure: bool) -> None:
        """Nothing is left to do."""

    def after_step(self, optimizer: Any) -> None:
        """Nothing is left to do."""


def _total(
    squares: list[float], devices: int, scale: list[float], values: dict[str, float | int | None], square: float
) -> None:
    squares.append(square)
    if len(squares) == devices:
        divisor = scale[0] if scale else 1.0
        total = sum(squares)
        values["norm"] = finite(math.sqrt(total) / divisor) if total >= 0 else None
        values["scale"] = finite(divisor)
