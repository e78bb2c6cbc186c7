"""Which kind of device is emulated in this process. It is chosen once, before any tensor is made on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any


@dataclass(frozen=True, slots=True)
class Kind:
    """A device type as the parts of torch number and name it.

    ``key``: of the dispatcher. ``number``: in ``c10::DeviceType``. ``dlpack``: in ``DLDeviceType``. ``hooks``: the
    mangled name of the function of ATen that gives the object which says what was built. ``float64``: whether it has
    double precision.
    """

    name: str
    key: str
    number: int
    dlpack: int
    hooks: str
    float64: bool = True


KINDS = {
    "cuda": Kind("cuda", "CUDA", 1, 2, "_ZN2at6detail12getCUDAHooksEv"),
    "xpu": Kind("xpu", "XPU", 12, 14, "_ZN2at6detail11getXPUHooksEv"),
    "mps": Kind("mps", "MPS", 13, 8, "_ZN2at6detail11getMPSHooksEv", float64=False),
}

kind = KINDS["cuda"]
there: Callable[[Any], bool] = attrgetter("is_cuda")
"""Whether a tensor or storage is on the emulated device."""


def choose(name: str) -> Kind:
    """Emulate this kind of device (``cuda``, ``xpu``, ``mps``)."""
    global kind, there
    kind, there = KINDS[name], attrgetter(f"is_{name}")
    return kind
