"""Backwards, clips and clears -> events, each with the owners whose gradients it really touched."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.utils.clip_grad as clip_grad

from amp_audit.events import Kind
from amp_audit.runtime import roots
from amp_audit.runtime.owners import Owner, Snapshot, common_module, reached
from amp_audit.runtime.queue import finite, quiet_clone
from amp_audit.runtime.teller import Teller
from amp_audit.trace.schema import Number

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A backward that is about to run: the gradients as they are, and what its losses carry. It is to be short-lived.

    ``kinds``: whether each loss carries a scale, None where that is not known; ``scaler``: whose it is.
    """

    gradients: Snapshot
    kinds: tuple[bool | None, ...] = (None,)
    scaler: int | None = None
    detached: bool = False


class Gradients:
    """Wrappers of what makes, limits and clears gradients."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller

    def install(self) -> None:
        wrap = self._teller.patches.wrap
        wrap(torch.autograd, "backward", self._backward)
        wrap(torch.autograd, "grad", self._autograd_grad)
        wrap(clip_grad, "clip_grad_norm_", self._clip, torch.nn.utils)
        wrap(clip_grad, "clip_grad_value_", self._clip, torch.nn.utils)
        wrap(torch.optim.Optimizer, "zero_grad", self._optimizer_zero_grad)
        wrap(torch.nn.Module, "zero_grad", self._module_zero_grad)

    def finish(self) -> None:
        """Nothing is left to tell."""

    def _backward(self, original: Call) -> Call:
        passes = self._teller.passes

        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            if torch.compiler.is_dynamo_compiling():
                original(tensors, grad_tensors, *args, **kwargs)
                return
            nested = not self._teller.on() or torch._C._current_graph_task_id() != -1
            seen: _Seen | None = None
            if nested:
                self._begins(tensors, nested=True)
            else:
                seen = self._before(tensors, grad_tensors)
            outer = passes.mine()
            try:
                if passes.begin() and not nested:
                    self._teller.lose_order()
                original(tensors, grad_tensors, *args, **kwargs)
            finally:
                passes.end(outer)
            if seen is not None:
                with self._teller.quiet("backward"):
                    self._note_loss(tensors, seen.kinds)
                    self._note_backward(seen)

        return backward

    def _before(self, tensors: Any, grad_tensors: Any) -> _Seen | None:
        """What is known before an outermost backward; None when several threads train."""
        self._teller.trains()
        self._teller.backwards += 1
        if self._teller.parallel:
            return None
        seen: _Seen | None = None
        # A constant factor kept for backward would reach a dispatch mode as a bare number.
        with self._teller.quiet("backward"), torch._C._DisableTorchDispatch():
            before = self._teller.passes.read(self._teller.owners.snapshot)
            if before is None:
                self._teller.lose_order()
                return None
            seen = _Seen(before)  # what the losses are may not be told; the gradients are looked at all the same
            seen = _Seen(before, *_losses(tensors, grad_tensors), roots.detached(_tensors(tensors)))
        self._begins(tensors, nested=False)
        return seen

    def _begins(self, tensors: Any, *, nested: bool) -> None:
        if self._teller.before_backward and self._teller.on():
            with self._teller.quiet("what is saved for backward"), torch._C._DisableTorchDispatch():
                for listener in self._teller.before_backward:
                    listener(_tensors(tensors), nested=nested)

    def _note_loss(self, tensors: Any, kinds: tuple[bool | None, ...]) -> None:
        """The loss of a backward from one scalar, without its scale."""
        listed = _tensors(tensors)
        if self._teller.parallel:  # the scale may be another thread's
            return
        if len(listed) != 1 or listed[0].numel() != 1 or kinds not in ((True,), (False,)):
            return
        copies = {"value": quiet_clone(listed[0])}
        if kinds == (True,) and self._teller.current_scale is not None:
            copies["scale"] = quiet_clone(self._teller.current_scale)
        values: dict[str, float | int | None] = {}
        for name, copy in reversed(copies.items()):
            if copy is not None:
                self._teller.queue.add(copy, functools.partial(self._read_loss, values, name, listed[0].dtype))
        self._teller.host.number(Number("loss", place=self._teller.host.places.here(), values=values))

    def _read_loss(self, values: dict[str, float | int | None], name: str, dtype: torch.dtype, value: float) -> None:
        """The scale comes first. A float16 loss of one element may be too large only with the scale in it: it is then
        not known."""
        scale = values.get("scale") if name == "value" else None
        if scale and dtype is torch.float16 and math.isinf(value):
            return
        values[name] = finite(value / scale if scale else value)
        if values[name] is None:
            self._teller.host.look_closely()

    def _note_backward(self, seen: _Seen) -> None:
        owners = self._teller.passes.read(lambda: _changed(seen.gradients))
        if owners is None:
            self._teller.lose_order()
            return
        place = self._teller.host.places.here()
        if not owners and len(self._teller.owners):
            # Gradients of tensors that no optimizer owns; of a leaf made on the way, where some were meant to come.
            if seen.detached:
                self._teller.emit(Kind.BACKWARD, scaled=seen.kinds[0], place=place, detached=True)
            return
        emptied = [
            owner for owner, states in seen.gradients if owner.holding and all(grad is None for _, grad, _ in states)
        ]
        if emptied:  # p.grad = None, by hand
            self._teller.emit(Kind.ZERO_GRAD, owners=emptied, place=place)
        for scaled in seen.kinds:
            row = self._teller.emit(Kind.BACKWARD, owners=owners, scaled=scaled, dtype=_dtype(owners), place=place)
            row.scaler = seen.scaler if scaled else None
            if not owners:
                row.owners = None
        for owner in owners:
            owner.holding, owner.used, owner.blank, owner.returned = True, False, False, True
            owner.scaled = seen.kinds[0] if len(seen.kinds) == 1 else None

    def _autograd_grad(self, original: Call) -> Call:
        def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self._teller.mine():
                with self._teller.quiet("autograd.grad"), torch._C._DisableTorchDispatch():
                    (first, *more), scaler = _losses(outputs, grad_outputs)
                    row = self._teller.emit(Kind.AUTOGRAD_GRAD, scaled=None if more else first)
                    row.scaler = scaler
                self._begins(outputs, nested=False)
            return original(outputs, inputs, grad_outputs, *args, **kwargs)

        return grad

    def _clip(self, original: Call) -> Call:
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._teller.on():
                return original(parameters, *args, **kwargs)
            parameters, listed = _listed(parameters)
            limit = args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value"))
            owners: tuple[Owner, ...] | None = None
            with self._teller.quiet(original.__name__):
                owners = self._note_clip(listed, limit)
            result = original(parameters, *args, **kwargs)
            with self._teller.quiet(original.__name__):
                for owner in owners or ():
                    owner.look()
                if owners and isinstance(result, torch.Tensor):
                    kind = args[1] if len(args) > 1 else kwargs.get("norm_type", 2.0)
                    scaled = {owner.scaled if kind == 2 else None for owner in owners}
                    self._note_norm(result, limit, scaled, common_module(listed, self._teller.host.places.modules))
            return result

        return clip

    def _note_clip(self, parameters: list[torch.Tensor], limit: Any) -> tuple[Owner, ...] | None:
        owners = self._teller.concerned(parameters)
        if owners is None:
            return None
        self._teller.catch_up(owners)
        measures_only = isinstance(limit, (int, float)) and math.isinf(limit)
        row = self._teller.emit(Kind.GRAD_READ if measures_only else Kind.CLIP, owners=owners)
        if not owners:
            row.owners = None
        return owners

    def _note_norm(self, norm: torch.Tensor, limit: Any, scaled: set[bool | None], module: str) -> None:
        values: dict[str, float | int | None] = {}
        if isinstance(limit, (int, float)):
            values["max_norm"] = finite(float(limit))
        divide = scaled.pop() if len(scaled) == 1 else None
        for value, then in (
            (self._teller.current_scale, functools.partial(_put, values, "scale")),
            (norm, functools.partial(_put_norm, values, divide)),
        ):
            copy = quiet_clone(value) if value is not None else None
            if copy is not None and copy.numel() == 1:
                self._teller.queue.add(copy, then)
        self._teller.host.number(Number("clip", self._teller.host.places.here(), module or None, values=values))

    def _optimizer_zero_grad(self, original: Call) -> Call:
        def zero_grad(optimizer: torch.optim.Optimizer, set_to_none: bool = True) -> None:
            if self._teller.on():
                with self._teller.quiet("optimizer.zero_grad"):
                    self._teller.adopt(optimizer)
                    self._cleared(self._teller.owners.link(optimizer), set_to_none, optimizer)
            self._alone(original, optimizer, set_to_none)

        return zero_grad

    def _module_zero_grad(self, original: Call) -> Call:
        def zero_grad(module: torch.nn.Module, set_to_none: bool = True) -> None:
            if self._teller.on():
                with self._teller.quiet("module.zero_grad"):
                    owners = self._teller.owners.of_module(module)
                    if owners:
                        self._cleared(owners, set_to_none)
            self._alone(original, module, set_to_none)

        return zero_grad

    def _alone(self, original: Call, holder: Any, set_to_none: bool) -> None:
        """Clear gradients while no other thread looks at any."""
        passes = self._teller.passes
        outer = passes.mine()
        try:
            passes.begin()
            original(holder, set_to_none)
        finally:
            passes.end(outer)

    def _cleared(self, owners: Iterable[Owner], set_to_none: bool, optimizer: Any = None) -> None:
        known = tuple(owners)
        self._teller.emit(Kind.ZERO_GRAD, optimizer=optimizer, owners=known)
        for owner in known:
            owner.blank = not set_to_none and owner.holding and not owner.used
            owner.holding, owner.used, owner.witness = False, False, None


def _changed(before: Snapshot) -> tuple[Owner, ...]:
    """The owners that a backward has reached, each of which takes a look at what it left."""
    owners = reached(before)
    for owner in owners:
        owner.look()
    return owners


def _put(values: dict[str, float | int | None], name: str, value: float) -> None:
    values[name] = finite(value)


def _put_norm(values: dict[str, float | int | None], scaled: bool | None, value: float) -> None:
    """The scale comes first. ``scaled``: whether it is in the norm, None when that is not known."""
    values["norm"] = finite(value)
    scale = values.get("scale") if scaled else 1.0
    if scaled is not None and scale:
        values["unscaled"] = finite(value / scale)


def _tensors(roots: Any) -> list[torch.Tensor]:
    listed = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    return [item for item in listed if isinstance(item, torch.Tensor)]


def _losses(tensors: Any, grad_tensors: Any) -> tuple[tuple[bool | None, ...], int | None]:
    kinds, scaler = roots.losses(_tensors(tensors))
    weights = [grad_tensors] if isinstance(grad_tensors, torch.Tensor) else list(grad_tensors or ())
    if any(weight is not None for weight in weights) and True not in kinds:
        return (None,), scaler  # the given gradients may carry a scale of their own
    return kinds, scaler


def _listed(parameters: Any) -> tuple[Any, list[torch.Tensor]]:
    """Parameters that can be read twice, and a list of them. An empty generator stays one: torch warns of it."""
    if isinstance(parameters, torch.Tensor):
        return parameters, [parameters]
    listed = list(parameters)
    return (listed if listed or isinstance(parameters, (list, tuple)) else _nothing(), listed)


def _nothing() -> Iterator[torch.Tensor]:
    yield from ()


def _dtype(owners: Iterable[Owner]) -> str | None:
    """The low-precision dtype in which the losses of some owners were computed; None where they disagree."""
    found: set[str | None] = set()
    for owner in owners:
        found |= owner.dtypes or {owner.region_dtype}
    low = found - {"float32", None}
    if len(low) > 1:
        return None
    return low.pop() if low else ("float32" if "float32" in found else None)
