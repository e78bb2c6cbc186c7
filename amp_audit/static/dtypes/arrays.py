"""Arrays that NumPy makes."""

from __future__ import annotations

from collections.abc import Sequence

from amp_audit.static.dtypes.arguments import Named, dtype_of, flat
from amp_audit.static.dtypes.values import NOTHING, NUMBER, Const, Items, Tensor, Value

_FLOATS = frozenset(
    {
        *("zeros", "ones", "eye", "linspace", "logspace"),
        *("rand", "randn", "random", "normal", "uniform", "standard_normal"),
    }
)
"""Functions, and methods of generators, that make arrays of float64."""

_KEEPING = frozenset(
    {
        *("cumprod", "cumsum", "sqrt", "exp", "log", "power", "square", "clip", "abs", "sin", "cos", "tanh", "flip"),
        *("append", "concatenate", "stack", "hstack", "vstack", "where", "maximum", "minimum", "reshape", "tile"),
        *("expand_dims", "squeeze", "transpose", "array", "asarray", "ascontiguousarray", "diff", "outer", "interp"),
    }
)
"""Functions that give float64 if one of their arrays has it."""

_DRAWS = {"normal": 3, "uniform": 3, "random": 1, "standard_normal": 1, "rand": 1, "randn": 1}
"""Those that give a number where they are given no size: by how many arguments a size is given."""


def _is_float(value: Value) -> bool:
    return isinstance(value, Const) and isinstance(value.value, float)


def made_by_numpy(name: str, args: Sequence[Value], named: Named) -> Value:
    """What a function of NumPy gives: floats are float64 unless it is told otherwise."""
    if name in _KEEPING:
        if "dtype" in named:
            return Tensor(dtype_of(named["dtype"]).dtypes)
        given = [inner for arg in args for inner in flat(arg)]
        listed = name in ("array", "asarray") and any(map(_is_float, given)) and isinstance(args[0], Items)
        doubles = any(isinstance(one, Tensor) and one.dtypes == {"float64"} for one in given)
        return Tensor(frozenset({"float64"})) if listed or doubles else NOTHING
    if name not in _FLOATS:
        return NOTHING
    if name in _DRAWS and len(args) < _DRAWS[name] and not named.keys() & {"size", "dtype"}:
        return NUMBER
    return Tensor(dtype_of(named["dtype"]).dtypes if "dtype" in named else frozenset({"float64"}))
