"""A device without a GPU: a backend for torch's dispatch key of it whose memory and kernels are the CPU's.

A tensor on it is a real one to torch: its device is ``cuda:0`` (``xpu:0``, ``mps:0``), autograd and autocast treat it
as such, and the operators that reach the dispatcher are the device's. Only its memory lies in the host's, and what
would be a kernel of the device runs the CPU's on that memory. So autocast's policy is not imitated: it is torch's own,
of the torch that is installed.

``chips`` says which devices can be emulated, ``target`` which one is, ``host`` makes torch's core take it, ``bridge``
makes tensors cross, ``backend`` runs operators, ``kernels`` has those that the CPU lacks, ``surface`` and
``cuda``, ``xpu``, ``mps`` are what torch's Python answers.
"""

from __future__ import annotations

import atexit

from amp_audit.chips import Emulated, parse
from amp_audit.runtime.rest import await_rest


def begin(text: str, *, dry: bool = False) -> Emulated:
    """Emulate a device (``cuda``, ``cuda:sm80``, ``xpu``, ``mps``) in this process from now on.

    torch is imported, the program is not. ``dry``: nothing large is computed, see ``dry.py``.

    Raises ``host.UnfitTorch`` when this torch cannot be made to, ``chips.EmulationError`` for an unknown device.
    """
    from amp_audit.runtime.emulation import target

    emulated = parse(text)
    kind = target.choose(emulated.device)

    from amp_audit.runtime.emulation import backend, distributed, host, kernels, surface, tf32

    host.check_that_none_is_there()
    host.set_device_guard(kind)
    host.admit(kind)
    atexit.register(await_rest)
    surface.install(emulated.chip)
    host.try_memory(kind)
    kernels.load(emulated.chip)
    tf32.install(emulated.chip)
    backend.register()
    distributed.install()
    if dry:
        from amp_audit.runtime.emulation import dry as without_arithmetic

        without_arithmetic.install()
    return emulated
