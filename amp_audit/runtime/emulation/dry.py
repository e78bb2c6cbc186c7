"""A dry run: large floating-point tensors are never computed, on either device; shapes, dtypes and operators are real.

An operator on such a tensor is asked of the meta device, which knows what comes out and in which dtype, and its result
is memory that nobody has written: pages of zeros that the system only promises. So a model far larger than the machine
takes a step. Small tensors, whole numbers and what is computed of them are real: data is read, conditions are decided.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amp_audit.runtime.emulation import backend

LARGE = 1 << 16
"""Elements from which a floating-point tensor is not computed."""


def install() -> None:
    """Compute nothing large from now on, in this process."""
    backend.arithmetic = arithmetic
    backend.skips_special = large
    make: Any = OnTheHost
    make().__enter__()


class OnTheHost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The same for CPU tensors, on the thread that builds the model; what other threads load is small."""

    supports_higher_order_operators = True
    emulates = True
    """Not a mode of the program's: recordings go on above it."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        name = getattr(getattr(func, "_schema", None), "name", "")
        if name in _FACTORIES and _host(args, given) and _elements(args[0]) >= LARGE:
            dtype = given.get("dtype") or torch.get_default_dtype()
            if dtype.is_floating_point:
                return _promised(args[0], args[1] if name == "aten::empty_strided" else None, dtype)
        if not name.startswith("aten::") or not large(args, given) or not _host(args, given):
            return func(*args, **given)
        plan = backend.plan(func)
        if plan.name in backend.STRUCTURAL or torch.Tag.inplace_view in func.tags or _is_view(func):
            return func(*args, **given)
        out = _of_meta(plan, args, given)
        return func(*args, **given) if out is _UNKNOWN else backend.returned(plan, out, args, given, crosses=False)


_FACTORIES = frozenset({"aten::empty", "aten::empty_strided"})


def _is_view(func: Any) -> bool:
    return any(item.alias_info is not None and not item.alias_info.is_write for item in func._schema.returns)


def _host(args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an operator is the CPU's: tensors on the device have the backend's kernels."""
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "cpu":
        return False
    return not any(map(_elsewhere, (*args, *kwargs.values())))


def _elsewhere(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not value.is_cpu
    return isinstance(value, (list, tuple)) and any(map(_elsewhere, value))


def arithmetic(plan: backend.Plan, args: tuple[Any, ...], kwargs: dict[str, Any], dtypes: Iterable[torch.dtype]) -> Any:
    """What ``backend.compute`` does, without computing what is large; ranks send each other what they would send."""
    if plan.op.namespace == "aten" and large(args, kwargs):
        out = _of_meta(plan, args, kwargs)
        if out is not _UNKNOWN:
            return out
    return backend.compute(plan, args, kwargs, dtypes)


def large(args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
    """Whether there is a large floating-point tensor among the arguments."""
    return any(map(_large, args)) or any(map(_large, kwargs.values()))


def _large(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() >= LARGE and (value.is_floating_point() or value.is_complex())
    return isinstance(value, (list, tuple)) and any(map(_large, value))


_UNKNOWN = object()
"""What comes out depends on values, or the meta device does not know the operator."""


def _of_meta(plan: backend.Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if plan.written and not plan.outputs and None not in plan.returns:
        return (None,) * len(plan.returns)  # in place: nothing but values would change
    given = {key: _meta(value) for key, value in kwargs.items() if key != "generator"}
    try:
        out = plan.op(*map(_meta, args), **given)
    except (RuntimeError, NotImplementedError):
        return _UNKNOWN
    for name in plan.outputs & kwargs.keys():
        kwargs[name] = _unwritten(given[name])
    return _unwritten(out)


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(map(_meta, value))
    return torch.device("meta") if isinstance(value, torch.device) else value


def _unwritten(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _promised(value.shape, value.stride(), value.dtype)
    return [_unwritten(item) for item in value] if isinstance(value, (list, tuple)) else value


def _promised(shape: Iterable[int], strides: Iterable[int] | None, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros that takes no memory until somebody writes to it."""
    size = list(shape)
    steps = list(strides) if strides is not None else backend.contiguous_strides(size)
    extent = 1 + sum(step * (length - 1) for step, length in zip(steps, size)) if _elements(size) else 0
    amount = extent * dtype.itemsize
    if amount < mmap.PAGESIZE:
        memory = torch._C._VariableFunctions.frombuffer(bytearray(max(1, amount)), dtype=torch.uint8)
    else:
        memory = torch._C._VariableFunctions.frombuffer(mmap.mmap(-1, amount), dtype=torch.uint8)
    return memory[:amount].view(dtype).as_strided(size, steps)


def _elements(size: Iterable[int]) -> int:
    count = 1
    for length in size:
        count *= length
    return count
