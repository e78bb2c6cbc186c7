"""Streams and events of the emulated device: every operator is done when it returns, there is nothing to wait for."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch

from amp_audit.runtime.emulation import placement, target
from amp_audit.runtime.emulation.placement import index_of

_numbers = itertools.count(1)


def _index(device: Any) -> int:
    """The index of what programs give as a device: a number, a name, a torch.device, or nothing."""
    if device is None:
        return int(placement.current())
    return index_of(torch.device(device))


class Stream:
    """``torch.cuda.Stream``."""

    def __init__(self, device: Any = None, priority: int = 0, **given: Any) -> None:
        self.stream_id = given.get("stream_id", next(_numbers))
        self.device_index = _index(device)
        self.device_type = target.kind.number
        self.device = torch.device(target.kind.name, self.device_index)
        self.priority = priority
        self.cuda_stream = self.sycl_queue = self.native_handle = self.stream_id

    def wait_event(self, event: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def is_capturing(self) -> bool:
        return False

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def __enter__(self) -> Stream:
        context: Any = getattr(torch, target.kind.name).StreamContext
        self._context = context(self)
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.stream_id == other.stream_id

    def __hash__(self) -> int:
        return hash((target.kind.number, self.stream_id))

    def __repr__(self) -> str:
        queue = "sycl_queue" if target.kind.name == "xpu" else "cuda_stream"
        return f"<torch.{target.kind.name}.Stream device={self.device} {queue}={self.stream_id:#x}>"


class ExternalStream(Stream):
    """``torch.cuda.ExternalStream``."""

    def __init__(self, stream_ptr: int, device: Any = None, **given: Any) -> None:
        super().__init__(device, stream_id=stream_ptr, **given)


class Event:
    """``torch.cuda.Event``, and ``torch.Event``, which takes a device first; it measures the time of the CPU."""

    def __init__(self, *device: Any, enable_timing: bool = False, **given: Any) -> None:
        self._timing = enable_timing or (len(device) > 0 and device[0] is True)
        self._at: float | None = None
        self.device = torch.device(target.kind.name, placement.current())

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds between two recorded events. Raises as torch does for events that were not recorded."""
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return 1000 * (end_event._at - self._at)


class Streams:
    """Which stream is current; a stream id by thread would tell nothing more."""

    def __init__(self) -> None:
        self._current = 0

    def current(self, device: int) -> tuple[int, int, int]:
        return self._current, max(device, 0), target.kind.number

    def default(self, device: int) -> tuple[int, int, int]:
        return 0, max(device, 0), target.kind.number

    def set(self, stream_id: int, device_index: int = 0, device_type: int = 0) -> None:
        self._current = stream_id
