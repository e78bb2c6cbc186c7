"""``torch.cuda.FloatTensor`` and its kin: types that torch has for old programs, and that a CPU build cannot make."""

from __future__ import annotations

from typing import Any

import torch

_DTYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


class _Type(type):
    """A tensor type: called it makes a CUDA tensor, and the CUDA tensors of its dtype are its instances."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        host: torch.Tensor = getattr(torch, cls.__name__)(*args, **kwargs)
        return host.cuda()

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype is cls.dtype

    def __str__(cls) -> str:
        return f"torch.cuda.{cls.__name__}"


def install() -> None:
    """Put the types in place, and let torch's functions that take types take these."""
    for name, dtype in _DTYPES.items():
        setattr(torch.cuda, name, _Type(name, (), {"dtype": dtype, "__module__": "torch.cuda"}))
    of_tensor, default = torch.Tensor.type, torch.set_default_tensor_type

    def type_(tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        wanted = _wanted(dtype)
        if wanted is None:
            return of_tensor(tensor, dtype, non_blocking, **kwargs)
        return tensor.to("cuda", wanted, non_blocking=non_blocking)

    def set_default_tensor_type(t: Any) -> None:
        wanted = _wanted(t)
        if wanted is None:
            default(t)
            return
        torch.set_default_dtype(wanted)
        torch.set_default_device("cuda")

    torch.Tensor.type = type_  # type: ignore[method-assign,assignment]
    torch.set_default_tensor_type = set_default_tensor_type


def _wanted(kind: Any) -> torch.dtype | None:
    if isinstance(kind, str) and kind.startswith("torch.cuda."):
        return _DTYPES.get(kind.rpartition(".")[2])
    return kind.dtype if isinstance(kind, _Type) else None
