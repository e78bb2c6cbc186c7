"""CUDA's random numbers: a stream of their own, beside the CPU's, with a seed and an offset as state.

As with Philox on a GPU an operator's numbers follow from those two, and each operator moves the offset on. The numbers
are those of the CPU's generator: the same seed gives other values than on a GPU.
"""

from __future__ import annotations

import struct
from typing import Any

import torch

from amp_audit.runtime.emulation import target

_OWN: Any = torch._C.Generator
_SEED = 67280421310721  # c10::detail's default_rng_seed_val
_STATE = struct.Struct("<QQ")
_WORD = 1 << 64
_STEP = 4  # Philox makes four numbers at a time


class Generator(_OWN):  # type: ignore[misc]
    """``torch.Generator`` that can be of the emulated device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        self = super().__new__(cls)
        place = torch.device(device)
        self._place = torch.device(place.type, place.index or 0) if place.type == target.kind.name else place
        return self

    def __init__(self, device: Any = "cpu") -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:
        place: torch.device = self._place
        return place

    def clone_state(self) -> Generator:
        """A generator of the same device that goes on from the same state."""
        twin = Generator(self.device)
        twin.set_state(self.get_state())
        return twin

    def __reduce__(self) -> Any:
        return _restored, (str(self.device), self.get_state())


def _restored(device: str, state: torch.Tensor) -> Generator:
    made = Generator(device)
    made.set_state(state)
    return made


class Default(Generator):
    """The generator of the device; its state is 16 bytes, as CUDA's: the seed and the offset."""

    def __new__(cls) -> Any:
        self = super().__new__(cls, target.kind.name)
        self._seed, self._offset, self._host = _SEED, 0, _OWN()
        return self

    def __init__(self) -> None:
        super().__init__(target.kind.name)

    def draw(self) -> torch.Generator:
        """What the next operator draws from."""
        self._host.manual_seed(_mixed(self._seed, self._offset))
        self._offset += _STEP
        host: torch.Generator = self._host
        return host

    def manual_seed(self, seed: int) -> Default:
        self._seed, self._offset = seed % _WORD, 0
        return self

    def seed(self) -> int:
        """Seed it by chance; the seed."""
        self.manual_seed(self._host.seed())
        return self._seed

    def initial_seed(self) -> int:
        known: int = self._seed
        return known

    def get_offset(self) -> int:
        known: int = self._offset
        return known

    def set_offset(self, offset: int) -> None:
        self._offset = offset

    def get_state(self) -> torch.Tensor:
        packed = _STATE.pack(self._seed, self._offset)
        return torch.tensor(list(packed), dtype=torch.uint8, device="cpu")

    def set_state(self, new_state: torch.Tensor) -> Default:
        """Raises RuntimeError as CUDA does for a state that is none of its own."""
        if new_state.dtype is not torch.uint8 or new_state.numel() != _STATE.size:
            raise RuntimeError("RNG state is wrong size")
        self._seed, self._offset = _STATE.unpack(bytes(new_state.tolist()))
        return self

    def clone_state(self) -> Default:
        return Default().set_state(self.get_state())


def _mixed(seed: int, offset: int) -> int:
    """32 bits of a seed and an offset (the last steps of SplitMix64): the CPU's generator uses no more."""
    mixed = (seed + offset * 0x9E3779B97F4A7C15) % _WORD
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % _WORD
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % _WORD
    return (mixed ^ mixed >> 31) >> 32


_default: list[Default] = []


def default() -> Default:
    """The device's own generator, which random operators use when the program gives none."""
    if not _default:
        _default.append(Default())
    return _default[0]


def generator() -> torch.Generator:
    """What a random operator draws from when the program gives no generator; good for that one operator."""
    return default().draw()
