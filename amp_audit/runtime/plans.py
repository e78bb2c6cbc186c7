"""What is known about an operator before it runs: what it reads, whether it only makes a view, how much work it is."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

Flops = Callable[[tuple[Any, ...], Any], int]

FROM_FIRST, INTO_FIRST = 1, 2
"""How a cast is written: from the first argument to the result, or from the second argument into the first."""

_CASTS = {
    "aten._to_copy": FROM_FIRST,
    "aten.to.dtype": FROM_FIRST,
    "aten.to.dtype_layout": FROM_FIRST,
    "aten.to.device": FROM_FIRST,
    "aten.to.other": FROM_FIRST,
    "aten.type_as": FROM_FIRST,
    "aten.copy_": INTO_FIRST,
    "aten._foreach_copy_": INTO_FIRST,
}

_SILENT_SPACES = frozenset({"profiler", "prim"})
_SILENT = frozenset(
    {
        *("aten._unsafe_view", "aten._reshape_alias", "aten.detach", "aten.detach_", "aten.alias"),
        *("aten.lift_fresh", "aten.lift", "aten.set_.source_Tensor", "aten.set_.source_Storage"),
        *("aten.empty.memory_format", "aten.empty_strided", "aten.empty_like"),
        *("aten.new_empty", "aten.new_empty_strided", "aten._local_scalar_dense", "aten.is_pinned"),
    }
)
"""Operators that compute no element: views, storage, reading a number."""


class Plan:
    """One operator.

    ``silent`` operators are run and not counted. ``arity`` is 1 or 2 when the result is one tensor and the first one or
    two arguments are all that can be tensors, else 0. ``positions``: of the arguments that can be tensors or lists of
    them, None where no schema tells. ``call`` does what calling the overload does, without a Python frame of its own.
    """

    __slots__ = ("arity", "call", "cast", "flops", "func", "mutates", "name", "positions", "silent")

    def __init__(self, func: Any) -> None:
        self.func = func
        schema = getattr(func, "_schema", None)
        self.call: Callable[..., Any] = func._op if type(func) is OpOverload else func
        self.name: str = _name(func)
        self.arity = 0
        self.positions: tuple[int, ...] | None = None
        self.mutates = self.silent = False
        self.cast = _CASTS.get(self.name, 0)
        self.flops = _formula(func, self.name.removeprefix("aten.").partition(".")[0])
        if schema is not None:
            self._read(schema)

    def _read(self, schema: Any) -> None:
        tensors = [i for i, argument in enumerate(schema.arguments) if "Tensor" in str(argument.type)]
        single = all(str(schema.arguments[i].type) in ("Tensor", "Optional[Tensor]") for i in tensors)
        self.positions = tuple(tensors)
        self.mutates = bool(schema.is_mutable)
        results = [str(result.type) for result in schema.returns]
        view = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
        space = self.name.partition(".")[0]
        self.silent = (view and not self.cast) or self.name in _SILENT or space in _SILENT_SPACES
        if results == ["Tensor"] and single and tensors in ([0], [0, 1]):
            self.arity = 0 if schema.arguments[tensors[-1]].kwarg_only else len(tensors)

    def given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments that can be tensors or lists of them."""
        found = list(args) if self.positions is None else [args[i] for i in self.positions if i < len(args)]
        return [*found, *kwargs.values()] if kwargs else found

    def read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The dtypes of all tensor arguments; of a list of tensors that of its first."""
        found = map(first, self.given(args, kwargs))
        return tuple([item.dtype for item in found if item is not None])


def _name(func: Any) -> str:
    """``aten.add.Tensor``, without the word "default"; higher-order operators have only their own name."""
    return str(func).removesuffix(".default")


def first(value: Any) -> torch.Tensor | None:
    """The tensor itself, or the first one of a list."""
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, torch.Tensor):
            return item
    return None


def size(value: Any) -> tuple[int, int]:
    """Elements and bytes of a tensor, or of all tensors in a list and in its lists."""
    if value.__class__ is list and value and value[0].__class__ in _ORDINARY:
        try:  # lists of foreach operators: hundreds of tensors, of one dtype
            counts, dtypes = list(map(_numel, value)), set(map(_dtype, value))
        except (TypeError, AttributeError):  # not only tensors
            dtypes = set()
        if len(dtypes) == 1:
            elements = sum(counts)
            return elements, elements * int(dtypes.pop().itemsize)
    elements = amount = 0
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, torch.Tensor):
            count = item.numel()
            elements += count
            amount += count * item.dtype.itemsize
        elif item.__class__ is list:
            inner = size(item)
            elements += inner[0]
            amount += inner[1]
    return elements, amount


_ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter})
_numel = torch.Tensor.numel
_dtype = operator.attrgetter("dtype")


# Multiply-adds count twice. The formulas are those of torch.utils.flop_counter, which the tests hold them against.


def _mm(args: tuple[Any, ...], out: Any) -> int:
    return int(2 * out.numel() * args[0].shape[-1])


def _addmm(args: tuple[Any, ...], out: Any) -> int:
    return int(2 * out.numel() * args[1].shape[-1])


def _convolution(args: tuple[Any, ...], out: Any) -> int:
    """Each element of the result (of a transposed convolution: of the input) meets one filter."""
    return _filtered(args[0] if args[6] else out, args[1])


def _conv(args: tuple[Any, ...], out: Any) -> int:
    return _filtered(out, args[1])


def _conv_transpose(args: tuple[Any, ...], out: Any) -> int:
    return _filtered(args[0], args[1])


def _filtered(positions: Any, weight: Any) -> int:
    return int(2 * positions.numel() * (weight.numel() // max(1, weight.shape[0])))


def _convolution_backward(args: tuple[Any, ...], out: Any) -> int:
    """As much as the forward, once for the gradient of the input and once for that of the weight."""
    gradient, inputs, weight, transposed, wanted = args[0], args[1], args[2], args[7], args[10]
    return _filtered(inputs if transposed else gradient, weight) * (bool(wanted[0]) + bool(wanted[1]))


def _attention(args: tuple[Any, ...], out: Any) -> int:
    return _attention_products(args[0], args[1], args[2], 1, 1)


def _attention_backward(args: tuple[Any, ...], out: Any) -> int:
    """The scores again, then two products for each of the forward's two."""
    return _attention_products(args[1], args[2], args[3], 3, 2)


def _attention_products(query: Any, key: Any, value: Any, scores: int, mixes: int) -> int:
    *batch, length, width = query.shape
    heads = 1
    for extent in batch:
        heads *= extent
    return int(2 * heads * length * key.shape[-2] * (scores * width + mixes * value.shape[-1]))


def _layer(args: tuple[Any, ...], out: Any) -> int:
    """A layer of oneDNN's LSTM: each position of each sequence meets both weight matrices, all gates in one."""
    length, batch = args[0].shape[:2]
    return int(2 * length * batch * (args[1].numel() + args[2].numel()))


def _layer_backward(args: tuple[Any, ...], out: Any) -> int:
    """As much as the forward, once for the gradients of what went in and once for those of the weights."""
    return 2 * _layer(args, out)


def _formula(func: Any, name: str) -> Flops | None:
    """How much work an operator is: ours, else torch's own formula, else unknown."""
    own = _FLOPS.get(name)
    packet = getattr(func, "_overloadpacket", None)
    if own is not None or packet is None or not any(part in name for part in _HEAVY):
        return own
    from torch.utils.flop_counter import flop_registry

    counted = flop_registry.get(packet)
    return None if counted is None else lambda args, out: int(counted(*args, out_val=out))


_HEAVY = ("mm", "conv", "attention")
"""What is in the names of all operators for which torch has a formula."""

_FLOPS: dict[str, Flops] = {
    "mkldnn_rnn_layer": _layer,
    "mkldnn_rnn_layer_backward": _layer_backward,
    "mm": _mm,
    "bmm": _mm,
    "linear": _mm,
    "_scaled_mm": _mm,
    # In inference mode these are not taken apart.
    "matmul": _mm,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _conv),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _conv_transpose),
    "scaled_dot_product_attention": _attention,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward,
}
