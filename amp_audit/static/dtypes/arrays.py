"""Arrays that NumPy makes."""

from __future__ import annotations

from collections.abc import Sequence

from amp_audit.static.dtypes.arguments import Named, dtype_of
from amp_audit.static.dtypes.values import NOTHING, NUMBER, Tensor, Value

_FLOATS = frozenset(
    {
        *("zeros", "ones", "eye", "linspace", "logspace"),
        *("rand", "randn", "random", "normal", "uniform", "standard_normal"),
    }
)
"""Functions, and methods of generators, that make arrays of float64."""

_DRAWS = {"normal": 3, "uniform": 3, "random": 1, "standard_normal": 1, "rand": 1, "randn": 1}
"""Those that give a number where they are given no size: by how many arguments a size is given."""


def made_by_numpy(name: str, args: Sequence[Value], named: Named) -> Value:
    """What a function of NumPy gives: floats are float64 unless it is told otherwise."""
    if name not in _FLOATS:
        return NOTHING
    if name in _DRAWS and len(args) < _DRAWS[name] and not named.keys() & {"size", "dtype"}:
        return NUMBER
    return Tensor(dtype_of(named["dtype"]).dtypes if "dtype" in named else frozenset({"float64"}))
