"""Hold today's findings on public repositories against the judgements in ``judgements.tsv``.

    python tests/corpus/recheck.py --checkouts DIR [--command "amp-audit"] [--write NEW.tsv]

DIR holds one folder for each repository, ``owner__name``, at the commit of the file; those that are not there are
named. Prints, for each repository, the judgements that no longer match a finding, the findings judged false that are
still told, and those at warning or above that nobody has judged (``--write`` puts these into a file to be judged).
Exit code 1 when a finding that was judged false is told, or one judged true is not.

A judgement is one line: repository, commit, path, line (``cell:line`` in a notebook), rule, verdict (true, false,
arguable), reason. AMP101 and AMP102 are left out: there are too many of them, and nothing about them to judge.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLUMNS = ("repository", "commit", "path", "line", "rule", "verdict", "reason")
LEFT_OUT = frozenset({"AMP002", "AMP003", "AMP101", "AMP102"})
Place = tuple[str, str, str]  # path, line, rule


def judgements() -> dict[str, dict[Place, dict[str, str]]]:
    """By repository and place."""
    found: dict[str, dict[Place, dict[str, str]]] = {}
    with (HERE / "judgements.tsv").open(encoding="utf-8", newline="") as handle:
        for row in csv.DictReader(handle, delimiter="\t"):
            found.setdefault(row["repository"], {})[(row["path"], row["line"], row["rule"])] = row
    return found


def findings(command: str, folder: Path) -> Iterator[tuple[Place, str]]:
    """The places of the findings at warning or above, each with its message."""
    done = subprocess.run(
        [*shlex.split(command), "check", "--no-cache", "--format", "json", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1, 2):
        raise SystemExit(f"{folder.name}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
    for item in json.loads(done.stdout)["findings"]:
        if item["severity"] != "info" and item["rule"] not in LEFT_OUT and item["path"]:
            cell = item.get("cell")
            line = str(item["line"]) if cell is None else f"{cell}:{item['line']}"
            yield (item["path"], line, item["rule"]), item["message"]


def compare(
    told: dict[Place, str], judged: dict[Place, dict[str, str]]
) -> tuple[list[Place], list[Place], list[Place]]:
    """True ones that are gone, false ones that are told, and what nobody has judged."""
    gone = [place for place, row in judged.items() if row["verdict"] == "true" and place not in told]
    false = [place for place, row in judged.items() if row["verdict"] == "false" and place in told]
    return gone, false, [place for place in told if place not in judged]


def show(title: str, places: Iterable[Place], texts: dict[Place, str]) -> None:
    for place in places:
        print(f"  {title}: {place[2]} {place[0]}:{place[1]} {texts.get(place, '')}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--command", default="amp-audit")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    failed, unjudged, absent = False, [], 0
    for repository, judged in sorted(judgements().items()):
        folder = options.checkouts / repository.replace("/", "__")
        if not folder.is_dir():
            absent += 1
            continue
        told = dict(findings(options.command, folder))
        gone, false, new = compare(told, judged)
        print(f"{repository}: {len(told)} told, {len(judged)} judged")
        show("gone", gone, {place: row["reason"] for place, row in judged.items()})
        show("false", false, told)
        show("not judged", new, told)
        failed = failed or bool(gone or false)
        commit = next(iter(judged.values()))["commit"]
        unjudged += [(repository, commit, *place, "", told[place]) for place in new]
    print(f"{len(unjudged)} findings are not judged, {absent} repositories are not there")
    if options.write is not None:
        with options.write.open("w", encoding="utf-8", newline="") as handle:
            csv.writer(handle, delimiter="\t", lineterminator="\n").writerows([COLUMNS, *unjudged])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
