"""What becomes of ``torch.compile`` on recorded steps: run as written, or compiled and watched from outside.

Never in silence: compiled code is not the code that was written, and of most of it no operator comes by.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amp_audit.runtime.parts import Noting
from amp_audit.runtime.patches import Patches

MODES = ("eager", "observe")

AS_WRITTEN = "compiled code: recorded steps ran it as written"
_OPEN = frozenset({"eager", "aot_eager", "aot_eager_decomp_partition", "eager_noexcept"})
"""Backends that run their graphs operator by operator, through torch's dispatcher."""

_SEEN = {
    "inductor": "the calls of library kernels (matmul, convolution, attention); what it fused, casts among it, was not",
    "cudagraphs": "the operators of its first runs; replays of CUDA graphs were not",
}
_DEPTH = 8

COMPILES = hasattr(TorchDispatchMode, "ignore_compile_internals")
"""Whether compiled code runs while a dispatch mode is in force: an older Dynamo leaves out what it meets there."""


class Compiled:
    """Follows calls of compiled functions. ``mode``: what ``--compile`` says, one of ``MODES``.

    ``hidden``: whether, since it was set to False, code ran of which not every operator is seen.
    """

    def __init__(self, host: Noting, unobserved: Callable[[], Counter[str]]) -> None:
        self.mode = "eager"
        self.hidden = False
        self._host = host
        self._unobserved = unobserved
        self._said: set[str] = set()
        self._stance: Any = None
        self._patches = Patches()

    def start(self) -> None:
        """Follow from now on, also a compiler that the program has yet to load."""
        self._said = set()
        self._patches.wrap(torch, "compile", self._compile)
        self._attend()

    def stop(self) -> None:
        """Leave torch as it was."""
        self._patches.undo()
        dynamo = _dynamo()
        if self._stance is not None and dynamo is not None and dynamo._stance is self._stance:
            torch.compiler.set_stance("default")
        self._stance = None

    def _compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if not torch.compiler.is_compiling():
                self._attend()
            return made

        return compile

    def _attend(self) -> None:
        dynamo = _dynamo()
        if dynamo is None or self._patches.wraps(dynamo, "_callback_from_stance"):
            return
        self._patches.wrap(dynamo, "_callback_from_stance", self._called)
        if (self.mode == "eager" or not COMPILES) and dynamo._stance.stance == "default":
            torch.compiler.set_stance("force_eager")
            self._stance = dynamo._stance

    def _called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """torch asks at each call of a compiled function what the stance makes of its compiler."""

        def _callback_from_stance(callback: Any) -> Any:
            made = original(callback)
            if callable(callback):
                self._tell(None if made is None or not COMPILES else backend(callback))
            return made

        return _callback_from_stance

    def _tell(self, name: str | None) -> None:
        """A compiled function is about to run: as it was written, or in code of the backend ``name``."""
        self.hidden |= name is not None and name not in _OPEN
        if (name or AS_WRITTEN) in self._said:
            return
        self._said.add(name or AS_WRITTEN)
        if name is None:
            self._unobserved()[AS_WRITTEN] += 1
            self._host.note(
                "torch.compile: recorded steps ran the functions as written, not compiled; "
                "compiled code may round differently "
                f"({'--compile observe leaves it compiled' if COMPILES else 'this torch can only do so'})"
            )
        elif name in _OPEN:
            self._host.note(
                f"torch.compile ({name}): every operator of the compiled code was seen, as the backend ran it"
            )
        else:
            self._unobserved()[f"operators inside compiled code ({name})"] += 1
            seen = _SEEN.get(name, "the operators that it calls through torch; others were not")
            self._host.note(f"torch.compile ({name}): of the compiled code were seen {seen}")


def backend(callback: Any) -> str:
    """The name of the compiler behind Dynamo's callback, "?" when it has none."""
    for _ in range(_DEPTH):
        name = getattr(callback, "_compiler_name", None)
        if isinstance(name, str):
            return name
        callback = getattr(callback, "_torchdynamo_orig_backend", None) or getattr(
            callback, "_torchdynamo_orig_callable", None
        )
    return "?"


def _dynamo() -> Any:
    return sys.modules.get("torch._dynamo.eval_frame")
