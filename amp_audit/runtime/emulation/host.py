"""Make a torch that was built without CUDA believe that it was built with it, on a machine without a device.

Two things of torch's core are in the way, and neither can be set from Python: CUDA has no device guard, and the hooks
that say what was built say no. Autograd asks both about every CUDA tensor in a backward. Builds with CUDA have them
but ask a driver that is not there. All is looked up by name and tried before it is relied on; what is not as expected
is put back, and the program is not run.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch


class UnfitTorch(RuntimeError):
    """This torch cannot be made to emulate; the message says what it lacks."""


_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry
_CUDA_TYPE = 1  # c10::DeviceType


def set_device_guard() -> None:
    """Give torch a guard for CUDA, which a CPU build lacks: autograd and autocast ask it for the current device.

    torch has one that does nothing, for builds with CUDA on machines without a device, and puts it in place of a guard
    that counts no devices (``ensureCUDADeviceGuardSet`` in c10/core/impl/DeviceGuardImplInterface.cpp). A CPU build has
    none to be replaced, so it is lent one for the time of that call. Raises UnfitTorch where torch does not have it.
    """
    ensure = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if ensure is None:
        raise UnfitTorch(f"torch {torch.__version__} is too old to be emulated on: it cannot do without a CUDA guard")
    try:
        guards = (ctypes.c_void_p * (_CUDA_TYPE + 1)).in_dll(ctypes.CDLL(str(_library("c10"))), _GUARDS)
    except (OSError, ValueError) as error:
        raise UnfitTorch(f"torch {torch.__version__} does not show its device guards: {error}") from None
    lent = None
    if not guards[_CUDA_TYPE]:
        lent = _Countless()
        guards[_CUDA_TYPE] = lent.address
    ensure()
    if lent is not None and guards[_CUDA_TYPE] == lent.address:
        guards[_CUDA_TYPE] = None
        raise UnfitTorch(f"torch {torch.__version__} did not set a guard for CUDA")


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


def admit_cuda() -> None:
    """Let ``at::getAccelerator`` answer CUDA. Raises UnfitTorch where that cannot be done.

    The hooks are one object with virtual functions (ATen/detail/AcceleratorHooksInterface.h: destructors, ``isBuilt``,
    ``isAvailable``, ``hasPrimaryContext``). It gets a copy of its table in which ``isBuilt`` says yes, and
    ``hasPrimaryContext``, which would raise, says no, as ``isAvailable`` does.
    """
    library = ctypes.CDLL(str(_library("torch_cpu")))
    try:
        get_hooks = library[_HOOKS]
        yes = next(function for function in (library[name] for name in _PREDICATES) if _holds(function))
    except (AttributeError, StopIteration) as error:
        raise UnfitTorch(f"torch {torch.__version__} does not show its CUDA hooks: {error}") from None
    get_hooks.restype = ctypes.c_void_p
    hooks = ctypes.c_void_p.from_address(get_hooks())
    found = hooks.value
    assert found is not None
    before = 2 * ctypes.sizeof(ctypes.c_void_p)  # the offset to the top and the type, which precede the functions
    table = _outliving(ctypes.string_at(found - before, 8 * _SLOTS))
    table[_PRIMARY_CONTEXT] = table[_IS_AVAILABLE]
    table[_IS_BUILT] = ctypes.cast(yes, ctypes.c_void_p).value
    hooks.value = ctypes.addressof(table) + before
    if str(torch._C._accelerator_getAccelerator()) != "cuda":
        hooks.value = found
        raise UnfitTorch(f"torch {torch.__version__} cannot be told that it has CUDA")


_HOOKS = "_ZN2at6detail12getCUDAHooksEv"  # at::detail::getCUDAHooks
_PREDICATES = ("_ZN2at7Context9hasOpenMPEv", "_ZN2at7Context9hasLAPACKEv", "_ZN2at7Context9hasMKLDNNEv")
"""Functions of ATen that take nothing and say yes or no; one that says yes is needed."""
_IS_BUILT, _IS_AVAILABLE, _PRIMARY_CONTEXT = 4, 5, 6
"""Places in the table: after the two entries before the functions, and two destructors."""


def _outliving(entries: bytes) -> Any:
    """A table that is never freed: the hooks are destroyed by it when the process exits, after Python is gone."""
    allocate = ctypes.CDLL(None).malloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    address = allocate(len(entries))
    ctypes.memmove(address, entries, len(entries))
    return (ctypes.c_void_p * _SLOTS).from_address(address)


def _holds(function: Any) -> bool:
    function.restype = ctypes.c_bool
    return bool(function())


def _library(name: str) -> Path:
    folder = Path(torch.__file__).parent / "lib"
    for file in (f"lib{name}.so", f"lib{name}.dylib"):
        if (folder / file).is_file():
            return folder / file
    raise UnfitTorch(f"torch {torch.__version__} has no lib{name} in {folder}")
