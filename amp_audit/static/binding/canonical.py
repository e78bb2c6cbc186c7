"""One dotted name for each thing of a library, however a program spells it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

ALIASES: Mapping[str, str] = {
    "torch.autocast": "torch.amp.autocast",
    "torch.amp.autocast_mode.autocast": "torch.amp.autocast",
    "torch.amp.autocast_mode.custom_fwd": "torch.amp.custom_fwd",
    "torch.amp.autocast_mode.custom_bwd": "torch.amp.custom_bwd",
    "torch.amp.autocast_mode.is_autocast_available": "torch.amp.is_autocast_available",
    "torch.GradScaler": "torch.amp.GradScaler",
    "torch.amp.grad_scaler.GradScaler": "torch.amp.GradScaler",
    "torch.cuda.amp.grad_scaler.GradScaler": "torch.cuda.amp.GradScaler",
    "torch.cuda.amp.grad_scaler.OptState": "torch.amp.grad_scaler.OptState",
    "torch.cuda.amp.autocast_mode.autocast": "torch.cuda.amp.autocast",
    "torch.cuda.amp.autocast_mode.custom_fwd": "torch.cuda.amp.custom_fwd",
    "torch.cuda.amp.autocast_mode.custom_bwd": "torch.cuda.amp.custom_bwd",
    "torch.cpu.amp.autocast_mode.autocast": "torch.cpu.amp.autocast",
    "torch.cpu.amp.grad_scaler.GradScaler": "torch.cpu.amp.GradScaler",
    "torch.nn.modules.Module": "torch.nn.Module",
    "torch.nn.modules.module.Module": "torch.nn.Module",
    "torch.nn.parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": (
        "torch.distributed.fsdp.FullyShardedDataParallel"
    ),
    "torch.autograd.anomaly_mode.set_detect_anomaly": "torch.autograd.set_detect_anomaly",
    "torch.autograd.anomaly_mode.detect_anomaly": "torch.autograd.detect_anomaly",
    "torch.distributed.fsdp.api.MixedPrecision": "torch.distributed.fsdp.MixedPrecision",
    "torch.distributed.fsdp.fully_sharded_data_parallel.MixedPrecision": "torch.distributed.fsdp.MixedPrecision",
    "torch.autograd.function.Function": "torch.autograd.Function",
    "torch.autograd.grad_mode.no_grad": "torch.no_grad",
    "torch.autograd.no_grad": "torch.no_grad",
    "torch.autograd.enable_grad": "torch.enable_grad",
    "torch.autograd.grad_mode.inference_mode": "torch.inference_mode",
    "torch.autograd.variable.Variable": "torch.autograd.Variable",
    "torch.half": "torch.float16",
    "torch.float": "torch.float32",
    "torch.double": "torch.float64",
    "accelerate.accelerator.Accelerator": "accelerate.Accelerator",
}
"""Single names; ``_PREFIXES`` are those that hold for all that a module exports."""

_PREFIXES: tuple[tuple[str, str], ...] = (
    ("torch.nn.utils.clip_grad.", "torch.nn.utils."),
    ("pytorch_lightning.", "lightning.pytorch."),
    ("lightning.pytorch.core.module.", "lightning.pytorch."),
)
_SUBMODULES = ("torch.optim.", "torch.nn.modules.")
"""Packages whose classes are exported one level up: ``torch.optim.adam.Adam`` is ``torch.optim.Adam``."""

_LIGHTNING = frozenset({"LightningModule", "LightningDataModule", "Trainer", "Callback", "seed_everything"})
_KEPT = frozenset({"torch.optim.lr_scheduler", "torch.optim.swa_utils"})

STAR_EXPORTS: Mapping[str, frozenset[str]] = {
    "torch.amp": frozenset({"autocast", "GradScaler", "custom_fwd", "custom_bwd", "is_autocast_available"}),
    "torch.cuda.amp": frozenset({"autocast", "GradScaler", "custom_fwd", "custom_bwd"}),
    "torch.cpu.amp": frozenset({"autocast", "GradScaler"}),
    "torch.cuda.amp.grad_scaler": frozenset({"GradScaler"}),
    "torch.cuda.amp.autocast_mode": frozenset({"autocast", "custom_fwd", "custom_bwd"}),
}
"""What ``from ... import *`` brings, where it matters which of several star imports a name came from."""


@lru_cache(maxsize=1 << 16)
def canonical(dotted: str) -> str:
    """The name by which rules call it, e.g. ``torch.amp.autocast`` for ``torch.autocast``.

    ``torch.cuda.amp`` and ``torch.cpu.amp`` stay apart from ``torch.amp``: their classes take other arguments.
    """
    found = ALIASES.get(dotted)
    if found is not None:
        return found
    for prefix, instead in _PREFIXES:
        if dotted.startswith(prefix):
            return canonical(instead + dotted[len(prefix) :])
    for package in _SUBMODULES:
        if dotted.startswith(package):
            return _lifted(dotted, package)
    if dotted.startswith("lightning.") and dotted.rpartition(".")[0] == "lightning":
        name = dotted.rpartition(".")[2]
        return f"lightning.pytorch.{name}" if name in _LIGHTNING else dotted
    return dotted


def _lifted(dotted: str, package: str) -> str:
    module, _, name = dotted[len(package) :].partition(".")
    if not name or "." in name or not name[:1].isupper() or f"{package}{module}" in _KEPT:
        return dotted
    return f"{package.removesuffix('modules.')}{name}"
