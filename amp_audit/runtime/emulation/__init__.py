"""CUDA without a GPU: a backend for torch's CUDA dispatch key whose memory and kernels are the CPU's.

A CUDA tensor here is a real one to torch: its device is ``cuda:0``, autograd and autocast treat it as such, and the
operators that reach the dispatcher are CUDA's. Only its memory lies in the host's, and what would be a CUDA kernel runs
the CPU's on that memory. So CUDA's autocast policy is not imitated: it is torch's own, of the torch that is installed.

``chips`` says which devices can be emulated, ``bridge`` makes tensors cross between the two devices, ``backend`` runs
operators, ``kernels`` has those that the CPU lacks, ``surface`` is what ``torch.cuda`` answers.
"""

from __future__ import annotations

import atexit

from amp_audit.chips import Emulated, parse
from amp_audit.runtime.rest import await_rest


def begin(text: str, *, dry: bool = False) -> Emulated:
    """Emulate a device (``cuda``, ``cuda:sm80``) in this process from now on; torch is imported, the program is not.

    ``dry``: nothing large is computed, see ``dry.py``.

    Raises ``host.UnfitTorch`` when this torch cannot be made to, ``chips.EmulationError`` for an unknown device.
    """
    import torch

    from amp_audit.runtime.emulation import backend, distributed, host, kernels, surface, tf32

    emulated = parse(text)
    if torch.cuda.is_available():
        raise host.UnfitTorch("there is a CUDA device here: run without --emulate, or hide it (CUDA_VISIBLE_DEVICES=)")
    host.set_device_guard()
    host.admit_cuda()
    atexit.register(await_rest)
    kernels.load(emulated.chip)
    tf32.install(emulated.chip)
    backend.register()
    surface.install(emulated.chip)
    distributed.install()
    if dry:
        from amp_audit.runtime.emulation import dry as without_arithmetic

        without_arithmetic.install()
    return emulated
