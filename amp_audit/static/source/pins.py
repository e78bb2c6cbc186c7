"""Which torch, Lightning and transformers a program may run on, by what it says it needs: the newest releases that its
pins allow.

Read are the files of a project's root in which dependencies are declared, and what a script says of itself (PEP 723).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from amp_audit.records import record

Release: TypeAlias = tuple[int, int]
"""Major and minor version."""

FILES = (
    "requirements.txt",
    "environment.yml",
    "environment.yaml",
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "Pipfile",
)

_ANY = 999
_SPEC = r"(?P<spec>[=<>~!^]=?=?\s*v?\d[^\"'#;\s]*(?:\s*,\s*[=<>~!]=?=?\s*v?\d[^\"'#;\s,]*)*)?"


def _requirement(names: str) -> re.Pattern[str]:
    """How dependency files ask for one of some packages."""
    return re.compile(
        rf"""
        (?: ^\s*(?:-\s+)?(?:[\w.-]+::)? | ["'] )   # a line of its own, or a text
        (?:{names})
        (?: \s*=\s*["'](?P<bare>[\^~=<>\d][^"']*)["']          # torch = "^1.13"
          | \s*@\s*[^\s"']*?(?:@v?|/\w+-)(?P<tag>\d+\.\d+)[^\n"']*   # torch @ git+https://host/torch@v1.8
          | \s*(?:\[[\w,\s-]*\])?\s*{_SPEC}\s*(?:["';\#,]|$) )  # torch[opt] >=1.8,<2
        """,
        re.MULTILINE | re.VERBOSE,
    )


_TORCH = _requirement("torch|pytorch")
_LIGHTNING = _requirement("(?:pytorch[-_])?lightning")
_TRANSFORMERS = _requirement("transformers")
_BOUND = re.compile(r"(?P<sign>[=<>~!^]*)\s*v?(?P<major>\d+)(?:\.(?P<minor>\d+))?(?P<patch>\.\d+)?")
_INCLUDED = re.compile(r"^[ \t]*(?:-r|--requirement)[ \t=]*(?P<path>[^\s#]+)", re.MULTILINE)
_MARK = "# /// script"
_SCRIPT = re.compile(rf"^{_MARK}$(?P<body>(?:\n#(?: .*)?)*?)\n# ///$", re.MULTILINE)


@record(frozen=True, slots=True)
class Newest:
    """The newest release of a package that is allowed by a project; None where nothing bounds it from above: a lower
    bound alone lets the newest in.
    """

    torch: Release | None = None
    lightning: Release | None = None
    transformers: Release | None = None


def included(data: bytes) -> list[str]:
    """The files that a requirements file includes, as it names them: from its own folder."""
    return [match.group("path") for match in _INCLUDED.finditer(data.decode(errors="replace"))]


def newest(declared: Iterable[str], scripts: Iterable[str] = ()) -> Newest:
    """What the texts of dependency files and of scripts allow."""
    marked = (script for script in scripts if _MARK in script)  # looking for a text is a tenth of looking for lines
    texts = [*declared, *(match.group("body") for script in marked for match in _SCRIPT.finditer(script))]
    return Newest(_bound(_TORCH, texts), _bound(_LIGHTNING, texts), _bound(_TRANSFORMERS, texts))


def _bound(package: re.Pattern[str], texts: Iterable[str]) -> Release | None:
    found = [_newest(match) for text in texts for match in package.finditer(text)]
    bounds = [bound for bound in found if bound is not None]
    return max(bounds) if bounds and len(bounds) == len(found) else None


def _newest(match: re.Match[str]) -> Release | None:
    spec = match.group("bare") or match.group("tag") or match.group("spec") or ""
    bounds = [bound for part in spec.split(",") if (bound := _upper(part)) is not None]
    return min(bounds, default=None)


def _upper(part: str) -> Release | None:
    """The newest release that one clause of a specifier lets in; None where it lets in all that come."""
    bound = _BOUND.match(part.strip())
    if bound is None:
        return None
    sign, major, minor = bound.group("sign"), int(bound.group("major")), bound.group("minor")
    exact = (major, int(minor) if minor is not None else _ANY)
    if sign in ("", "=", "==", "===", "<="):
        return exact
    if sign in ("~=", "~"):
        return exact if bound.group("patch") else (major, _ANY)
    if sign == "^":
        return (major, _ANY)
    if sign == "<":
        patched = bound.group("patch") not in (None, ".0")
        before = (major, int(minor) - 1) if minor is not None and int(minor) else (major - 1, _ANY)
        return exact if patched else before
    return None
