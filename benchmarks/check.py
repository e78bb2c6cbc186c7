"""What checking costs: ``amp-audit check`` beside a bare libcst parse of the same files, beside ruff, and start-up.

    python benchmarks/check.py [PATH] [--rounds 5]

PATH is a folder of Python code (default: this repository's examples). Each command is a process of its own; they take
turns within each round, so that a busy machine hits all of them alike. Prints medians of CPU seconds (user + system)
and their ratios. The bare parse reads only the files that survive the prefilter, because only these are parsed.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from amp_audit import rulebook
from amp_audit.static import selection, sources
from amp_audit.static.screen import screen

PARSE = """
import sys, libcst
for path in open(sys.argv[1], encoding="utf-8").read().splitlines():
    try:
        libcst.parse_module(open(path, "rb").read())
    except Exception:
        pass
"""


def cpu_seconds(command: list[str]) -> float:
    """User and system seconds of one process and of those it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def surviving(folder: Path) -> list[str]:
    """The files of a folder that the prefilter lets through."""
    root = os.path.abspath(folder)
    files = sources.find([root])
    found = selection.select(files, root, screen(rulebook.load()))
    return sorted({*found.checked, *found.context})


def commands(folder: Path, listing: Path, empty: Path) -> dict[str, list[str]]:
    check = [sys.executable, "-m", "amp_audit", "check"]
    found = {
        "check": [*check, str(folder)],
        "bare parse": [sys.executable, "-c", PARSE, str(listing)],
        "check, nothing matters": [*check, str(empty)],
        "python, nothing": [sys.executable, "-c", ""],
    }
    ruff = shutil.which("ruff", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if ruff:
        found["ruff"] = [ruff, "check", "--no-cache", "--isolated", str(folder)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent / "examples")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        listing, empty = Path(place, "files"), Path(place, "empty.py")
        files = surviving(options.path)
        listing.write_text("\n".join(files), encoding="utf-8")
        empty.write_text("print('nothing here matters')\n", encoding="utf-8")
        todo = commands(options.path, listing, empty)
        spent: dict[str, list[float]] = {name: [] for name in todo}
        for _ in range(options.rounds):
            for name, command in todo.items():
                spent[name].append(cpu_seconds(command))
    medians = {name: statistics.median(times) for name, times in spent.items()}
    print(f"{len(files)} files survive the prefilter in {options.path}; {options.rounds} rounds")
    for name, median in medians.items():
        print(f"  {name:24} {median:8.3f} s")
    print(f"check / bare parse          {medians['check'] / medians['bare parse']:.2f}")
    if "ruff" in medians:
        print(f"check / ruff                {medians['check'] / medians['ruff']:.2f}")


if __name__ == "__main__":
    main()
