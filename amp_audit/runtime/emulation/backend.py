"""The kernels of the emulated CUDA: each runs the CPU's on the same memory.

torch decides everything above: shapes, autograd, autocast, which operators a function decomposes into. A kernel here
lets its tensors cross (``bridge``), calls the operator again, and lets the results cross back. Arithmetic in float16
and bfloat16 is CUDA's in what matters to precision: products and sums of matmul and convolution are formed in float32
and rounded once, as tensor cores do.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from amp_audit.runtime.emulation import placement, refusals, target, tf32
from amp_audit.runtime.emulation.bridge import CannotEmulate as CannotEmulate
from amp_audit.runtime.emulation.bridge import on_device, on_host, over_storage
from amp_audit.runtime.emulation.memory import out_of_memory
from amp_audit.runtime.emulation.placement import Devices
from amp_audit.runtime.emulation.randomness import generator

core: Any = torch._C
LOW = frozenset({torch.float16, torch.bfloat16})
_ACCUMULATED = frozenset(
    {
        *("mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "addmv", "addmv_", "mv", "addbmm", "addr", "dot"),
        *("vdot", "linear", "_addmm_activation", "convolution", "convolution_backward", "_convolution"),
        *("native_layer_norm", "native_layer_norm_backward", "native_batch_norm", "native_batch_norm_backward"),
        *("native_group_norm", "native_group_norm_backward", "gelu", "gelu_backward", "cumsum", "cumprod", "logsumexp"),
        *("embedding_dense_backward", "log_sigmoid_forward", "log_sigmoid_backward", "nll_loss_forward"),
        *("linalg_vecdot", "pow", "pow_", "prod"),
    }
)
"""Operators that CUDA computes in float32 on half inputs, rounding the result once; here their inputs are widened."""

_FLOAT32_RESULTS = {"native_layer_norm": (1, 2), "native_batch_norm": (1, 2), "_native_batch_norm_legit": (1, 2)}
"""Results (by position) that CUDA leaves in float32 when the inputs are half: means and inverse deviations."""

HIDDEN_WRITES: dict[str, tuple[int, ...]] = {"native_batch_norm": (3, 4)}
"""Arguments (by position) that are changed although the schema does not say so: running statistics."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What an operator's schema says of how it is to be run.

    ``returns``: for each result the argument that it is, by position or name, or None for a new tensor. ``outputs``:
    names of ``out=`` arguments. ``written``: positions and names of arguments that are changed in place.
    """

    op: Any
    name: str
    returns: tuple[int | str | None, ...]
    outputs: frozenset[str]
    written: frozenset[int | str]
    generator: bool
    random: bool
    wide: bool
    refusal: refusals.Refusal | None
    operands: tuple[str, tuple[int, ...]] | None


@functools.cache
def plan(op: Any) -> Plan:
    schema = op._schema
    by_set: dict[str, int | str] = {}
    outputs, written = set(), set()
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        key = argument.name if argument.kwarg_only else position
        written.add(key)
        by_set.update(dict.fromkeys(argument.alias_info.before_set, key))
        if argument.is_out:
            outputs.add(argument.name)
    returns = tuple(
        next((by_set[name] for name in result.alias_info.before_set if name in by_set), None)
        if result.alias_info is not None
        else None
        for result in schema.returns
    )
    name = schema.name.rpartition("::")[2]
    return Plan(
        op,
        name,
        returns,
        frozenset(outputs),
        frozenset(written),
        any(argument.name == "generator" for argument in schema.arguments),
        torch.Tag.nondeterministic_seeded in op.tags,
        name in _ACCUMULATED,
        refusals.REFUSALS.get(name) if target.kind.name == "cuda" else None,
        tf32.OPERANDS.get(name),
    )


taken_by: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None
"""Who runs operators in place of ``execute``: the graph that is being captured."""


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator whose tensors (some of them) are on the emulated device."""
    return execute(op, args, kwargs) if taken_by is None else taken_by(op, args, kwargs)


def execute(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run it now."""
    with Below():
        special = SPECIAL.get(op._schema.name)
        if placement.SEVERAL:
            placement.take_aim(args, kwargs)
        try:
            if special is None or (skips_special(args, kwargs) and plan(op).name not in STRUCTURAL):
                return _run(plan(op), args, kwargs)
            return special(op, *args, **kwargs)
        except RuntimeError as error:
            refused = out_of_memory(error)
            if refused is None:
                raise
            raise refused from None


def skips_special(args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an operator with a way of its own is run like the others; a dry run puts its own answer here."""
    return False


class Below:
    """Nothing of torch's upper layers acts on what a kernel calls: autograd, and modes such as a default device."""

    _guards: tuple[Any, ...]

    def __enter__(self) -> None:
        made = (
            core.DisableTorchFunction(),
            core._AutoDispatchBelowAutograd(),
            core._ExcludeDispatchKeyGuard(_CPU_CAST),
        )
        self._guards = made
        for guard in made:
            guard.__enter__()

    def __exit__(self, *error: object) -> None:
        for guard in reversed(self._guards):
            guard.__exit__(*error)


_CPU_CAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


def _run(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    devices = Devices()
    own = tuple(devices.cross(arg) for arg in args)
    given = {key: devices.cross(value) for key, value in kwargs.items() if key not in plan.outputs}
    given.pop("pin_memory", None)
    devices.check(plan.op, plan.name, args)
    if plan.refusal is not None:
        plan.refusal.check(devices.dtypes)
    if plan.generator and given.get("generator") is None:
        given["generator"] = generator()
    for name in plan.outputs & kwargs.keys():
        given[name] = _empty_like(kwargs[name])
    with _seeded(plan):
        out = arithmetic(plan, own, given, devices.dtypes)
    for name in plan.outputs & kwargs.keys():
        fill(kwargs[name], given[name])
    return returned(plan, out, args, kwargs)


def compute(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], dtypes: Iterable[torch.dtype]) -> Any:
    """Run an operator on the CPU; in float32 where CUDA would, or where the CPU has no kernel for a half type."""
    low = LOW.intersection(dtypes)
    if not low:
        if plan.operands is not None and tf32.allowed(plan.operands[0]):
            args = tf32.narrowed(args, plan.operands[1])
        return plan.op(*args, **kwargs)
    if plan.wide:
        return in_float32(plan, args, kwargs, low)
    try:
        return plan.op(*args, **kwargs)
    except (RuntimeError, NotImplementedError) as error:
        lacking = "not implemented for" in str(error) or "not supported" in str(error)
        if not lacking or refusals.refused_by_both(plan.name):
            raise
        try:
            return in_float32(plan, args, kwargs, low)
        except Exception:
            raise error from None


arithmetic = compute
"""How operators are run; a dry run puts its own way here."""


def in_float32(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], low: frozenset[torch.dtype]) -> Any:
    """Run an operator on float32 copies of its half tensors, and round the results to the type that they would have."""
    wide = tuple(map(_widened, args))
    given = {key: _widened(value) for key, value in kwargs.items()}
    out = plan.op(*wide, **given)
    for key in (*plan.written, *HIDDEN_WRITES.get(plan.name, ())):
        narrow, result = (args[key], wide[key]) if isinstance(key, int) else (kwargs.get(key), given.get(key))
        _write_back(narrow, result)
    if len(low) > 1 or kwargs.get("dtype") is not None or kwargs.get("out_dtype") is not None:
        return out
    (dtype,) = low
    kept = _FLOAT32_RESULTS.get(plan.name, ())
    if isinstance(out, (tuple, list)):
        return [item if place in kept else _rounded(item, dtype) for place, item in enumerate(out)]
    return _rounded(out, dtype)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in LOW else value
    if isinstance(value, (list, tuple)):
        return type(value)(map(_widened, value))
    return value


def _write_back(narrow: Any, wide: Any) -> None:
    if isinstance(narrow, torch.Tensor):
        if narrow.dtype in LOW:
            narrow.resize_(wide.shape).copy_(wide) if narrow.shape != wide.shape else narrow.copy_(wide)
    elif isinstance(narrow, (list, tuple)):
        for one, other in zip(narrow, wide):
            _write_back(one, other)


def _rounded(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype is torch.float32 else value
    return [_rounded(item, dtype) for item in value] if isinstance(value, (list, tuple)) else value


def _empty_like(out: Any) -> Any:
    if isinstance(out, (list, tuple)):
        return type(out)(map(_empty_like, out))
    return torch.empty(0, dtype=out.dtype)


def fill(out: Any, result: Any) -> None:
    """Put what was computed into the ``out=`` tensor that the program gave."""
    if isinstance(out, (list, tuple)):
        for one, other in zip(out, result):
            fill(one, other)
        return
    if out.shape != result.shape:
        out.resize_(result.shape)
    (on_host(out) if target.there(out) else out).copy_(result)


def returned(plan: Plan, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, crosses: bool = True) -> Any:
    """What the operator returns: its arguments where its schema says so, else what was computed, on the device."""
    if not plan.returns:
        return None
    results = out if len(plan.returns) > 1 or isinstance(out, tuple) else (out,)
    place = kwargs.get("device")
    stays = not crosses or (place is not None and torch.device(place).type != target.kind.name)
    crossed = [
        (result if stays else back(result)) if key is None else (args[key] if isinstance(key, int) else kwargs[key])
        for key, result in zip(plan.returns, results)
    ]
    return tuple(crossed) if len(plan.returns) > 1 else crossed[0]


def back(value: Any) -> Any:
    """Results cross to the device."""
    if isinstance(value, torch.Tensor):
        return on_device(value)
    return [back(item) for item in value] if isinstance(value, (list, tuple)) else value


class _seeded:
    """Random operators that take no generator draw from CUDA's, not from the CPU's."""

    def __init__(self, plan: Plan) -> None:
        self._needed = plan.random and not plan.generator

    def __enter__(self) -> None:
        if self._needed:
            self._own = torch.default_generator.get_state()
            torch.default_generator.set_state(generator().get_state())

    def __exit__(self, *error: object) -> None:
        if self._needed:
            torch.default_generator.set_state(self._own)


# Operators with a way of their own

Special = Callable[..., Any]
SPECIAL: dict[str, Special] = {}
_META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)


def special(*names: str) -> Callable[[Special], Special]:
    """Register a function that runs the named ATen operators, whatever the overload."""

    def register(function: Special) -> Special:
        SPECIAL.update({f"aten::{name}": function for name in names})
        return function

    return register


VIEWED = frozenset({"as_strided", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex", "alias"})
"""Operators that return a view of their argument."""


@special(*VIEWED)
def _view(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Views look at the storage of their base, as on CUDA: the meta device's kernel makes one without touching data."""
    return op.redispatch(_META, *args, **kwargs)


@special("set_")
def _set(op: Any, tensor: torch.Tensor, source: Any = None, *place: Any) -> torch.Tensor:
    """Point a tensor to other memory: that of a tensor, or of a storage."""
    if source is None:
        made = on_device(torch.empty(0, dtype=tensor.dtype))
    elif isinstance(source, torch.Tensor):
        made = torch.ops.aten.alias.default(source)
    else:
        made = on_device(over_storage(source).view(tensor.dtype))
    if place:
        offset, size, *stride = place
        strides = stride[0] if stride and (stride[0] or not size) else contiguous_strides(size)
        made = torch.ops.aten.as_strided.default(made, size, strides, offset)
    tensor.data = made
    return tensor


def contiguous_strides(size: Sequence[int]) -> list[int]:
    strides = [1]
    for extent in reversed(size[1:]):
        strides.insert(0, strides[0] * max(1, extent))
    return strides[: len(size)]


@special("resize_")
def _resize(op: Any, tensor: torch.Tensor, size: Any, *, memory_format: Any = None) -> torch.Tensor:
    """Memory that came by the bridge does not grow: what is needed beyond it is new, and begins with the old."""
    shape = torch.empty(size, dtype=tensor.dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    needed = (tensor.storage_offset() + shape.numel()) * tensor.itemsize
    storage = tensor.untyped_storage()
    made = tensor
    if needed > storage.nbytes():
        grown = torch.empty(needed, dtype=torch.uint8)
        if storage.nbytes():
            grown[: storage.nbytes()] = over_storage(storage)
        made = on_device(grown.view(tensor.dtype))
    tensor.data = torch.ops.aten.as_strided.default(made, shape.shape, shape.stride(), tensor.storage_offset())
    return tensor


@special("is_set_to")
def _is_set_to(op: Any, tensor: torch.Tensor, other: torch.Tensor) -> bool:
    same = tensor.untyped_storage()._cdata == other.untyped_storage()._cdata
    return same and (tensor.storage_offset(), tensor.shape, tensor.stride()) == (
        other.storage_offset(),
        other.shape,
        other.stride(),
    )


@special("record_stream")
def _record_stream(op: Any, tensor: torch.Tensor, stream: Any) -> None:
    """Everything is done when it returns: no memory is used before its time."""


@special("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss")
def _use_cudnn(op: Any, *args: Any) -> bool:
    return False


def unknown(op: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator without a CPU kernel of its own: perhaps it is composed of others, perhaps it is CUDA's alone."""
    try:
        return run(op, *args, **kwargs)
    except NotImplementedError as error:
        if isinstance(error, CannotEmulate):
            raise
        raise CannotEmulate(f"amp-audit cannot emulate {op}: it has a kernel for {target.kind.key} only") from error


def by_name(name: str) -> Callable[..., Any]:
    """A kernel for one operator that finds the operator when it is first called."""
    packet, _, overload = name.partition(".")
    known: list[Any] = []

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not known:
            known.append(getattr(getattr(torch.ops.aten, packet), overload or "default"))
        return run(known[0], *args, **kwargs)

    return kernel


_UNLIKE = {"Sparse": "sparse", "SparseCsr": "sparse", "Quantized": "quantized", "NestedTensor": "nested"}
"""Tensors that are not plain memory, by the beginning of their dispatch keys."""


def _refuse(what: str, op: Any, *args: Any, **kwargs: Any) -> Any:
    raise CannotEmulate(f"amp-audit cannot emulate {what} {target.kind.key} tensors ({op})")


Library: Any = torch.library.Library
_libraries: list[Any] = []
"""Registrations last as long as these."""

COMPOSED = frozenset(
    {
        *("t_", "squeeze_", "unsqueeze_", "transpose_", "detach_", "_unsafe_view", "lift", "lift_fresh", "_lazy_clone"),
        *("unsafe_split", "unsafe_split_with_sizes", "_to_copy", "_pin_memory", "is_pinned", "is_same_size"),
        *("is_coalesced", "dense_dim", "sparse_dim", "_has_same_storage_numel", "_make_dual", "_fw_primal"),
        "_pack_padded_sequence",
    }
)
"""Operators that only rearrange a tensor's description, or choose between devices: torch composes them itself."""


STRUCTURAL = COMPOSED | VIEWED | {"set_", "resize_", "is_set_to", "record_stream", "_local_scalar_dense"}
"""Those, and operators with kernels of their own that compute nothing."""


_TRACED_WITHIN = frozenset({"convolution"})
"""Operators that ``torch.jit.trace`` does not record, but what torch composes them of (``_convolution``)."""


def register() -> None:
    """Give the device's key a kernel for every operator that has one for the CPU or for all devices, and a fallback."""
    library: Any = torch._C._dispatch_library("IMPL", "aten", target.kind.key, __file__, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in filter(_needs_kernel, _operators()):
            library.impl(name, target.kind.key, by_name(name), False)
    fallback: Any = Library("_", "IMPL")
    fallback.fallback(unknown, target.kind.key)
    for key, what in _UNLIKE.items():
        if core._parse_dispatch_key(f"{key}{target.kind.key}") is not None:
            fallback.fallback(functools.partial(_refuse, what), f"{key}{target.kind.key}")
    _libraries.extend((library, fallback))


def _operators() -> list[str]:
    """ATen's operators with their overloads, without those that return a view."""
    kept = []
    for schema in torch._C._jit_get_all_schemas():
        view = any(item.alias_info is not None and not item.alias_info.is_write for item in schema.returns)
        namespace, _, name = schema.name.partition("::")
        if namespace == "aten" and (not view or f"aten::{name}" in SPECIAL):
            kept.append(f"{name}.{schema.overload_name}" if schema.overload_name else name)
    return kept


def _needs_kernel(name: str) -> bool:
    if name.partition(".")[0] in COMPOSED | _TRACED_WITHIN or name.startswith(("sparse", "_sparse", "_coalesced")):
        return False
    full = f"aten::{name}"
    try:
        return any(torch._C._dispatch_has_kernel_for_dispatch_key(full, key) for key in (*_KEYS, target.kind.key))
    except RuntimeError:  # TorchScript's own, which the dispatcher does not know
        return False


_KEYS = ("CPU", "CompositeExplicitAutograd")
