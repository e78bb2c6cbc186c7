"""What checking costs, beside a bare libcst parse of the same files, beside ruff, and start-up.

    python benchmarks/check.py [PATH ...] [--rounds 5]

Each PATH is a folder of Python code (default: this repository's examples). Each command is a process of its own; they
take turns within each round, so that a busy machine hits all of them alike. Prints medians of CPU seconds (user +
system, helpers included) and of wall time, the most memory that a check used, and ratios. The bare parse reads only the
files that survive the prefilter. "Three files" are three of these, given by name, as pre-commit gives the changed ones:
the rest is read for context; what those files say is known from an earlier check, what it found is not. Bytecode is
there, as in an installation.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from amp_audit import rulebook
from amp_audit.static.source import selection, sources
from amp_audit.static.source.screen import screen

PARSE = """
import sys, libcst
for path in open(sys.argv[1], encoding="utf-8").read().splitlines():
    try:
        libcst.parse_module(open(path, "rb").read())
    except Exception:
        pass
"""


THREE = "check, three files"


@dataclass
class Cost:
    """What the runs of one command cost: seconds, and MiB at the most."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    memory: float = 0.0

    def add(self, command: list[str], environ: dict[str, str]) -> None:
        """Run a command once."""
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ)
        _, _, usage = os.wait4(process.pid, 0)
        self.wall.append(time.perf_counter() - began)
        self.cpu.append(usage.ru_utime + usage.ru_stime)
        self.memory = max(self.memory, usage.ru_maxrss / 1024)


def surviving(folder: Path) -> list[str]:
    """The files of a folder that the prefilter lets through."""
    root = os.path.abspath(folder)
    files = sources.find([root])
    found = selection.select(files, root, screen(rulebook.load()))
    return sorted({*found.checked, *found.context})


def commands(folder: Path, files: list[str], listing: Path, empty: Path) -> dict[str, list[str]]:
    check = [sys.executable, "-m", "amp_audit", "check"]
    step = max(1, len(files) // 3)
    found = {
        "check, cold": [*check, "--no-cache", str(folder)],
        "check, warm": [*check, str(folder)],
        "bare parse": [sys.executable, "-c", PARSE, str(listing)],
        THREE: [*check, *files[::step][:3]],
        "check, nothing matters": [*check, "--no-cache", str(empty)],
        "python, nothing": [sys.executable, "-c", ""],
    }
    ruff = shutil.which("ruff", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if ruff:
        found["ruff"] = [ruff, "check", "--no-cache", "--isolated", str(folder)]
    return found


def measured(todo: dict[str, list[str]], rounds: int, cache: Path) -> dict[str, Cost]:
    environ = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPYCACHEPREFIX": str(cache / "bytecode")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    Cost().add(todo["check, warm"], environ)  # fills the caches
    beside = {**environ, "XDG_CACHE_HOME": str(cache / "of three")}
    Cost().add(todo["check, warm"], beside)
    costs = {name: Cost() for name in todo}
    for _ in range(rounds):
        for name, command in todo.items():
            for found in (cache / "of three" / "amp-audit" / "check").glob("*.kept"):
                found.unlink()
            costs[name].add(command, beside if name == THREE else environ)
    return costs


def show(costs: dict[str, Cost]) -> None:
    cpu = {name: statistics.median(cost.cpu) for name, cost in costs.items()}
    wall = {name: statistics.median(cost.wall) for name, cost in costs.items()}
    for name, cost in costs.items():
        print(f"  {name:24} {cpu[name]:8.3f} s CPU {wall[name]:8.3f} s wall {cost.memory:7.0f} MiB")
    print(f"CPU   cold / bare parse         {cpu['check, cold'] / cpu['bare parse']:.2f}   (aim: at most 2.5)")
    if "ruff" in costs:
        print(f"CPU   cold / ruff               {cpu['check, cold'] / cpu['ruff']:.2f}   (aim: at most 4)")
        print(f"wall  warm / ruff               {wall['check, warm'] / wall['ruff']:.2f}   (aim: at most 1)")
    print(f"wall  three files               {wall[THREE]:.2f} s (aim: at most 0.4)")


def measure(path: Path, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        listing, empty = Path(place, "files"), Path(place, "empty.py")
        files = surviving(path)
        listing.write_text("\n".join(files), encoding="utf-8")
        empty.write_text("print('nothing here matters')\n", encoding="utf-8")
        todo = commands(path, files, listing, empty)
        print(f"{len(files)} files survive the prefilter in {path}; {rounds} rounds", flush=True)
        show(measured(todo, rounds, Path(place, "cache")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    examples = Path(__file__).resolve().parent.parent / "examples"
    parser.add_argument("paths", nargs="*", type=Path, default=[examples])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for path in options.paths:
        measure(path, options.rounds)


if __name__ == "__main__":
    main()
