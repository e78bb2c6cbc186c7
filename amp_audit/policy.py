"""What autocast does to an operator: the op lists per device and torch version, as data.

The lists lie in ``policies/torch-<since>.json``, one file for each torch release in which they changed. They are
registrations of ATen's autocast dispatch keys (``aten/src/ATen/autocast_mode.h`` and ``.cpp``); a test holds them
against the installed torch. Operators are named as ATen names them, with or without ``aten::`` and the overload.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from amp_audit.records import record

Kind = Literal["lower", "float32", "float32_by_dtype", "promote", "banned"]
"""What a region does to an op of its lists.

``lower``: float arguments become the region's dtype. ``float32``: they become float32. ``float32_by_dtype``: the
op is told to compute and return float32 unless it is called with a ``dtype``. ``promote``: they become the widest
dtype among them. ``banned``: the call raises. float64 and integer arguments are left as they are throughout.
"""

KINDS: tuple[Kind, ...] = ("lower", "float32", "float32_by_dtype", "promote", "banned")

DEFAULT_DTYPES: Mapping[str, str] = {
    "cpu": "bfloat16",
    "cuda": "float16",
    "xpu": "float16",
    "mps": "float16",
    "mtia": "float16",
    "ipu": "float16",
    "privateuseone": "float16",
    "maia": "bfloat16",
    "xla": "bfloat16",
    "hpu": "bfloat16",
}
"""The dtype of ``torch.autocast(device)`` without one (``autocast_dtype`` in autocast_mode.cpp)."""

FLOATS = ("float16", "bfloat16", "float32", "float64")
MAX_FINITE: Mapping[str, float] = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float32": 3.4028234663852886e38,
    "float64": 1.7976931348623157e308,
}
"""``torch.finfo(dtype).max``."""

SMALLEST_SUBNORMAL: Mapping[str, float] = {
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
    "float32": 2.0**-149,
    "float64": 2.0**-1074,
}
"""The smallest positive number of a dtype; half of it and everything below rounds to zero."""

FOLDER = Path(__file__).resolve().parent / "policies"


@record(frozen=True, slots=True)
class Policy:
    """The lists of one device. ``known`` is False for devices whose lists are registered outside torch (XLA, HPU)."""

    device: str
    since: str
    table: Mapping[str, Kind]
    known: bool = True

    def kind(self, op: str) -> Kind | None:
        """What a region does to ``op``; None for an op that no list names.

        ``softmax.int`` asks for one overload; a bare ``softmax`` for any, as the Python surface spells it.
        """
        name = op.removeprefix("aten::")
        return self.table.get(name) or self.table.get(_any_overload(name))

    def overloads(self, kind: Kind) -> tuple[str, ...]:
        """The listed names of one kind, overloads included, sorted."""
        return tuple(sorted(name for name, own in self.table.items() if own == kind and not name.endswith(".*")))


def _any_overload(name: str) -> str:
    return "" if "." in name else f"{name}.*"


def lists(device: str = "cuda", torch_version: str | None = None) -> Policy:
    """The lists of ``device`` in a torch version (None: the newest known).

    A version older than the oldest table gets the oldest one. A device with an index (``cuda:0``) is its type. A
    device whose lists torch does not hold gets CUDA's, with ``known=False``. Raises ValueError for a version that
    does not start with two numbers.
    """
    return _lists(device.partition(":")[0].lower(), _release(torch_version) if torch_version else None)


@cache
def _lists(device: str, release: tuple[int, int] | None) -> Policy:
    tables = _tables()
    fitting = [since for since in tables if release is None or since <= release]
    since = max(fitting) if fitting else min(tables)
    devices = tables[since]
    known = device in devices
    table = _table(devices, device if known else "cuda")
    return Policy(device, ".".join(map(str, since)), table, known)


def _release(version: str) -> tuple[int, int]:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdigit() and minor.isdigit()):
        raise ValueError(f"not a torch version: {version!r}")
    return int(major), int(minor)


@cache
def _tables() -> dict[tuple[int, int], dict[str, Any]]:
    read = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("torch-*.json"))]
    return {_release(data["since"]): data["devices"] for data in read}


def _table(devices: Mapping[str, Any], device: str) -> dict[str, Kind]:
    data = devices[device]
    table: dict[str, Kind] = {}
    if "like" in data:
        absent = set(data["without"])
        table = {op: kind for op, kind in _table(devices, data["like"]).items() if op not in absent}
        table = {op: kind for op, kind in table.items() if not op.endswith(".*")}
        data = data.get("with", {})
    for kind in KINDS:
        table.update(dict.fromkeys(data.get(kind, ()), kind))
    table.update({f"{op.partition('.')[0]}.*": kind for op, kind in table.items() if "." in op})
    return table


_LISTED_AS: Mapping[str, str] = {
    "convolution": "conv2d",
    "nll_loss2d_forward": "nll_loss_nd",
    "nll_loss_forward": "nll_loss",
}


def listed_name(op: str) -> str:
    """The name under which the lists have an op that the dispatcher saw: ``aten._softmax.default`` is ``softmax``."""
    name = op.removeprefix("aten::").removeprefix("aten.").partition(".")[0]
    return _LISTED_AS.get(name) or name.lstrip("_").removeprefix("native_")


def default_dtype(device: str) -> str:
    """The dtype of a region on ``device`` that names none: ``"float16"`` or ``"bfloat16"``."""
    return DEFAULT_DTYPES.get(device.partition(":")[0].lower(), "float16")


def promote(dtypes: Iterable[str]) -> str | None:
    """The dtype of an elementwise op over tensors of these dtypes (``torch.result_type`` of tensors with dimensions).

    Anything but the four float dtypes counts as narrower than every float; None if there is no float among them.
    """
    floats = {dtype for dtype in dtypes if dtype in FLOATS}
    if floats == {"float16", "bfloat16"}:
        return "float32"
    return max(floats, key=FLOATS.index, default=None)


def result_dtype(
    op: str,
    input_dtypes: Iterable[str],
    region_dtype: str,
    device: str = "cuda",
    torch_version: str | None = None,
) -> str | None:
    """The dtype that ``op`` returns in an enabled region, given the dtypes of its tensor arguments, in order.

    None if no argument is a float, or if the region bans the op. Says nothing of ops whose result has another dtype
    than they compute in (comparisons, ``argmax``, explicit ``dtype=``).
    """
    dtypes = tuple(input_dtypes)
    kind = lists(device, torch_version).kind(op)
    own = promote(dtypes)
    if kind == "banned" or own is None:
        return None
    if kind is None or "float64" in dtypes:
        return own
    if kind == "lower":
        return region_dtype
    if kind == "promote":
        return "float32" if own == "float32" else region_dtype
    if kind == "float32_by_dtype" and dtypes[0] not in FLOATS:
        return own
    return "float32"
