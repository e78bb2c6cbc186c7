"""Which operators of torch's own database run on the emulated device: samples, forward and backward, in two dtypes.

    python benchmarks/operators.py [cuda|xpu|mps] [--samples 4]

Each sample of ``torch.testing._internal.common_methods_invocations.op_db`` that the device's dtypes list runs there;
float32 results are held against the CPU's for dtype, shape and device. What fails is printed, then the counts.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import types
import unittest
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from amp_audit.runtime import emulation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?", default="cuda")
    parser.add_argument("--samples", type=int, default=4)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    emulation.begin(options.device)
    device = options.device.partition(":")[0]
    ran = failed = 0
    for info in _database():
        for dtype in (torch.float32, torch.float16):
            if dtype not in info.dtypesIfCUDA:
                continue
            try:
                samples = list(itertools.islice(_samples(info, device, dtype), options.samples))
                for sample in samples:
                    ran += 1
                    _run(info, sample, dtype)
            except Exception as error:
                failed += 1
                print(f"{info.name} {info.variant_test_name} {dtype}: {type(error).__name__}: {error}".splitlines()[0])
    print(f"{ran} samples, {failed} operators and dtypes with a failure")


def _database() -> Any:
    try:
        import expecttest  # noqa: F401
    except ImportError:  # only needed as a base class there
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    return op_db


def _samples(info: Any, device: str, dtype: torch.dtype) -> Any:
    differentiable = info.supports_autograd and dtype in (getattr(info, "backward_dtypesIfCUDA", None) or ())
    return info.sample_inputs(device, dtype, requires_grad=differentiable)


def _run(info: Any, sample: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    results = _tensors(info.op(sample.input, *sample.args, **sample.kwargs))
    losses = [one.float().sum() for one in results if one.requires_grad and not one.is_complex()]
    if losses and info.supports_autograd:
        torch.stack(losses).sum().backward()
    if dtype is not torch.float32:
        return
    given, args, kwargs = torch.utils._pytree.tree_map(_to_cpu, (sample.input, sample.args, sample.kwargs))
    try:
        expected = _tensors(info.op(given, *args, **kwargs))
    except RuntimeError:  # the CPU's kernel does not take what the device's does, or the copy is not the same view
        return
    for there, here in zip(results, expected):
        if there.is_cpu or (there.dtype, there.shape) != (here.dtype, here.shape):
            raise AssertionError(f"{there.device} {there.dtype} {tuple(there.shape)}, not {here.dtype} {here.shape}")


def _tensors(value: Any) -> list[torch.Tensor]:
    return [one for one in torch.utils._pytree.tree_leaves(value) if isinstance(one, torch.Tensor)]


def _to_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    on_device = isinstance(value, (str, torch.device)) and str(value).startswith(("cuda", "xpu", "mps"))
    return "cpu" if on_device else value


if __name__ == "__main__":
    main()
