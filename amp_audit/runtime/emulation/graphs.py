"""CUDA graphs: kernels that were launched once, and are launched again on the same memory.

A graph holds which operators ran while it was captured, and the memory they read and wrote. A replay runs them again
and puts what comes out where it came out first. As on a GPU nothing else of the program runs then, memory that was
there before the capture is what it was when that ends, and random operators go on with the generator.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch

from amp_audit.runtime.emulation import backend
from amp_audit.runtime.emulation.backend import CannotEmulate, Plan
from amp_audit.runtime.emulation.bridge import on_device, on_host, over_storage
from amp_audit.runtime.emulation.randomness import default
from amp_audit.runtime.emulation.target import there

_WAITS = frozenset({"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "is_nonzero"})
"""Operators whose kernel waits for the device: their result, or its shape, is needed on the CPU."""


@dataclass(frozen=True, slots=True)
class _Launch:
    """An operator, its arguments as they lay in memory, and the new tensors (on the CPU's side) that came out."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Any, ...]


class _Capture:
    """A capture in progress, of whichever thread: a backward runs on autograd's."""

    def __init__(self) -> None:
        self.launches: list[_Launch] = []
        self._inner = threading.local()
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._made: set[int] = set()
        self._random = default().get_state()

    def run(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator and keep it; what it calls itself is part of it."""
        plan = backend.plan(op)
        if getattr(self._inner, "running", False) or plan.name in _UNLAUNCHED:
            return backend.execute(op, args, kwargs)
        if _waits(plan, args):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self._inner.running = True
        try:
            for key in (*plan.written, *backend.HIDDEN_WRITES.get(plan.name, ())):
                self._keep(args[key] if isinstance(key, int) and key < len(args) else kwargs.get(str(key)))
            held = tuple(map(_held, args)), {name: _held(value) for name, value in kwargs.items()}
            out = backend.execute(op, args, kwargs)
        finally:
            self._inner.running = False
        self.launches.append(_Launch(op, *held, tuple(self._new(plan, out))))
        return out

    def end(self) -> list[_Launch]:
        """Nothing was launched: memory and random numbers are as they were."""
        for memory, before in self._before.values():
            memory.copy_(before)
        default().set_state(self._random)
        return self.launches

    def _keep(self, written: Any) -> None:
        if isinstance(written, (list, tuple)):
            for one in written:
                self._keep(one)
        elif isinstance(written, torch.Tensor):
            storage = written.untyped_storage()
            address = storage.data_ptr()
            if address not in self._before and address not in self._made:
                memory = over_storage(storage)
                self._before[address] = memory, memory.clone()

    def _new(self, plan: Plan, out: Any) -> list[Any]:
        outs = out if len(plan.returns) > 1 else (out,)
        new = [None if key is not None else _on_host(one) for key, one in zip(plan.returns, outs)]
        self._made.update(one.untyped_storage().data_ptr() for one in _flat(new))
        return new


_UNLAUNCHED = backend.STRUCTURAL - {"_local_scalar_dense"}
"""Operators that touch no values."""


def _waits(plan: Plan, args: tuple[Any, ...]) -> bool:
    if plan.name in {"copy_", "_copy_from"} and len(args) > 1:
        return there(args[1]) and not there(args[0])
    return plan.name in _WAITS


def _held(value: Any) -> Any:
    """The memory of an argument, whatever becomes of the tensor."""
    if isinstance(value, torch.Tensor):
        return on_device(on_host(value)) if there(value) else value.detach()
    return type(value)(map(_held, value)) if isinstance(value, (list, tuple)) else value


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return on_host(value) if there(value) else value
    return list(map(_on_host, value)) if isinstance(value, (list, tuple)) else None


def _flat(values: Any) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    return [one for value in values for one in _flat(value)] if isinstance(values, list) else []


_capture: list[_Capture] = []


def capturing() -> bool:
    """Whether a graph is being captured."""
    return bool(_capture)


def synchronize() -> None:
    """Wait for the device. Raises as CUDA does where nothing runs because a graph is being captured."""
    if _capture:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")


class CUDAGraph:
    """``torch.cuda.CUDAGraph``."""

    _tracker = None

    def __init__(self, keep_graph: bool = False) -> None:
        self._launches: list[_Launch] | None = None
        self._pool: Any = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **checks: Any) -> None:
        if self._launches is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        synchronize()
        self._pool = torch.cuda.graph_pool_handle() if pool is None else pool
        capture = _Capture()
        _capture.append(capture)
        backend.taken_by = capture.run

    def capture_end(self) -> None:
        if not _capture:
            raise RuntimeError("capture_end() called before capture_begin().")
        backend.taken_by = None
        self._launches = _capture.pop().end()

    def instantiate(self) -> None:
        pass

    def replay(self) -> None:
        if self._launches is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        for launch in self._launches:
            out = backend.run(launch.op, *launch.args, **launch.kwargs)
            outs = out if len(launch.results) > 1 else (out,)
            for result, new in zip(launch.results, outs):
                _put(result, new)

    def reset(self) -> None:
        self._launches = None

    def pool(self) -> Any:
        if self._launches is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def register_generator_state(self, generator: Any) -> None:
        """Every generator's numbers go on from replay to replay."""

    def enable_debug_mode(self) -> None:
        """There is nothing to be kept for ``debug_dump``."""

    def debug_dump(self, debug_path: str) -> None:
        raise CannotEmulate("amp-audit cannot emulate the file of a CUDA graph (torch.cuda.CUDAGraph.debug_dump)")

    def raw_cuda_graph(self) -> int:
        raise CannotEmulate("amp-audit cannot emulate the driver's graph (torch.cuda.CUDAGraph.raw_cuda_graph)")

    raw_cuda_graph_exec = raw_cuda_graph


def _put(result: Any, new: Any) -> None:
    if isinstance(result, torch.Tensor):
        with backend.Below():
            result.copy_(on_host(new) if there(new) else new)
    elif isinstance(result, list):
        for one, other in zip(result, new):
            _put(one, other)
