"""Which devices can be emulated, and what they say of themselves. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Chip:
    """A device: its compute capability (0.0 where it is not NVIDIA's), and what torch tells of a common one.

    ``memory`` in bytes, ``multiprocessors`` as the device's torch counts them (vector engines of XPU, cores of MPS).
    From the makers' data sheets and the CUDA C++ Programming Guide's table of compute capabilities.
    """

    name: str
    major: int
    minor: int
    memory: int
    multiprocessors: int
    shared_memory_per_block: int
    l2_cache: int

    @property
    def bfloat16(self) -> bool:
        """Whether it multiplies bfloat16 in hardware: compute capability 8.0 and above, and the others here."""
        return self.major >= 8 or self.major == 0

    @property
    def float16(self) -> bool:
        """Whether it multiplies float16 in hardware: tensor cores came with 7.0; the others here do."""
        return self.major >= 7 or self.major == 0


CHIPS = {
    "sm60": Chip("Tesla P100-PCIE-16GB", 6, 0, 16 * _GIB, 56, 49152, 4 << 20),
    "sm61": Chip("NVIDIA GeForce GTX 1080 Ti", 6, 1, 11 * _GIB, 28, 49152, 2883584),
    "sm70": Chip("Tesla V100-SXM2-16GB", 7, 0, 16 * _GIB, 80, 49152, 6 << 20),
    "sm75": Chip("Tesla T4", 7, 5, 15 * _GIB, 40, 49152, 4 << 20),
    "sm80": Chip("NVIDIA A100-SXM4-40GB", 8, 0, 40 * _GIB, 108, 49152, 40 << 20),
    "sm86": Chip("NVIDIA GeForce RTX 3090", 8, 6, 24 * _GIB, 82, 49152, 6 << 20),
    "sm89": Chip("NVIDIA L4", 8, 9, 22 * _GIB, 58, 49152, 48 << 20),
    "sm90": Chip("NVIDIA H100 80GB HBM3", 9, 0, 80 * _GIB, 132, 49152, 50 << 20),
    "sm100": Chip("NVIDIA B200", 10, 0, 180 * _GIB, 148, 49152, 126 << 20),
    "sm120": Chip("NVIDIA GeForce RTX 5090", 12, 0, 32 * _GIB, 170, 49152, 96 << 20),
}
DEFAULT = "sm80"
OTHERS = {
    "xpu": Chip("Intel(R) Data Center GPU Max 1550", 0, 0, 64 * _GIB, 512, 131072, 204 << 20),
    "mps": Chip("Apple M3 Max", 0, 0, 64 * _GIB, 40, 32768, 48 << 20),
}
"""Devices of one chip."""
DEVICES = ("cuda", *OTHERS)


class EmulationError(ValueError):
    """A device that cannot be emulated; the message is one line that says which can."""


@dataclass(frozen=True, slots=True)
class Emulated:
    """What is emulated: the device type, and of which chip. ``sm`` is empty where the device has one chip only."""

    device: str
    chip: Chip
    sm: str = ""


def parse(text: str) -> Emulated:
    """``cuda``, or ``cuda:sm80`` for the chips of that compute capability, ``xpu``, ``mps``. Raises EmulationError."""
    device, colon, sm = text.lower().partition(":")
    if device not in DEVICES:
        raise EmulationError(f"cannot emulate {text!r}: known devices are {', '.join(DEVICES)}")
    if device in OTHERS:
        if colon and sm != "0":
            raise EmulationError(f"cannot emulate {text!r}: of {device} one chip is known ({OTHERS[device].name})")
        return Emulated(device, OTHERS[device])
    sm = sm.replace("_", "").replace(".", "") if colon else DEFAULT
    if sm.isdigit():
        sm = f"sm{sm}"
    if sm not in CHIPS:
        raise EmulationError(f"cannot emulate {text!r}: known chips are {', '.join(CHIPS)}")
    return Emulated(device, CHIPS[sm], sm)
