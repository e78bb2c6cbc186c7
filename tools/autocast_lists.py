"""Read autocast's op lists out of torch wheels, without importing them, and hold them against ``amp_audit/policies``.

    python tools/autocast_lists.py torch-2.15.0-*.whl ...          what differs from the tables
    python tools/autocast_lists.py --write torch-2.15.0-*.whl ...  and write a table where the lists changed

Wheels of any platform do (those for macOS are the smallest); ``pip download --no-deps --platform macosx_14_0_arm64
--only-binary=:all: torch==2.15.0`` fetches one. The header in a wheel, torch/include/ATen/autocast_mode.h, has the
lists that CUDA shares with XPU, MTIA and MAIA. Those of the CPU and of MPS stand in autocast_mode.cpp, which no wheel
has: they are carried over from the table before; ``tests/test_policy.py`` holds them against the torch it runs with.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE))

from amp_audit import policy  # noqa: E402

HEADER = "torch/include/ATen/autocast_mode.h"
KINDS: Mapping[str, policy.Kind] = {
    "LOWER_PRECISION_FP": "lower",
    "FP32": "float32",
    "FP32_SET_OPT_DTYPE": "float32_by_dtype",
    "PROMOTE": "promote",
}
REDISPATCHED = re.compile(r"\"(norm\.\w+)\"")
"""``norm``: its overloads are registered with a signature of their own, in AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE."""

BESIDE_THE_HEADER: Mapping[policy.Kind, tuple[str, ...]] = {
    "lower": ("_cudnn_rnn", "cudnn_convolution", "cudnn_convolution_transpose"),
    "banned": ("binary_cross_entropy",),
}
"""What autocast_mode.cpp and the cuDNN sources register for CUDA themselves."""

Lists = dict[policy.Kind, list[str]]


def read(wheel: Path) -> tuple[tuple[int, int], Lists]:
    """The release of a wheel and CUDA's lists in it. Raises ValueError for a file that is no torch wheel."""
    version = re.match(r"torch-(\d+)\.(\d+)", wheel.name)
    if version is None:
        raise ValueError(f"{wheel.name}: not a wheel of torch")
    with zipfile.ZipFile(wheel) as archive:
        try:
            header = archive.read(HEADER).decode("utf-8")
        except KeyError:
            raise ValueError(f"{wheel.name}: has no {HEADER}") from None
    return (int(version[1]), int(version[2])), of_header(header)


def of_header(header: str) -> Lists:
    """CUDA's lists by kind, as ``op`` or ``op.overload``, sorted. Raises ValueError where a macro is missing."""
    lists: Lists = {kind: _macro(header, name) for name, kind in KINDS.items()}
    lists["float32_by_dtype"] += REDISPATCHED.findall(header)
    for kind, ops in BESIDE_THE_HEADER.items():
        lists[kind] = [*lists.get(kind, []), *ops]
    return {kind: sorted(set(ops)) for kind, ops in lists.items()}


def _macro(header: str, name: str) -> list[str]:
    body = re.search(rf"#define AT_FORALL_{name}\(_\)\s*\\\n((?:.*\\\n)*.*\n)", header)
    if body is None:
        raise ValueError(f"the header has no AT_FORALL_{name}")
    return [".".join(filter(None, pair)) for pair in re.findall(r"_\((\w+)(?:, (\w+))?\)", body[1])]


def difference(release: tuple[int, int], lists: Lists) -> dict[str, tuple[str | None, str | None]]:
    """Ops that the table in force for a release treats otherwise than its header: (table, header)."""
    table = policy.lists("cuda", ".".join(map(str, release)))
    told = {op: kind for kind in policy.KINDS for op in table.overloads(kind)}
    found: dict[str, str] = {op: kind for kind, ops in lists.items() for op in ops}
    return {op: (told.get(op), found.get(op)) for op in sorted({*told, *found}) if told.get(op) != found.get(op)}


def write(release: tuple[int, int], lists: Lists) -> Path:
    """A table for a release: CUDA's lists as read, the other devices' as in the table before."""
    name = ".".join(map(str, release))
    earlier = policy.lists("cuda", name)
    before = json.loads((policy.FOLDER / f"torch-{earlier.since}.json").read_text("utf-8"))
    devices = {**before["devices"], "cuda": {kind: lists[kind] for kind in policy.KINDS if kind in lists}}
    new = {op for ops in lists.values() for op in ops if op not in earlier.table}
    mps = devices["mps"]  # its lists are its own, though they are written down by what they lack of CUDA's
    devices["mps"] = {**mps, "without": sorted({*mps["without"], *new})}
    source = f"{HEADER} of torch {name} (CUDA and its kin); the lists of the CPU and MPS as in the table before"
    path = policy.FOLDER / f"torch-{name}.json"
    path.write_text(_wrapped(json.dumps({"since": name, "source": source, "devices": devices}, indent=1)), "utf-8")
    return path


def _wrapped(text: str) -> str:
    """Lists of names with as many on a line as fit."""

    def each(found: re.Match[str]) -> str:
        indent = found[1]
        names = textwrap.wrap(" ".join(found[3].split()), WIDTH - len(indent) - 1)
        return f"{indent}{found[2]}[\n" + "\n".join(f"{indent} {line}" for line in names) + f"\n{indent}]"

    return re.sub(r"^( *)(\"\w+\": )\[\n([^\]{}]*?)\n *\]", each, text, flags=re.M) + "\n"


WIDTH = 118


def main(words: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="write a table where the lists changed")
    options: Any = parser.parse_args(None if words is None else list(words))
    read_lists = sorted(map(read, options.wheels))
    changed = False
    for release, lists in read_lists:
        name = ".".join(map(str, release))
        differing = difference(release, lists)
        counts = ", ".join(f"{len(lists[kind])} {kind}" for kind in lists)
        print(
            f"torch {name}: {counts}; {len(differing)} differ from the table since {policy.lists('cuda', name).since}"
        )
        for op, (told, found) in differing.items():
            print(f"  {op}: {told or 'not listed'} in the table, {found or 'not listed'} in the header")
        if differing and options.write:
            print(f"  written: {write(release, lists).relative_to(HERE)}")
            policy._tables.cache_clear()
            policy._lists.cache_clear()
        changed = changed or bool(differing)
    return int(changed and not options.write)


if __name__ == "__main__":
    sys.exit(main())
