"""How large the gradients of parameters and the outputs of modules are: counts by exponent, on every recorded step."""

from __future__ import annotations

from typing import Any

import torch

from amp_audit.runtime.dtypes import LOW, short
from amp_audit.runtime.exponents import BIAS, Exponents, named
from amp_audit.runtime.origins import plain
from amp_audit.runtime.parts import Host, Scene
from amp_audit.runtime.profilers import Unprofiled
from amp_audit.runtime.queue import capturing, finite
from amp_audit.trace.schema import Number

_NEAR = BIAS + 15
"""The biased exponent of 2**15: from there float16 has one bit left at most."""


class Spreads:
    """A ``Part`` and a ``Probe``: Numbers ``exponents`` of phase "gradient" and "output".

    ``left``, to be told of each call of a module that ends, may be called within a step only. The first time that a
    float16 output comes near the end of its range, the next step is looked at closely: only operators tell whether
    the model computed that, or a mask was written there.
    """

    def __init__(self, host: Host, scene: Scene) -> None:
        self._host = host
        self._scene = scene
        self._recording = self._deep = self._told = False
        self._gradients: Exponents[tuple[int, bool]] = Exponents()  # by parameter, and whether scaled
        self._parameters: dict[int, torch.Tensor] = {}
        self._outputs: Exponents[tuple[str, torch.dtype]] = Exponents()
        scene.probes.append(self)

    def step_begin(self, *, deep: bool) -> None:
        """A recorded step begins."""
        self._recording, self._deep = True, deep
        self._forget()

    def step_end(self) -> None:
        """Tell what was counted. Waits for the device once."""
        self._recording = False
        live = live_scale(self._scene)
        for (number, scaled), counts in self._gradients.read().items():
            parameter = self._parameters[number]
            values = {**named(counts), "scale": live if scaled else 1.0}
            name, dtype = self._scene.name(parameter), short(parameter.dtype)
            self._host.number(Number("exponents", subject=name, phase="gradient", dtype=dtype, values=values))
        for (module, low), counts in self._outputs.read().items():
            self._host.number(
                Number("exponents", subject=module, phase="output", dtype=short(low), values=named(counts))
            )
            if low is torch.float16 and counts.get(_NEAR) and not (self._deep or self._told):
                self._told = True
                self._host.look_closely()
        self._forget()

    def _forget(self) -> None:
        self._gradients, self._parameters, self._outputs = Exponents(), {}, Exponents()

    def left(self, module: str, out: Any) -> None:
        """A module has returned ``out``: tensors are counted by themselves or in a tuple or a list."""
        if not self._recording or torch._C._current_graph_task_id() != -1:  # recomputed: it was counted before
            return
        for item in out if isinstance(out, (tuple, list)) else (out,):
            if plain(item) and item.dtype in LOW and _countable(item):
                with torch.no_grad(), torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), Unprofiled():
                    self._outputs.add((module, item.dtype), item)

    def gradients_ready(self, optimizer: Any) -> None:
        """Count the gradients while they are there; many programs clear them before the step is over."""
        if not self._recording:
            return
        scaled = self._scene.loss_scale(optimizer) is not None
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if plain(parameter.grad):
                    self._gradients.add((id(parameter), scaled), parameter.grad)
                    self._parameters[id(parameter)] = parameter

    def before_step(self, optimizer: Any, *, closure: bool) -> None:
        """Nothing is left to do."""

    def after_step(self, optimizer: Any) -> None:
        """Nothing is left to do."""


def live_scale(scene: Scene) -> float | None:
    """The loss scale in force, 1 where there is none; None where it is not finite. Waits for the device."""
    scale = scene.current_scale
    return finite(float(scale)) if scale is not None else 1.0


def _countable(tensor: torch.Tensor) -> bool:
    """Whether work on a tensor becomes no part of what the program makes: a transform, a trace, a CUDA graph."""
    return not (
        torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        or torch._C._get_tracing_state() is not None
        or capturing()
    )
