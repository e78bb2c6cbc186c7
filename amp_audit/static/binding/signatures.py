"""The parameters of what call detectors name, in positional order (torch 2.13.0, accelerate 1.15.0)."""

from __future__ import annotations

from collections.abc import Mapping

from amp_audit.static.source import ir

_OLD_AUTOCAST = ("enabled", "dtype", "cache_enabled")
_OLD_SCALER = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")

SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "torch.amp.autocast": ("device_type", "dtype", "enabled", "cache_enabled"),
    "torch.cuda.amp.autocast": _OLD_AUTOCAST,
    "torch.cpu.amp.autocast": _OLD_AUTOCAST,
    "torch.amp.GradScaler": ("device", *_OLD_SCALER),
    "torch.cuda.amp.GradScaler": _OLD_SCALER,
    "torch.cpu.amp.GradScaler": _OLD_SCALER,
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler": (
        "device",
        "init_scale",
        "backoff_factor",
        "growth_factor",
        "growth_interval",
        "enabled",
        "process_group",
    ),
    "torch.amp.GradScaler.scale": ("outputs",),
    "torch.amp.GradScaler.unscale_": ("optimizer",),
    "torch.amp.GradScaler.step": ("optimizer", "closure"),
    "torch.amp.GradScaler.update": ("new_scale",),
    "torch.set_default_dtype": ("d",),
    "torch.amp.custom_fwd": ("fwd",),
    "torch.amp.custom_bwd": ("bwd",),
    "torch.autograd.set_detect_anomaly": ("mode", "check_nan"),
    "torch.autograd.detect_anomaly": ("check_nan",),
    "torch.nn.utils.clip_grad_norm_": ("parameters", "max_norm", "norm_type", "error_if_nonfinite", "foreach"),
    "torch.set_float32_matmul_precision": ("precision",),
    "torch.distributed.fsdp.MixedPrecision": ("param_dtype", "reduce_dtype", "buffer_dtype"),
    "torch.distributed.fsdp.MixedPrecisionPolicy": ("param_dtype", "reduce_dtype", "output_dtype"),
}
"""``step`` takes ``*args``; the first of them is the optimizer's closure."""

_HF_ARGUMENTS = frozenset({"fp16", "bf16", "fp16_full_eval", "bf16_full_eval"})

KEYWORDS: Mapping[str, frozenset[str]] = {
    "transformers.TrainingArguments": _HF_ARGUMENTS,
    "transformers.Seq2SeqTrainingArguments": _HF_ARGUMENTS,
    "trl.SFTConfig": _HF_ARGUMENTS,
    "trl.DPOConfig": _HF_ARGUMENTS,
    "lightning.pytorch.Trainer": frozenset({"precision", "amp_backend", "amp_level"}),
}
"""Parameters that are given by their names (transformers 5.24, lightning 2.6)."""

SCALERS = (
    "torch.amp.GradScaler",
    "torch.cuda.amp.GradScaler",
    "torch.cpu.amp.GradScaler",
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
)
"""Classes whose instances are loss scalers; a method of any of them is spelled ``torch.amp.GradScaler.<method>``."""

UNSURE = object()
"""An argument that may be given through ``*args`` or ``**kwargs``."""


def argument(call: ir.Call, param: str, name: str) -> ir.Arg | object | None:
    """The argument for a parameter, None when it is not given; ``UNSURE`` behind ``*args`` or ``**kwargs``."""
    position = SIGNATURES.get(name, ()).index(param) if param in SIGNATURES.get(name, ()) else None
    for index, arg in enumerate(call.args):
        if arg.keyword == param or (arg.keyword is None and not arg.star and index == position):
            return arg
        if arg.star == "*" and position is not None:
            return UNSURE
    return UNSURE if any(arg.star == "**" for arg in call.args) else None
