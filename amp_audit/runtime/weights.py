"""Updates that were not zero and left the weight as it was, for parameters kept in low precision.

What an update should have been comes from the optimizer itself: it steps once on float32 copies of one parameter, its
gradient and its state. torch's own optimizers allow that; of others only the gradient tells (``by_gradient``).
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch

from amp_audit.runtime.dtypes import LOW, short
from amp_audit.runtime.parts import Host, Scene
from amp_audit.trace.schema import Number

_LOOPED = {"foreach": False, "fused": False, "capturable": False, "differentiable": False}
_OTHERWISE = frozenset({"LBFGS", "SparseAdam", "Muon"})
"""torch's optimizers whose update of one parameter is not a function of its own gradient and state alone."""


class Weights:
    """A ``Part`` and a ``Probe``: on deep steps one Number ``lost_updates`` for each low-precision parameter."""

    def __init__(self, host: Host, scene: Scene) -> None:
        self._host = host
        self._scene = scene
        self._deep = False
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = {}
        self._counts: dict[tuple[str, str, bool], list[torch.Tensor]] = defaultdict(list)
        scene.probes.append(self)

    def step_begin(self, *, deep: bool) -> None:
        """A recorded step begins."""
        self._deep = deep
        self._before, self._counts = {}, defaultdict(list)

    def step_end(self) -> None:
        """Tell what was counted. Waits for the device once."""
        counted, self._counts = self._counts, defaultdict(list)
        self._before = {}
        if not counted:
            return
        sums = [torch.stack(counts).sum(0).cpu() for counts in counted.values()]
        for (subject, dtype, by_gradient), total in zip(counted, sums, strict=True):
            elements, updates, lost = total.tolist()
            values: dict[str, float | int | None] = {"elements": elements, "updates": updates, "lost": lost}
            if by_gradient:
                values["by_gradient"] = 1
            self._host.number(Number("lost_updates", subject=subject, dtype=dtype, values=values))

    def gradients_ready(self, optimizer: Any) -> None:
        """Nothing is left to do."""

    def before_step(self, optimizer: Any, *, closure: bool) -> None:
        """Keep the weights as they are, and which of their elements the step is meant to change."""
        if not self._deep:
            return
        shadowed = not closure and _can_be_shadowed(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.dtype not in LOW or (parameter.grad is None and not closure):
                    continue
                if type(parameter) not in (torch.Tensor, torch.nn.Parameter) or _is_sparse(parameter.grad):
                    self._host.unobserved("weight updates of sharded or sparse parameters")
                    continue
                intended = _intended(optimizer, group, parameter) if shadowed else None
                self._before[id(parameter)] = (parameter, parameter.detach().clone(), intended)

    def after_step(self, optimizer: Any) -> None:
        """Compare. A step that a fused kernel left out because of an inf counts as no update."""
        if not self._before:
            return
        found_inf = getattr(optimizer, "found_inf", None)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                kept = self._before.pop(id(parameter), None)
                if kept is not None:
                    self._compare(*kept, found_inf)

    def _compare(
        self,
        parameter: torch.Tensor,
        before: torch.Tensor,
        intended: torch.Tensor | None,
        found_inf: torch.Tensor | None,
    ) -> None:
        by_gradient = intended is None
        if intended is None:
            if parameter.grad is None:
                return
            intended = parameter.grad != 0
        lost = intended & (parameter.detach() == before)
        counts = torch.stack([intended.sum(), lost.sum()])
        if found_inf is not None:
            counts = counts * (found_inf.to(counts.device) == 0)
        elements = counts.new_full((1,), parameter.numel())
        key = (self._scene.name(parameter), short(parameter.dtype), by_gradient)
        self._counts[key].append(torch.cat([elements, counts]))


def _can_be_shadowed(optimizer: Any) -> bool:
    cls = type(optimizer)
    return (
        cls.__module__.startswith("torch.optim.")
        and cls.__name__ not in _OTHERWISE
        and hasattr(cls.step, "__wrapped__")
    )


def _is_sparse(grad: torch.Tensor | None) -> bool:
    return grad is not None and grad.layout is not torch.strided


def _intended(optimizer: Any, group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
    """Where a float32 step of the same optimizer changes the weight: bool, of the parameter's shape."""
    weight = torch.nn.Parameter(parameter.detach().float())
    assert parameter.grad is not None
    weight.grad = parameter.grad.detach().float()
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:  # a fused kernel divides by the loss scale itself
        weight.grad = weight.grad / scale.to(weight.device)
    start = weight.detach().clone()
    shadow = copy.copy(optimizer)
    shadow.__dict__ = {
        key: value for key, value in vars(optimizer).items() if key not in ("grad_scale", "found_inf", "step")
    }
    kept = optimizer.state.get(parameter, {})
    looped = {key: value for key, value in _LOOPED.items() if key in group}
    if "capturable" in group and _on_a_device(kept.get("step")):
        looped["capturable"] = True  # a counter on a device stays there: reading it would wait for that
    shadow.param_groups = [{**group, "params": [weight], **looped}]
    shadow.state = defaultdict(dict, {weight: _copied(kept, looped.get("capturable", False))})
    type(optimizer).step.__wrapped__(shadow)
    return weight.detach() != start


def _on_a_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != "cpu"


def _copied(state: dict[str, Any], capturable: bool) -> dict[str, Any]:
    """An optimizer's state of one parameter, moments in float32.

    Counters are on the CPU as the plain loop wants them, unless it is ``capturable``.
    """
    return {key: _copy(key, value, capturable) for key, value in state.items()}


def _copy(key: str, value: Any, capturable: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    value = value.detach()
    if key == "step":
        return value.clone() if capturable or not _on_a_device(value) else value.cpu()
    return value.float() if value.dtype in LOW else value.clone()
