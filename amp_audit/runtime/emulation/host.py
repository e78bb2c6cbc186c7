"""Make a torch that was built without a device believe that it was built with it, on a machine without one.

Two things of torch's core are in the way, and neither can be set from Python: the device has no guard, and the hooks
that say what was built say no. Autograd asks both about every tensor in a backward. Builds with the device have them
but ask a driver that is not there. All is looked up by name and tried before it is relied on; what is not as expected
is put back, and the program is not run.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

from amp_audit.runtime.emulation.target import Kind


class UnfitTorch(RuntimeError):
    """This torch cannot be made to emulate; the message says what it lacks."""


_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry
_LENDER = 20  # c10::DeviceType::PrivateUse1
_kept: list[Any] = []
"""What torch's core points to, and does not own."""


def check_that_none_is_there() -> None:
    """Raises UnfitTorch where there is a device, of any kind: torch's core knows one accelerator."""
    if torch.cuda.is_available():
        raise UnfitTorch("there is a CUDA device here: run without --emulate, or hide it (CUDA_VISIBLE_DEVICES=)")
    if torch.xpu.is_available() or torch.backends.mps.is_available():
        raise UnfitTorch("there is a GPU here: run without --emulate")


def set_device_guard(kind: Kind) -> None:
    """Give torch a guard for the device, which a CPU build lacks: autograd and autocast ask it for the current device.

    Raises UnfitTorch where torch has none to give.
    """
    try:
        guards = (ctypes.c_void_p * (_LENDER + 1)).in_dll(ctypes.CDLL(str(_library("c10"))), _GUARDS)
    except (OSError, ValueError) as error:
        raise UnfitTorch(f"torch {torch.__version__} does not show its device guards: {error}") from None
    if kind.name == "cuda":
        _take_cudas_guard(guards, kind.number)
    else:
        _take_pythons_guard(guards, kind)


def _take_cudas_guard(guards: Any, number: int) -> None:
    """The guard that does nothing, which torch has for builds with CUDA on machines without a device.

    torch puts it in place of a guard that counts no devices (``ensureCUDADeviceGuardSet`` in
    c10/core/impl/DeviceGuardImplInterface.cpp). A CPU build has none to be replaced, so it is lent one for the time of
    that call.
    """
    ensure = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if ensure is None:
        raise UnfitTorch(f"torch {torch.__version__} is too old to be emulated on: it cannot do without a CUDA guard")
    lent = None
    if not guards[number]:
        lent = _Countless()
        guards[number] = lent.address
    ensure()
    if lent is not None and guards[number] == lent.address:
        guards[number] = None
        raise UnfitTorch(f"torch {torch.__version__} did not set a guard for CUDA")


def _take_pythons_guard(guards: Any, kind: Kind) -> None:
    """The guard that torch has for backends written in Python: one device, one stream, and its type asked of Python.

    torch registers it for PrivateUse1 alone (torch/csrc/acc/Module.cpp); from there it is moved to the device's place.
    """
    acc: Any = getattr(torch._C, "_acc", None)
    base: Any = getattr(acc, "DeviceGuard", None)
    if base is None:
        raise UnfitTorch(f"torch {torch.__version__} has no device guard that could be {kind.key}'s")
    own = getattr(torch._C._autograd.DeviceType, kind.key)

    class Guard(base):  # type: ignore[misc]
        def type_(self) -> Any:
            return own

    guard = Guard()
    if not acc.register_python_privateuseone_device_guard(guard):
        raise UnfitTorch("a backend of another device (PrivateUse1) is loaded")
    guards[kind.number], guards[_LENDER] = guards[_LENDER], None
    _kept.append(guard)


class _Countless:
    """A C++ object all of whose virtual functions return 0, among them the one that counts devices."""

    def __init__(self) -> None:
        self._function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(lambda this: 0)
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        self._table = (ctypes.c_void_p * _SLOTS)(*[address] * _SLOTS)
        self._object = ctypes.c_void_p(ctypes.addressof(self._table))
        self.address = ctypes.addressof(self._object)


_SLOTS = 64
"""More than the interface has virtual functions."""


def admit(kind: Kind) -> None:
    """Let ``at::getAccelerator`` answer the device. Raises UnfitTorch where that cannot be done.

    The hooks are one object with virtual functions (ATen/detail/AcceleratorHooksInterface.h: destructors, ``isBuilt``,
    ``isAvailable``, ``hasPrimaryContext``). It gets a copy of its table in which ``isBuilt`` says yes, and
    ``hasPrimaryContext``, which would raise, says no, as ``isAvailable`` does.
    """
    library = ctypes.CDLL(str(_library("torch_cpu")))
    try:
        get_hooks = library[kind.hooks]
        yes = next(function for function in (library[name] for name in _PREDICATES) if _holds(function))
    except (AttributeError, StopIteration) as error:
        raise UnfitTorch(f"torch {torch.__version__} does not show its {kind.key} hooks: {error}") from None
    get_hooks.restype = ctypes.c_void_p
    hooks = ctypes.c_void_p.from_address(get_hooks())
    found = hooks.value
    assert found is not None
    before = 2 * ctypes.sizeof(ctypes.c_void_p)  # the offset to the top and the type, which precede the functions
    table = _outliving(ctypes.string_at(found - before, 8 * _SLOTS))
    table[_PRIMARY_CONTEXT] = table[_IS_AVAILABLE]
    table[_IS_BUILT] = ctypes.cast(yes, ctypes.c_void_p).value
    if kind.name == "xpu":
        _know_memory(table, kind.number)
    hooks.value = ctypes.addressof(table) + before
    if str(torch._C._accelerator_getAccelerator()) != kind.name:
        hooks.value = found
        raise UnfitTorch(f"torch {torch.__version__} cannot be told that it has {kind.key}")
    _pin(table)


def _pin(table: Any) -> None:
    """Memory that C++ asks to be pinned is the CPU's, as for Python; DDP takes some to find parameters not used."""
    places = _INIT, _IS_PINNED, _PINNED_ALLOCATOR
    own = [table[place] for place in places]
    try:
        allocator = ctypes.CDLL(str(_library("c10")))["_ZN3c1015GetCPUAllocatorEv"]
        yes = table[_IS_BUILT]
        for place, function in zip(places, (yes, yes, ctypes.cast(allocator, ctypes.c_void_p).value)):
            table[place] = function
        pinned = torch.empty(1, pin_memory=True).is_pinned()
    except (AttributeError, RuntimeError):
        pinned = False
    if not pinned:
        for place, function in zip(places, own):
            table[place] = function


def _know_memory(table: Any, number: int) -> None:
    """DLPack asks XPU's hooks on which device memory lies, and which number that has: all is on the first.

    A ``c10::Device`` comes back in a register: the type in the low byte, the index in the next.
    """
    device = ctypes.CFUNCTYPE(ctypes.c_int16, ctypes.c_void_p, ctypes.c_void_p)(lambda this, data: number)
    index = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(lambda this, place: 0)
    for place, function in ((_DEVICE_FROM_POINTER, device), (_GLOBAL_INDEX, index)):
        table[place] = ctypes.cast(function, ctypes.c_void_p).value
        _kept.append(function)


_PREDICATES = ("_ZN2at7Context9hasOpenMPEv", "_ZN2at7Context9hasLAPACKEv", "_ZN2at7Context9hasMKLDNNEv")
"""Functions of ATen that take nothing and say yes or no; one that says yes is needed."""
_IS_BUILT, _IS_AVAILABLE, _PRIMARY_CONTEXT, _INIT = range(4, 8)
_IS_PINNED, _PINNED_ALLOCATOR, _DEVICE_FROM_POINTER = range(13, 16)
"""Places in the table: after the two entries before the functions, and two destructors."""
_GLOBAL_INDEX = 20
"""The third that XPU's hooks add (ATen/detail/XPUHooksInterface.h: ``getGlobalIdxFromDevice``)."""


def _outliving(entries: bytes) -> Any:
    """A table that is never freed: the hooks are destroyed by it when the process exits, after Python is gone."""
    allocate = ctypes.CDLL(None).malloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    address = allocate(len(entries))
    ctypes.memmove(address, entries, len(entries))
    return (ctypes.c_void_p * _SLOTS).from_address(address)


def try_memory(kind: Kind) -> None:
    """See whether tensors come to the device and back. Raises UnfitTorch where they do not."""
    from amp_audit.runtime.emulation.bridge import on_device, on_host

    try:
        moved = on_device(torch.ones(1))
        arrived = (moved.device.type, on_host(moved).item())
    except (RuntimeError, BufferError, AssertionError) as error:
        raise UnfitTorch(f"torch {torch.__version__} does not take memory for {kind.key}: {error}") from None
    if arrived != (kind.name, 1.0):
        raise UnfitTorch(f"torch {torch.__version__} does not take memory for {kind.key}")


def _holds(function: Any) -> bool:
    function.restype = ctypes.c_bool
    return bool(function())


def _library(name: str) -> Path:
    folder = Path(torch.__file__).parent / "lib"
    for file in (f"lib{name}.so", f"lib{name}.dylib"):
        if (folder / file).is_file():
            return folder / file
    raise UnfitTorch(f"torch {torch.__version__} has no lib{name} in {folder}")
