"""Process groups that ask for NCCL: gloo does the work, on the same memory."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from amp_audit.runtime.emulation import placement, target
from amp_audit.runtime.emulation.backend import run
from amp_audit.runtime.emulation.bridge import aim, on_device

_libraries: list[Any] = []


def install() -> None:
    """Let ``init_process_group`` take ``nccl``, and collectives take CUDA tensors."""
    if not torch.distributed.is_available():
        return
    library: Any = torch._C._dispatch_library("IMPL", "c10d", target.kind.key, __file__, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for full in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):  # a CPU build has those
            namespace, _, name = full.partition("::")
            if namespace == "c10d":
                library.impl(name, target.kind.key, _collective(name), False)
    _libraries.append(library)
    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    logger: Any = torch._C._distributed_c10d.Logger
    logger.set_runtime_stats_and_log = lambda self: None  # asks for a timer of the GPU, which is not there
    asked: dict[Any, str] = {}
    for name in ("init_process_group", "new_group"):
        original = getattr(c10d, name)
        _replace(original, _without_nccl(original, asked))
    _replace(c10d.is_nccl_available, lambda: True)
    _replace(c10d._coalescing_manager, _one_by_one(c10d._coalescing_manager))
    work: Any = torch._C._distributed_c10d.Work
    work.get_future = _with_values(work.get_future)
    known = c10d.get_backend

    def get_backend(group: Any = None) -> Any:
        return asked.get(group, known(group))

    _replace(known, get_backend)


def _replace(original: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Put a function in another's place wherever torch's modules have it by name."""
    name = original.__name__
    for path, module in list(sys.modules.items()):
        if path.partition(".")[0] == "torch" and vars(module).get(name) is original:
            setattr(module, name, function)


def _one_by_one(original: Callable[..., Any]) -> Callable[..., Any]:
    """Collectives that are to be one: gloo begins each when it is called, or joins those of a kind."""

    @functools.wraps(original)
    def _coalescing_manager(group: Any = None, device: Any = None, async_ops: bool = False) -> Any:
        return original(group, None, async_ops)

    return _coalescing_manager


_crossed: OrderedDict[int, int] = OrderedDict()
"""Where memory lies that a collective was given, and on which device; the last of them."""
_MOST = 4096


def _note(value: Any) -> None:
    if isinstance(value, torch.Tensor):
        if target.there(value):
            _crossed[value.data_ptr()] = value.get_device()
            if len(_crossed) > _MOST:
                _crossed.popitem(last=False)
    elif isinstance(value, (list, tuple)):
        for one in value:
            _note(one)


def _with_values(original: Callable[..., Any]) -> Callable[..., Any]:
    """Futures of collectives hold tensors of the device again, as communication hooks of DDP expect."""

    def get_future(work: Any) -> Any:
        return original(work).then(lambda future: _returned(future.value()))

    return get_future


def _returned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        lent = value.is_cpu and value.data_ptr() in _crossed and not value.untyped_storage().resizable()
        if not lent:
            return value
        aim.index = _crossed[value.data_ptr()]
        if placement.SEVERAL:
            torch.cuda.set_device(aim.index)  # for the callbacks, which run on a thread of the process group's
        return on_device(value)
    return type(value)(map(_returned, value)) if isinstance(value, (list, tuple)) else value


def _collective(name: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        _note(args)
        return run(getattr(getattr(torch.ops.c10d, packet), overload or "default"), *args, **kwargs)

    return kernel


def _without_nccl(original: Callable[..., Any], asked: dict[Any, str]) -> Callable[..., Any]:
    position = 0 if original.__name__ == "init_process_group" else 2

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("backend", args[position] if len(args) > position else None)
        kwargs.pop("device_id", None)  # binds NCCL to a device at once
        if kwargs.get("pg_options") is not None:
            kwargs["pg_options"] = None
        if given is None or "nccl" in str(given):
            if len(args) > position:
                args = (*args[:position], "gloo", *args[position + 1 :])
            elif position == 0 or given is not None:
                kwargs["backend"] = "gloo"
        group = original(*args, **kwargs)
        if given is None or str(given) == "nccl":
            asked[group] = "nccl"
        return group

    return function
