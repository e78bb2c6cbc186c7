"""Reading the arguments of calls into torch: dtypes, constants, regions, layers, parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from amp_audit import policy
from amp_audit.static.binding.project import External
from amp_audit.static.dtypes import surface
from amp_audit.static.dtypes.values import (
    ANY,
    FLOAT32,
    HALVED,
    LOW,
    NAMES,
    NOTHING,
    NUMBER,
    SIDE,
    UNKNOWN,
    Const,
    DType,
    Dtypes,
    Either,
    Info,
    Items,
    Many,
    Opaque,
    Params,
    Region,
    Table,
    Tensor,
    Value,
    options,
    together,
)

Named = Mapping[str, Value]


def flat(value: Value) -> Iterable[Value]:
    if isinstance(value, Items):
        return [inner for item in value.items for inner in flat(item)]
    return [value.item] if isinstance(value, Many) else [value]


def told_dtype(named: Named) -> DType | None:
    """The dtype that a call names, if it does."""
    value = named.get("dtype")
    if value is None or (isinstance(value, Const) and value.value is None):
        return None
    return dtype_of(value)


def dtype_of(value: Value) -> DType:
    """A value that stands for a dtype, as one; unknown if it cannot be told."""
    if isinstance(value, DType):
        return value
    if isinstance(value, Const) and isinstance(value.value, str):
        name = NAMES.get(value.value.removeprefix("torch."))
        return DType(frozenset({name}) if name else ANY, value.assumed)
    if isinstance(value, External) and value.dotted.startswith("numpy."):
        name = NAMES.get(value.dotted.removeprefix("numpy."))
        return DType(frozenset({name}) if name else ANY)
    if isinstance(value, External) and value.dotted in ("builtins.float", "builtins.int", "builtins.bool"):
        name = value.dotted.removeprefix("builtins.")
        return DType(frozenset({"float64" if name == "float" else name}))
    if isinstance(value, Either):
        found = [dtype_of(option) for option in value.options]
        return DType(frozenset(dtype for one in found for dtype in one.dtypes), any(one.assumed for one in found))
    return DType(ANY)


def torch_dtype(dotted: str) -> DType | None:
    """``torch.float16`` and its kin, tensor types included, by canonical name."""
    name = dotted.removeprefix("torch.").removeprefix("cuda.")
    if name.endswith("Tensor") and dotted.startswith("torch."):
        name = name.removesuffix("Tensor").lower()
    elif not dotted.startswith("torch.") or "." in name:
        return None
    return DType(frozenset({NAMES[name]})) if name in NAMES else None


def cast_target(name: str, args: Sequence[Value], named: Named) -> DType | None:
    """The dtype that ``x.name(...)`` casts to; None if it is no cast."""
    if name in surface.CASTS and not args:
        return DType(frozenset({surface.CASTS[name]}))
    if name not in ("to", "type", "astype"):
        return None
    if "dtype" in named:
        return told_dtype(named)
    if name == "astype" and args:
        return dtype_of(args[0])
    for arg in args:
        if isinstance(arg, DType):
            return arg
        if isinstance(arg, Tensor):
            return DType(arg.dtypes, arg.assumed, borrowed=True)
        if isinstance(arg, Either) and any(isinstance(option, DType) for option in arg.options):
            return dtype_of(arg)
        if name == "type" and isinstance(arg, Const) and isinstance(arg.value, str):
            return torch_dtype(arg.value)
    return None


def reinterpreted(name: str, args: Sequence[Value], named: Named) -> DType | None:
    """The dtype as which ``x.view(dtype)`` reads the bits of ``x``; None if it is given a shape."""
    told = named.get("dtype", args[1] if len(args) == 2 else None) if name == "view" else None
    return told if isinstance(told, DType) else None


def is_dtype(text: str) -> bool:
    return any(word in text.lower() for word in ("dtype", "precision", "type"))


def is_device(text: str) -> bool:
    words = ("device", "rank", "gpu", "cuda", "cpu")
    return any(word in text.lower() for word in words) and not is_dtype(text.lower().replace("device_type", ""))


_HALF_WIDTH = Const.of(256, assumed=True)
"""What half of a width is taken for that is not known: heads are not wider than 512."""
_SIDE = Const.of(2048, assumed=True)
"""What the side of a map is taken for that is not known."""


def numbers_of(name: str, args: Sequence[Value], named: Named) -> tuple[tuple[str, Const], ...]:
    """The constant arguments by the names of their parameters."""
    parameters = surface.PARAMETERS.get(name, ())
    values = dict(zip(parameters, args if name in surface.WITHOUT_TENSOR else args[1:]))
    if name == "where":
        values = dict(zip(parameters, args[1:]))
    values.update({key: value for key, value in named.items() if key in parameters})
    found = {key: value for key, value in values.items() if isinstance(value, Const) and value.number is not None}
    if name == "arange":
        taken = {HALVED: _HALF_WIDTH, SIDE: _SIDE}
        sizes = {key: value for key, value in values.items() if isinstance(value, Opaque)}
        found.update({key: taken[value] for key, value in sizes.items() if value in taken})
        if "end" in values and "end" not in found:
            found.pop("start", None)  # it says nothing of how far it goes
    for key, default in surface.DEFAULTS.get(name, {}).items():
        if key not in values:
            found[key] = Const.of(default)
    if name == "einsum" and args and isinstance(args[0], Const) and isinstance(args[0].value, str):
        found["contracted"] = Const.of(_contracted(args[0].value))
    dims = named.get("dim", args[1] if len(args) > 1 else None) if name == "sum" else None
    if isinstance(dims, Items):
        found["contracted"] = Const.of(len(dims.items))
    return tuple(found.items())


def _contracted(equation: str) -> int:
    """Over how many dimensions an einsum adds up."""
    inputs, kept = _read(equation)
    return len({label for label in inputs if label.isalpha()} - kept)


def _read(equation: str) -> tuple[str, set[str]]:
    """What the operands of an einsum are labelled with, and the labels of its result."""
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    return inputs, set(output) if arrow else {label for label in inputs if inputs.count(label) == 1}


def only_multiplies(args: Sequence[Value]) -> bool:
    """Whether an einsum adds up over no dimension that two of its operands have: torch multiplies elementwise then, and
    calls no matrix product."""
    equation = args[0].value if args and isinstance(args[0], Const) else None
    if not isinstance(equation, str):
        return False
    inputs, kept = _read(equation)
    operands = inputs.split(",")
    labels = {label for label in inputs if label.isalpha()} - kept
    return all(sum(label in operand for operand in operands) == 1 for label in labels)


def autocast(root: str, args: Sequence[Value], named: Named) -> Region:
    """The region of ``torch.autocast(...)`` or one of its older names (``root`` is what stands before ``autocast``)."""
    fixed = next((device for device in ("cuda", "cpu", "xpu", "mps") if f".{device}." in f"{root}."), None)
    order = ("enabled", "dtype", "cache_enabled") if fixed else ("device_type", "dtype", "enabled", "cache_enabled")
    given = {**dict(zip(order, args)), **named}
    device, assumed = _device(given.get("device_type")) if fixed is None else (fixed, False)
    dtypes, guessed = _region_dtypes(given.get("dtype"), device)
    enabled = given.get("enabled", Const.of(True))
    flag = bool(enabled.value) if isinstance(enabled, Const) and not enabled.assumed else None
    if assumed and flag is None and isinstance(enabled, Const) and not enabled.value:
        device = "cuda"  # with the default it is off: where it is on, the device is another one
    return Region(device, dtypes, flag, assumed or guessed)


def _device(value: Value | None) -> tuple[str, bool]:
    if isinstance(value, Const) and isinstance(value.value, str):
        return value.value.partition(":")[0], value.assumed and not value.value.startswith("cuda")
    texts = [o.value for o in options(value or NOTHING) if isinstance(o, Const) and isinstance(o.value, str)]
    return ("cuda", True) if "cuda" in texts or not texts else (texts[0], True)


def _region_dtypes(value: Value | None, device: str) -> tuple[Dtypes, bool]:
    if value is None or (isinstance(value, Const) and value.value is None):
        return frozenset({policy.default_dtype(device)}), False
    dtype = dtype_of(value)
    if UNKNOWN in dtype.dtypes:
        return (dtype.dtypes - ANY) | {LOW}, True
    return dtype.dtypes, dtype.assumed


def finfo(args: Sequence[Value], named: Named) -> Value:
    given = args[0] if args else told_dtype(named) or DType(FLOAT32)
    if isinstance(given, External):
        given = DType(frozenset({NAMES.get(given.dotted.rpartition(".")[2], UNKNOWN)}))
    return Info(dtype_of(given).dtypes)


def info_attribute(info: Info, name: str) -> Value:
    """``torch.finfo(dtype).name`` as a constant, where the dtype is known."""
    dtype = next(iter(info.dtypes))
    if len(info.dtypes) != 1 or dtype not in policy.MAX_FINITE:
        return NUMBER
    largest = policy.MAX_FINITE[dtype]
    known: dict[str, Callable[[], float]] = {
        "max": lambda: largest,
        "min": lambda: -largest,
        "smallest_subnormal": lambda: policy.SMALLEST_SUBNORMAL[dtype],
        "tiny": lambda: {"float16": 2.0**-14, "float64": 2.0**-1022}.get(dtype, 2.0**-126),
        "smallest_normal": lambda: {"float16": 2.0**-14, "float64": 2.0**-1022}.get(dtype, 2.0**-126),
        "eps": lambda: {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}[dtype],
    }
    return Const.of(known[name]()) if name in known else NUMBER


_PYTHON: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b if abs(b) <= 1024 and abs(a) <= 1e6 else None,
}


def computed(op: str, left: Const, right: Const) -> Value:
    """The result of an operator of Python on two numbers."""
    if left.number is None or right.number is None or op not in _PYTHON:
        return NOTHING if left.number is None else NUMBER
    try:
        value = _PYTHON[op](left.value, right.value)
    except (ArithmeticError, TypeError, ValueError):
        return NUMBER
    return Const.of(value, left.assumed or right.assumed) if isinstance(value, (int, float)) else NUMBER


def math_result(name: str, args: Sequence[Value]) -> Value:
    numbers = [arg.number for arg in args if isinstance(arg, Const)]
    function = getattr(math, name, None)
    if callable(function) and len(numbers) == len(args) and None not in numbers:
        try:
            return Const.of(function(*numbers))
        except (ValueError, OverflowError, TypeError):
            return NUMBER
    return NUMBER


def new_tensor(args: Sequence[Value], named: Named) -> Value:
    """``torch.tensor(...)`` and its kin: of literals, of a tensor, of something unknown."""
    told = told_dtype(named)
    one = args[0] if args else NOTHING
    number = one if isinstance(one, Const) and one.number is not None else None
    literals = [*flat(one)] if args else []
    listed = isinstance(one, Items) and all(isinstance(value, Const) for value in literals)
    if told is not None:
        scalar = isinstance(one, Const)
        return Tensor(told.dtypes, assumed=told.assumed, scalar=scalar, filled=number, table=listed)
    if literals and all(isinstance(value, Const) for value in literals):
        floats = any(isinstance(value.value, float) for value in literals if isinstance(value, Const))
        dtypes = FLOAT32 if floats else frozenset({"int"})
        return Tensor(dtypes, scalar=isinstance(one, Const), filled=number, table=listed)
    return one if isinstance(one, Tensor) else Tensor()


def layers_in(args: Sequence[Value]) -> Iterable[Value]:
    """The layers of a Sequential: given one by one, in a list, or in an OrderedDict."""
    if len(args) == 1 and isinstance(args[0], Table):
        return [value for _, value in args[0].items]
    if len(args) == 1 and isinstance(args[0], Items):
        pairs = args[0].items
        if pairs and all(isinstance(pair, Items) and len(pair.items) == 2 for pair in pairs):
            return [pair.items[1] for pair in pairs if isinstance(pair, Items)]
        return pairs
    return args


def params_in(value: Value) -> Params | None:
    """The parameters in what an optimizer is given: an iterable, a list of groups."""
    if isinstance(value, Params):
        return value
    if isinstance(value, Table):
        return params_in(value.get("params") or NOTHING)
    if isinstance(value, (Items, Many, Either)):
        inner = (
            value.items if isinstance(value, Items) else options(value) if isinstance(value, Either) else [value.item]
        )
        found = [one for one in map(params_in, inner) if one is not None]
        if found:
            return together(found)
    return None
